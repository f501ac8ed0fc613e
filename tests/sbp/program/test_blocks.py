"""Blocks of a program: against plain dicts of names, layer by layer."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoddl.sbp.program import Op, Parameter, Program, Tensor
from autoddl.sbp.program.blocks import (
    PERIODS,
    Repeat,
    is_layer,
    layer_path,
    numbered,
    pattern,
    repeats,
)
from tests.support.layers import equal_runs
from tests.support.programs import (
    Builder,
    activation,
    layer_norm,
    linear,
    mlp,
    mse,
    residual,
    transformer,
)
from tests.support.zoo import ZOO

Item = tuple[object, ...]


def taking_turns(layers: str, *, optimizer: str = "adam") -> Program:
    """Return a step of layers of three sorts: a linear one, a norm, and one with a residual."""
    g = Builder()
    x, target = g.input((4, 8)), g.input((4, 8))
    with g.module("model"):
        with g.module(
            "embed"
        ):  # before it no gradients are wanted, so a first layer would have fewer ops
            x = linear(g, x, 8)
        for number, sort in enumerate(layers):
            with g.module(f"layers.{number}"):
                if sort == "a":
                    x = linear(g, x, 8)
                elif sort == "b":
                    x = layer_norm(g, x)
                else:
                    with g.module("inner.0"):
                        y = activation(g, linear(g, x, 8), "gelu")
                    x = residual(g, x, y)
    return g.program(mse(g, x, target), optimizer)


def two_stacks() -> Program:
    """Return a step of two stacks, of which one begins with layer 3, around a module without number."""
    g = Builder()
    x, target = g.input((4, 8)), g.input((4, 8))
    for stack, numbers in (("first", range(3)), ("second", range(3, 5))):
        for number in numbers:
            with g.module(f"{stack}.{number}"):
                x = linear(g, x, 8)
        with g.module("between"):
            x = linear(g, x, 8)
    return g.program(mse(g, x, target), "sgd")


PROGRAMS: Mapping[str, Callable[[], Program]] = {
    **ZOO,
    "gpt with 6 blocks": lambda: transformer(layers=6, optimizer="sgd"),
    "a b a b a b": lambda: taking_turns("ababab"),
    "a b c a b c c": lambda: taking_turns("abcabcc"),
    "all different": lambda: taking_turns("abc"),
    "c c c a a": lambda: taking_turns("cccaa", optimizer="momentum"),
    "two stacks": two_stacks,
}


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> Program:
    return PROGRAMS[request.param]()


def path_of(program: Program, op: Op) -> str:
    """Return the path by which an op lies in a layer."""
    updated = {p.update: p.tensor for p in program.parameters}
    return updated.get(op.name, op.module)


def layers_of(program: Program) -> dict[str, dict[int, dict[Item, tuple[str, object]]]]:
    """Return stack → layer → position → (name, what it looks like), with regular expressions."""
    found: dict[str, dict[int, dict[Item, tuple[str, object]]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    turns: Counter[Item] = Counter()

    def add(path: str, key: Item, name: str, look: object) -> None:
        match = re.fullmatch(r"(?:(.*?)\.)?(\d+)(?:\.(.*))?", path)
        if match is not None:
            turn = turns[path, key]
            turns[path, key] += 1
            found[match[1] or ""][int(match[2])][(match[3], *key, turn)] = name, look

    def form(name: str) -> object:
        tensor = program.tensor[name]
        return tensor.shape, tensor.dtype, tensor.role

    for op in program.ops:
        operands = [
            (o, form(t)[:2])  # type: ignore[index]
            for o, t in op.operands
        ]
        look = op.type, repr(op.attrs), len(op.inputs), operands
        add(path_of(program, op), ("op", op.type, op.phase), op.name, look)
        for number, (_, tensor) in enumerate(op.outputs):
            key = "result", op.type, op.phase, number
            add(path_of(program, op), key, tensor, form(tensor))
    for parameter in program.parameters:
        for name in (parameter.tensor, *parameter.states):
            add(name, ("variable",), name, form(name))
    return found


def looks(layers: Mapping[int, Mapping[Item, tuple[str, object]]]) -> dict[int, object]:
    return {
        number: frozenset((key, repr(look)) for key, (_, look) in items.items())
        for number, items in layers.items()
    }


def best_repeats(looks: Mapping[int, object], least: int = 2) -> list[Repeat]:
    """Try all periods and counts that there are, and test each layer by itself."""
    found, layer = [], 0
    while layer <= max(looks, default=-1):
        fitting = [
            Repeat(layer, period, count)
            for period in PERIODS
            for count in range(least, len(looks) + 1)
            if all(
                k + layer in looks and looks[layer + k] == looks[layer + k % period]
                for k in range(period * count)
            )
        ]
        if fitting:
            best = max(fitting, key=lambda r: ((r.count - least + 1) * r.period, -r.period))
            found.append(best)
        layer = (fitting and found[-1].layers.stop) or layer + 1
    return found


def test_runs_are_those_of_plain_search(program: Program) -> None:
    blocks = program.blocks
    expected = {
        (stack, repeat)
        for stack, layers in layers_of(program).items()
        for repeat in best_repeats(looks(layers))
    }
    assert {(blocks.stacks[run.stack], run.repeat) for run in equal_runs(blocks)} == expected


def test_places_are_those_of_the_names(program: Program) -> None:
    blocks, columns = program.blocks, program.columns
    seen = set()
    by_position: dict[object, set[object]] = defaultdict(set)
    for stack, layers in layers_of(program).items():
        for layer, items in layers.items():
            for key, (name, _) in items.items():
                sort = "op" if key[1] == "op" else "tensor"
                places = blocks.ops if sort == "op" else blocks.tensors
                number = (columns.place if sort == "op" else columns.number)[name]
                assert blocks.stacks[places.stack[number]] == stack
                assert places.layer[number] == layer
                by_position[sort, int(places.position[number])].add(key)
                seen.add((sort, number))
    assert all(len(keys) == 1 for keys in by_position.values())
    assert len({(s, *k) for (s, _), keys in by_position.items() for k in keys}) == len(by_position)
    for sort, places in (("op", blocks.ops), ("tensor", blocks.tensors)):
        for number in range(len(places.stack)):
            if (sort, number) not in seen:
                assert places.stack[number] == places.layer[number] == places.position[number] == -1


def test_counterparts_in_the_first_period_are_those_of_the_names(program: Program) -> None:
    blocks, columns = program.blocks, program.columns
    ops, tensors = dict[str, str](), dict[str, str]()
    for layers in layers_of(program).values():
        for run in best_repeats(looks(layers)):
            for layer in run.layers:
                first = layers[run.start + (layer - run.start) % run.period]
                for key, (name, _) in layers[layer].items():
                    (ops if key[1] == "op" else tensors)[name] = first[key][0]
    named = (
        (blocks.ops, columns.place, list(columns.place), ops),
        (blocks.tensors, columns.number, list(columns.number), tensors),
    )
    for places, number, names, expected in named:
        found = dict[str, str]()
        for run in equal_runs(blocks):
            inside = np.isin(places.layer, run.repeat.layers) & (places.stack == run.stack)
            items = np.flatnonzero(inside)
            layer = [run.repeat.of_period(0, n) for n in places.layer[items].tolist()]
            first = places.counterparts(items, np.array(layer, dtype=np.int64))
            found |= zip([names[i] for i in items], [names[i] for i in first], strict=True)
        assert found == expected
        if places is blocks.ops:
            pairs = [(number[a], number[b]) for a, b in found.items()]
            assert all(columns.kind[a] == columns.kind[b] for a, b in pairs)


def test_a_gpt_is_one_run() -> None:
    blocks = transformer(layers=6).blocks
    ((stack, repeat),) = equal_runs(blocks)
    assert blocks.stacks[stack] == "model.blocks"
    assert repeat == Repeat(0, 1, 6)
    assert list(repeat.layers) == [0, 1, 2, 3, 4, 5]


def test_layers_that_take_turns() -> None:
    assert [run.repeat for run in equal_runs(taking_turns("ababab").blocks)] == [Repeat(0, 2, 3)]
    assert [run.repeat for run in equal_runs(taking_turns("abcabcc").blocks)] == [Repeat(0, 3, 2)]
    runs = equal_runs(taking_turns("cccaa").blocks)
    assert [run.repeat for run in runs] == [Repeat(0, 1, 3), Repeat(3, 1, 2)]
    assert [Repeat(4, 3, 2).of_period(1, layer) for layer in range(4, 10)] == [7, 8, 9, 7, 8, 9]


def test_own_labels_split_runs_and_leave_items_out() -> None:
    """As a search does that pins the states of one layer, or looks at parameters only."""
    program = transformer(layers=6)
    blocks, columns = program.blocks, program.columns
    pinned = columns.kind.copy()
    pinned[[i for i, op in enumerate(program.ops) if op.module.startswith("model.blocks.2.")]] += (
        1 + pinned.max()
    )
    repeat = [run.repeat for run in blocks.runs_of(pinned, columns.form)]
    assert repeat == [Repeat(0, 1, 2), Repeat(3, 1, 3)]
    assert blocks.runs_of(pinned, columns.form, least=4) == ()
    nothing = np.full_like(pinned, -1)
    assert [run.repeat for run in blocks.runs_of(nothing, columns.form)] == [Repeat(0, 1, 6)]
    assert blocks.runs_of(nothing, np.full_like(columns.form, -1)) == ()


def test_counterparts() -> None:
    blocks = (program := transformer(layers=3)).blocks
    number = program.columns.number
    names = ["model.blocks.1.fc1.weight", "model.blocks.1.ln1.bias"]
    found = blocks.tensors.counterparts(
        np.array([number[name] for name in names]), np.array([2, 3])
    )
    assert found.tolist() == [number["model.blocks.2.fc1.weight"], -1]
    outside = np.array([number["model.head.weight"]])
    assert blocks.tensors.counterparts(outside, np.array([0])).tolist() == [-1]


def test_a_frozen_parameter_makes_its_layer_another() -> None:
    program = transformer(layers=4, optimizer="sgd")
    name = "model.blocks.1.fc1.weight"
    other = [
        replace(p, gradient=None, update=None) if p.tensor == name else p
        for p in program.parameters
    ]
    updates = {p.update for p in program.parameters if p.tensor == name}
    ops = tuple(op for op in program.ops if op.name not in updates)
    frozen = replace(program, ops=ops, parameters=tuple(other))
    assert [run.repeat for run in equal_runs(frozen.blocks)] == [Repeat(2, 1, 2)]


@given(st.lists(st.integers(0, 2), max_size=14), st.integers(2, 4), st.sets(st.integers(0, 13)))
def test_repeats_of_any_layers(layers: list[int], least: int, lacking: set[int]) -> None:
    looks = {n: look for n, look in enumerate(layers) if n not in lacking}
    assert repeats(looks, least=least) == best_repeats(looks, least)


@pytest.mark.parametrize(
    ("path", "found", "starred", "layer"),
    [
        ("model.blocks.3.fc1", ("model.blocks", 3, "fc1"), "model.blocks.*.fc1", "model.blocks.3"),
        ("0.weight", ("", 0, "weight"), "*.weight", "0"),
        ("a.1.b.2", ("a", 1, "b.2"), "a.*.b.*", "a.1"),
        ("a.12", ("a", 12, ""), "a.*", "a.12"),
        ("model.fc1", None, "model.fc1", "model.fc1"),
        ("a.07.b", None, "a.07.b", "a.07.b"),
        ("a.²", None, "a.²", "a.²"),
        ("a.9999999999", None, "a.9999999999", "a.9999999999"),
        ("", None, "", ""),
    ],
)
def test_paths(path: str, found: object, starred: str, layer: str) -> None:
    assert numbered(path) == found
    assert pattern(path) == starred
    assert layer_path(path) == layer
    assert is_layer(path) == (found is not None and starred.endswith("*"))


def test_programs_without_layers_or_without_ops() -> None:
    x = Tensor("x", (2,), "float32", "input")
    empty = Program((), (x,), ("x",), ("x",), (), None)
    for program in (empty, mlp()):
        assert equal_runs(program.blocks) == ()
        assert program.blocks.ops.items.tolist() == []
    odd = replace(empty, tensors=(x, Tensor("m.999999999.w", (2,), "float32", "parameter")),
                  parameters=(Parameter("m.999999999.w"),))  # fmt: skip
    assert odd.blocks.tensors.layer.tolist() == [-1, 999999999]
    assert equal_runs(odd.blocks) == ()


def test_layers_of_variables_alone_differ_by_shape_and_role() -> None:
    def held(*shapes: tuple[int, ...], role: str = "parameter") -> list[Repeat]:
        tensors = [Tensor(f"m.{n}.w", shape, "float32", role) for n, shape in enumerate(shapes)]
        tensors.append(Tensor("m.3.w", (2,), "float32", "buffer"))
        parameters = tuple(Parameter(tensor.name) for tensor in tensors)
        program = Program((), tuple(tensors), (), (), parameters, None)
        return [run.repeat for run in equal_runs(program.blocks)]

    assert held((2,), (2,), (3,)) == [Repeat(0, 1, 2)]
    assert held((2,), (2,), (2,)) == [Repeat(0, 1, 3)]
    assert held((2,), (2,), (2,), role="buffer") == [Repeat(0, 1, 4)]
