"""Baselines: their communication in elements against closed forms (docs/formulas.md), and their states.

Seconds are elements that each device receives: the profile has α = 0 and β = 1 for every collective.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from math import prod

import numpy as np
import pytest

from autoddl.api import optimize
from autoddl.errors import AutoDDLError
from autoddl.perfmodel.topology import Crossing
from autoddl.sbp.layers import linear_layers
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.state import B, NdSbp, S
from autoddl.search.baselines import BASELINES, assignments
from autoddl.search.baselines.flow import flow, network
from autoddl.search.baselines.held_states import best
from autoddl.search.baselines.megatron import tensor_parallel
from autoddl.search.network.cost_network import GRADIENT, TENSOR, CostNetwork
from autoddl.search.result import Assignment
from experiments.lib import oneflow_problems as builder
from tests.search.objects import edges_of, nodes_of
from tests.support import programs
from tests.support.clusters import cluster, counting
from tests.support.programs import Builder, mlp, transformer
from tests.support.zoo import experts, separate_attention

FEW = 20.0  # elements: the losses, which are scalars


def problem(program: Program, mesh: str) -> CostNetwork:
    return builder.build(program, Mesh.parse(mesh, ("gpu",)), counting())


def made(p: CostNetwork, name: str) -> Assignment:
    assignment = BASELINES[name](p)
    assert assignment is not None
    return assignment


def states_of(p: CostNetwork, assignment: Assignment) -> dict[str, NdSbp]:
    return {
        node.name: node.choices[choice][TENSOR]
        for node, choice in zip(nodes_of(p), assignment, strict=True)
        if node.kind in ("input", "parameter")
    }


def elements_by_tensor(p: CostNetwork, assignment: Assignment) -> dict[str, float]:
    found = {edge.tensor: edge.seconds(assignment) for edge in edges_of(p)}
    return {name: seconds for name, seconds in found.items() if seconds > 1e-9}


def parameters(p: CostNetwork) -> dict[str, int]:
    return {q.tensor: p.program.tensor[q.tensor].elements for q in p.program.parameters}


def gradients(p: CostNetwork) -> dict[str, str]:
    return {q.tensor: q.gradient or "" for q in p.program.parameters}


# Data parallelism, and ZeRO


def test_data_parallel_cuts_the_batch_and_nothing_else() -> None:
    p = problem(transformer(), "2x2")
    for name, state in states_of(p, made(p, "data parallel")).items():
        assert state == ((S(0), S(0)) if name in p.program.inputs else (B, B)), name


def test_data_parallel_leaves_out_an_axis_that_does_not_divide() -> None:
    p = problem(mlp(batch=6), "2x2")
    states = states_of(p, made(p, "data parallel"))
    assert all(states[name] == (S(0), B) for name in p.program.inputs)


@pytest.mark.parametrize(("mesh", "devices"), [("4", 4), ("2x2", 4), ("2x4", 8)])
def test_data_parallel_reduces_every_gradient_once(mesh: str, devices: int) -> None:
    p = problem(transformer(layers=2), mesh)
    point = made(p, "data parallel")
    expected = 2 * (devices - 1) / devices * sum(parameters(p).values())
    assert expected <= p.communication_s(point) <= expected + FEW


def test_data_parallel_pays_latency_and_bandwidth_of_its_links() -> None:
    profile = cluster()
    p = builder.build(mlp(batch=64, sizes=(64, 128, 32)), Mesh.parse("4"), profile)
    link, overhead = profile.link("all_reduce", Crossing("gpu", 4)), profile.device.op_overhead_s
    seconds = elements_by_tensor(p, made(p, "data parallel"))
    for name, gradient in gradients(p).items():
        if name.endswith("weight"):
            size = p.program.tensor[name].size_bytes
            expected = overhead + 6 * (link.alpha_s + size / 4 * link.beta_s_per_byte)
            assert name not in seconds and seconds[gradient] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("mesh", "devices"), [("4", 4), ("2x2", 4), ("2x4", 8)])
def test_zero_gathers_parameters_and_scatters_gradients(mesh: str, devices: int) -> None:
    p = problem(mlp(batch=64, sizes=(64, 128, 32), optimizer="adam"), mesh)
    point = made(p, "ZeRO 2")
    seconds = elements_by_tensor(p, point)
    for name, size in parameters(p).items():
        part = (devices - 1) / devices * size
        assert seconds[name] == pytest.approx(part), f"all-gather of {name}"
        assert seconds[gradients(p)[name]] == pytest.approx(part), f"reduce-scatter of {name}"
    whole = made(p, "data parallel")
    assert p.communication_s(point) == pytest.approx(p.communication_s(whole))


def test_zero_holds_a_share_of_parameters_and_optimizer_states() -> None:
    p = problem(mlp(batch=64, sizes=(64, 128, 32), optimizer="adam"), "2x4")
    bytes_ = {}
    for name in ("data parallel", "ZeRO 2"):
        pairs = zip(nodes_of(p), made(p, name), strict=True)
        bytes_[name] = sum(int(n.memory_bytes[c]) for n, c in pairs if n.kind == "parameter")
    assert bytes_["data parallel"] == 3 * 4 * sum(parameters(p).values())
    assert bytes_["ZeRO 2"] * 8 == bytes_["data parallel"]


def test_zero_cuts_what_the_devices_divide() -> None:
    p = problem(mlp(batch=8, sizes=(8, 6, 16, 5)), "2x2")
    states = {n: s for n, s in states_of(p, made(p, "ZeRO 2")).items() if n.startswith("model")}
    assert states == {
        "model.fc1.weight": (S(1), S(1)),  # (6, 8)
        "model.fc1.bias": (S(0), B),  # (6,): one axis at least
        "model.fc2.weight": (S(0), S(0)),  # (16, 6)
        "model.fc2.bias": (S(0), S(0)),
        "model.fc3.weight": (S(1), S(1)),  # (5, 16)
        "model.fc3.bias": (B, B),  # (5,)
    }


def test_hybrid_zero_keeps_copies_along_one_axis() -> None:
    """All-gather and reduce-scatter over q devices, all-reduce of a shard over the p/q copies."""
    p = problem(mlp(batch=64, sizes=(64, 128, 32), bias=False), "2x4")
    point = made(p, "hybrid ZeRO 2")
    states, seconds = states_of(p, point), elements_by_tensor(p, point)
    (cut,) = {tuple(s != B for s in states[name]) for name in parameters(p)}
    assert sum(cut) == 1
    q = 2 if cut[0] else 4
    copies = 8 // q
    for name, size in parameters(p).items():
        scatter = (q - 1) / q * size
        reduce = 2 * (copies - 1) / copies * size / q
        assert seconds[name] == pytest.approx(scatter)
        assert seconds[gradients(p)[name]] == pytest.approx(scatter + reduce)


# Megatron


@pytest.mark.parametrize("devices", [2, 4])
def test_megatron_reduces_twice_forward_and_twice_backward_in_a_block(devices: int) -> None:
    batch, length, width = 8, 64, 32
    volumes = []
    for layers in (2, 3):
        program = transformer(layers, batch, length, width, optimizer="sgd")
        p = problem(program, str(devices))
        volumes.append(p.communication_s(made(p, "Megatron")))
    activations = batch * length * width
    expected = 4 * 2 * (devices - 1) / devices * activations
    # Where norms share the sequence their parameters' gradients are partial: at most 6 vectors.
    assert 0 <= volumes[1] - volumes[0] - expected <= 6 * 2 * width


def test_megatron_alternates_columns_and_rows() -> None:
    p = builder.build(transformer(width=64, heads=4), Mesh.parse("2x4"), cluster())
    states = states_of(p, made(p, "Megatron"))
    weights = {n: s for n, s in states.items() if n.endswith("weight") and "blocks" in n}
    cut = {n: {x.dim for x in s if x.is_split} for n, s in weights.items() if set(s) != {B}}
    assert len(cut) == 4
    for name, dims in cut.items():
        assert dims == ({0} if "qkv" in name or "fc1" in name else {1}), name


def test_tensor_parallelism_is_held_to_its_axis() -> None:
    """Weights of pairs are cut on that axis alone, whatever else would be cheaper."""
    p = builder.build(transformer(width=64, heads=4), Mesh.parse("2x4"), cluster())
    for axis in (0, 1):
        found = best(p, family=partial(tensor_parallel, choices=((axis,),)))
        assert found is not None
        states = states_of(p, found)
        cut = [
            s for n, s in states.items() if "blocks" in n and n.endswith("weight") and set(s) != {B}
        ]
        assert len(cut) == 4 and all(s[axis] != B and s[1 - axis] == B for s in cut)


def test_megatron_cuts_query_key_and_value_by_columns() -> None:
    """Three layers read one tensor: turns in the order of the forward pass would cut keys by rows."""
    p = problem(separate_attention(), "2")
    states = states_of(p, made(p, "Megatron"))
    dims = {n.split(".")[1]: s[0] for n, s in states.items() if n.endswith("weight")}
    assert dims == {"query": S(0), "key": S(0), "value": S(0), "output": S(1), "gate": B}


def test_megatron_takes_turns_where_equal_layers_do_not_hold_pairs() -> None:
    """A chain of eight equal layers: every second one is by rows, though all look the same."""
    g = Builder()
    x, target = g.input((64, 16)), g.input((64, 16))
    with g.module("model"):
        for number in range(8):
            with g.module(str(number)):
                x = programs.linear(g, x, 16, bias=False)
    p = problem(g.program(programs.mse(g, x, target), "sgd"), "2")
    states = states_of(p, made(p, "Megatron"))
    cut = [states[f"model.{number}.weight"][0] for number in range(8)]
    assert cut == [S(0), S(1)] * 4


# Where features are cut


def cut_by(program: Program, columns: frozenset[str]) -> tuple[set[str], set[str]]:
    """Return layers with cut inputs, and those whose cut outputs end there: by sets, op by op."""
    layers = {layer.op.name: layer for layer in linear_layers(program)}
    by: dict[str, frozenset[str]] = {}
    rows, closed = set[str](), set[str]()
    for op in program.ops:
        tensors = [program.tensor[t] for _, t in op.inputs]
        behind = any(t.name in by or t.role == "parameter" for t in tensors)
        if op.phase != "forward" or not behind:
            continue
        made = frozenset[str]().union(*[by.get(t.name, ()) for t in tensors])
        if op.name in layers:
            before = by.get(dict(op.inputs)[layers[op.name].x], frozenset())
            made = frozenset({op.name} & columns) if not before else frozenset()
            rows |= {op.name} if before else set()
            closed |= before
        else:
            whole = [t.elements for t in tensors if t.name in by and not by[t.name]]
            sizes = [program.tensor[t].elements for _, t in op.outputs]
            if set(whole) & set(sizes):
                made = frozenset()
        by |= {tensor: made for _, tensor in op.outputs}
    return rows, closed


@pytest.mark.parametrize("program", [transformer(layers=3), separate_attention(), mlp()])
def test_features_are_cut_by_the_layers_that_sets_of_them_tell(program: Program) -> None:
    layers = [layer.op.name for layer in linear_layers(program)]
    number, net = program.columns.place, network(program, linear_layers(program))
    rng = np.random.default_rng(0)
    seen = set()
    for part in (1.0, 0.8, 0.6, 0.4, 0.2):
        columns = np.zeros(len(program.ops), dtype=np.int64)
        chosen = frozenset(name for name in layers if rng.random() < part)
        columns[[number[name] for name in chosen]] = 1
        found = tuple({program.ops[i].name for i in np.flatnonzero(a)} for a in flow(net, columns))
        assert found == cut_by(program, chosen)
        seen.add(len(found[1]))
    assert len(seen) > 1


# SUMMA


def test_summa_gathers_along_rows_and_columns() -> None:
    """On r×c devices: X along c and W along r, their gradients scattered likewise (docs/formulas.md)."""
    tokens, sizes, r, c = 64, (16, 32, 8), 2, 4
    p = problem(mlp(tokens, sizes, bias=False, act=""), "2x4")
    volumes = {}
    for rows, columns in ((r, c), (c, r)):
        total = 0.0
        for number, (k, n) in enumerate(pairwise(sizes)):
            x = (columns - 1) / columns * tokens * k / rows
            w = (rows - 1) / rows * k * n / columns
            total += (1 if number == 0 else 2) * x + 2 * w  # no gradient of the input
        volumes[rows] = total
    point = made(p, "SUMMA")
    assert min(volumes.values()) <= p.communication_s(point) <= min(volumes.values()) + FEW
    batch_axis = 0 if volumes[r] < volumes[c] else 1
    weight = states_of(p, point)["model.fc1.weight"]  # (out, in)
    assert weight == NdSbp(S(1) if axis == batch_axis else S(0) for axis in range(2))


def test_summa_keeps_activations_cut_in_batch_and_features() -> None:
    p = problem(transformer(layers=2, length=16), "2x2")
    point = made(p, "SUMMA")
    shapes = {p.program.shapes(a.op)[a.x] for a in linear_layers(p.program)}
    whole_features = ("var", "broadcast_matmul", "broadcast_matmul_grad_b")
    seen = 0
    for node, choice in zip(nodes_of(p), point, strict=True):
        if node.kind != "op" or p.program.op[node.name].type in whole_features:
            continue
        for operand, shape in p.program.shapes(p.program.op[node.name]).items():
            if shape in shapes and len(shape) == 3:
                seen += 1
                assert {s.dim for s in node.choices[choice][operand]} == {0, 2}, node.name
    assert seen > 100


# Expert parallelism


def test_experts_send_tokens_there_and_back() -> None:
    """Four all-to-alls of the device's tokens; gradients of experts stay (GShard §3.2)."""
    groups, count, slots, width, hidden, devices = 8, 4, 2, 16, 64, 4
    p = problem(experts(groups, count, slots, width, hidden), "4")
    point = made(p, "expert parallel")
    states = states_of(p, point)
    assert states["model.experts.up"] == states["model.experts.down"] == (S(0),)
    assert states["model.embed.weight"] == (B,) and states["input.0.0"] == (S(0),)
    share = (devices - 1) / devices
    tokens = groups * count * slots * width / devices
    expected = 4 * share * tokens + 2 * share * 2 * width**2  # and the two linear layers
    assert expected <= p.communication_s(point) <= expected + FEW


def test_axes_that_do_not_divide_the_experts_cut_their_tokens() -> None:
    p = problem(experts(groups=8, count=2, slots=2, width=16, hidden=64), "2x2")
    states = states_of(p, made(p, "expert parallel"))
    assert sorted(map(str, states["model.experts.up"])) == ["B", "S0"]
    for node, choice in zip(nodes_of(p), made(p, "expert parallel"), strict=True):
        if node.kind == "op" and p.program.op[node.name].type == "relu":
            assert {s.dim for s in node.choices[choice]["x_0"]} == {0, 1}


# Whether a baseline applies


@pytest.mark.parametrize(
    ("program", "mesh", "missing"),
    [
        (mlp(), "4", {"hybrid ZeRO 2", "SUMMA", "expert parallel"}),
        (mlp(), "2x2", {"expert parallel"}),
        (experts(8, 3, 2, 16, 64), "2x4", {"expert parallel"}),
        (experts(8, 4, 2, 16, 64), "2x4", set()),
        (mlp(), "1", set(BASELINES) - {"data parallel"}),
    ],
)
def test_what_does_not_apply_is_left_out(program: Program, mesh: str, missing: set[str]) -> None:
    p = problem(program, mesh)
    found = assignments(p)
    assert set(BASELINES) - set(found) == missing
    for name, baseline in BASELINES.items():
        assert baseline(p) == found.get(name), name


def test_a_baseline_that_does_not_apply_is_no_plan() -> None:
    with pytest.raises(
        AutoDDLError, match=r"'expert parallel' does not apply .* weights \(experts"
    ):
        optimize(mlp(), mesh="2x2", search="expert parallel")
    plan = optimize(mlp(), mesh="2x2", search="SUMMA")
    assert [b.name for b in plan.baselines] == [n for n in BASELINES if n != "expert parallel"]


def test_a_users_pin_stays() -> None:
    pinned = builder.build(
        mlp(), Mesh.parse("2x2", ("gpu",)), counting(), pin={"*fc1.weight": "S1,B"}
    )
    for name, assignment in assignments(pinned).items():
        assert states_of(pinned, assignment)["model.fc1.weight"] == (S(1), B), name


def test_parameters_and_their_gradients_have_the_states_that_are_said() -> None:
    p = problem(transformer(layers=2), "2x2")
    for name, assignment in assignments(p).items():
        for node, choice in zip(nodes_of(p), assignment, strict=True):
            if node.kind == "parameter" and name == "ZeRO 2":
                assert node.choices[choice][GRADIENT] == node.choices[choice][TENSOR]
                size = prod(p.program.tensor[node.name].shape)
                assert int(node.memory_bytes[choice]) == 3 * size  # Adam, a quarter of 3 × 4 B
