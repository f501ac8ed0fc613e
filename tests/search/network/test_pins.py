"""Pins: which states a text means, which tensors a pattern; the best plan with them, by brute force."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product

import numpy as np
import pytest

from autoddl.errors import AutoDDLError
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.state import NdSbp
from autoddl.search.exact import primal_dual as exact
from autoddl.search.network.cost_network import TENSOR, CostNetwork
from autoddl.search.network.pins import matched
from autoddl.search.network.wanted_states import wanted_states
from autoddl.search.reductions.restriction import everything, restricted
from autoddl.search.result import SearchOptions
from autoddl.search.solvers import exhaustive
from experiments.lib import oneflow_problems as builder
from tests.support.clusters import cluster
from tests.support.programs import mlp, transformer

PROFILE = cluster()
NETWORKS = 8  # of 300, which were counted once
ENTRIES = ("B", "P", "S0", "S1")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("S0,B", lambda node, gpu: (node, gpu) == ("S0", "B")),
        ("S0", lambda node, gpu: "S0" in (node, gpu)),
        ("B", lambda node, gpu: node == gpu == "B"),
        ("S0|B", lambda node, gpu: "S0" in (node, gpu) or node == gpu == "B"),
        ("!S1", lambda node, gpu: "S1" not in (node, gpu)),
        ("!S1|P", lambda node, gpu: not {"S1", "P"} & {node, gpu}),
        ("node: S0", lambda node, _: node == "S0"),
        ("node:S0, gpu:P", lambda node, gpu: (node, gpu) == ("S0", "P")),
        ("!gpu: B|S0,S0", lambda node, gpu: gpu != "B" and (node, gpu) != ("S0", "S0")),
        ("S0:(2,1), B:(1,2)", lambda node, gpu: (node, gpu) == ("S0", "B")),
    ],
)
def test_what_a_text_means(text: str, meant: Callable[[str, str], bool]) -> None:
    wanted = wanted_states(text, Mesh.parse("2x2"))
    for node, gpu in product(ENTRIES, repeat=2):
        assert wanted.has(NdSbp.parse(f"{node},{gpu}")) == meant(node, gpu), (node, gpu)


def test_axes_of_one_device_have_nothing_to_tell() -> None:
    whole = NdSbp.parse("B,S0")
    assert all(wanted_states(t, Mesh.parse("1x2")).has(whole) for t in ("S1,S0", "S0", "!S1,B"))
    assert wanted_states("!B", Mesh.parse("1")).has(NdSbp.parse("B"))


def test_which_tensors_a_pattern_means() -> None:
    program = transformer(layers=1)
    last, fc1 = "model.blocks.0-add_n-42/out_0", "model.blocks.0.fc1-broadcast_add-38/z_0"
    (gradient,) = [p.gradient for p in program.parameters if p.tensor.endswith("fc1.weight")]
    for pattern, tensors in (
        ("input.0.*", program.inputs),
        ("*.blocks.0.fc1", (fc1,)),
        ("model.blocks.0", (last,)),
        ("model.blocks.0.fc1-broadcast_add-38", (fc1,)),
        ("grad *.fc1.weight", (gradient,)),
        (
            "*fc1*",
            ("model.blocks.0.fc1.weight", "model.blocks.0.fc1.bias"),
        ),  # parameters come first
    ):
        assert [found.tensor for found in matched(program, pattern)] == list(tensors), pattern


def drawn(rng: np.random.Generator, mesh: Mesh) -> tuple[str, Callable[[NdSbp], bool]]:
    """Return a text for random states of a mesh, and what it means, said without it."""
    rows = [", ".join(row) for row in product(ENTRIES, repeat=mesh.ndim)]
    some = {f"({row})" for row in rng.choice(rows, rng.integers(1, len(rows)), replace=False)}
    others, entry = bool(rng.random() < 0.3), str(rng.choice(ENTRIES))
    if rng.random() < 0.3:
        text = f"{'!' * others}gpu: {entry}"
        return text, lambda state: (str(state[-1]) == entry) != others
    return "!" * others + "|".join(some), lambda state: (str(state) in some) != others


def allowed(free: CostNetwork, pins: Mapping[str, Callable[[NdSbp], bool]]) -> Iterator[np.ndarray]:
    """Yield which choices of each variable of the free problem some pinned tensors leave."""
    variables, program = free.variables, free.program
    for number, every in enumerate(everything(free)):
        name, domain = variables.name[number], variables.of(number)
        kind = variables.kinds[variables.kind[number]]
        made = {} if kind == "output" else {name: TENSOR}  # which reads what it is named after
        if kind == "op":
            made = {t: o for o, t in program.op[name].outputs}
        own = {made[tensor]: fits for tensor, fits in pins.items() if tensor in made}
        choices = [all(f(domain.choices[n][o]) for o, f in own.items()) for n in every.tolist()]
        yield every[choices]


@pytest.mark.parametrize("seed", range(NETWORKS))
def test_the_best_pinned_plan_is_that_of_all_assignments(seed: int) -> None:
    """The exact search of the pinned problem, against all assignments of the free one that fit."""
    rng = np.random.default_rng(seed)
    mesh = Mesh.parse(("2", "4")[seed % 2])
    sizes = tuple(int(2 ** rng.integers(2, 9)) for _ in range(3))
    program = mlp(sizes[0], sizes[1:], optimizer="sgd", act="", bias=False)
    patterns = {"input.0.0": "input.0.0", "input.0.1": "input.0.1", **targets(program)}
    texts, pins = {}, {}
    for pattern in rng.choice(list(patterns), 3, replace=False).tolist():
        texts[pattern], pins[patterns[pattern]] = drawn(rng, mesh)
    free = builder.build(program, mesh, PROFILE)
    domains = list(allowed(free, pins))
    if not all(map(len, domains)):
        with pytest.raises(AutoDDLError, match="without a choice; the nearest is"):
            builder.build(program, mesh, PROFILE, pin=texts)
        return
    found = exact.search(builder.build(program, mesh, PROFILE, pin=texts))
    start = SearchOptions(starts=(found.assignment,))
    best = exhaustive.search(restricted(free, domains), start, limit=20_000_000)
    assert found.cost_s == pytest.approx(best.cost_s, rel=1e-9)


def targets(program: Program) -> dict[str, str]:
    """Return a pattern of each kind with the tensor that it means."""
    (weight,) = program.parameters
    result = next(op for op in program.ops if op.module == "model.fc1").outputs[0][1]
    loss = next(op for op in program.ops if op.outputs[0][1] == program.outputs[0])
    return {
        weight.tensor: weight.tensor, "*.fc1": result, f"grad {weight.tensor}": weight.gradient or "",
        loss.name: loss.outputs[0][1],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("pin", "words"),
    [
        ({"*.fcx": "B"}, "pin '*.fcx': matches no parameter, input, module or op; nearest are"),
        ({"grad input.0.0": "B"}, "matches no parameter with a gradient; nearest are 'model.fc"),
        (
            {"*.fc1": "S1", "model.fc1-*add*": "!S1"},
            "pin '*.fc1': S1 and pin 'model.fc1-*add*': !S1 contradict each other, and leave op "
            "model.fc1-broadcast_add-1 without a choice; the nearest is x_0 (B, B)",
        ),
        ({"*.fc1": "!B|S0|S1|P"}, "pin '*.fc1': !B|S0|S1|P leaves op model.fc1-broadcast_add-1"),
        ({"*.fc1": "S7"}, "pin '*.fc1': S7 leaves op model.fc1-broadcast_add-1 without a choice"),
        ({"*.fc1": "rack: S0"}, "no level 'rack'; the mesh has node, gpu"),
        ({"*.fc1": "node: S0,B"}, "got 'S0,B' for level node; give one entry"),
        ({"*.fc1": "S0|"}, "state '': S, B or P expected"),
    ],
)
def test_pins_that_leave_nothing(pin: Mapping[str, str], words: str) -> None:
    with pytest.raises(AutoDDLError) as caught:
        builder.build(mlp(act=""), Mesh.parse("2x2"), PROFILE, pin=pin)
    assert words in str(caught.value) and str(caught.value).isprintable()


@pytest.mark.parametrize("layer", [0, 1])
def test_a_pinned_op_is_not_taken_for_one_of_the_same_kind(layer: int) -> None:
    built = builder.build(
        transformer(layers=2), Mesh.parse("2"), PROFILE, pin={f"model.blocks.{layer}.fc1": "S2"}
    )
    made = {}
    for number, name in enumerate(built.variables.name):
        if "fc1-broadcast_add-" in name:
            made[name[13]] = {str(c["z_0"]) for c in built.variables.of(number).choices}
    assert made[str(layer)] == {"(S2)"} < made[str(1 - layer)]
