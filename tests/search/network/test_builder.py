"""The cost of an assignment: against a naive recomputation and against closed forms."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from autoddl.engine.model import EngineModel
from autoddl.engine.oneflow.model.engine_model import COMPUTE_STREAM, ONEFLOW
from autoddl.errors import AutoDDLError
from autoddl.perfmodel import collectives
from autoddl.perfmodel.topology import Crossing
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Op
from autoddl.sbp.rules import registry
from autoddl.sbp.rules.registry import OpView, Signature, find, is_built_in
from autoddl.sbp.shards import local_shape
from autoddl.sbp.state import B, NdSbp, P, S, broadcast
from autoddl.search.heuristics import cells
from autoddl.search.network.choices import SignatureLists, choices
from autoddl.search.network.cost_network import TENSOR, CostNetwork
from autoddl.search.network.evaluator import block_of
from autoddl.search.reductions.restriction import restricted
from autoddl.search.reductions.retabulated import on_streams
from autoddl.search.rivals.random_sampling import random_assignment
from experiments.lib import oneflow_problems as builder
from experiments.lib.oneflow_problems import redistributor, setting
from tests.search.objects import edges_of, nodes_of
from tests.support.clusters import cluster
from tests.support.programs import mlp, transformer

PROFILE = cluster()


def naive_cost(p: CostNetwork, assignment: tuple[int, ...]) -> float:
    """Add up ops and tensors straight from the program and the states, with nothing shared."""
    program, mesh, device = p.program, p.mesh, p.profile.device
    states: dict[tuple[str, str], NdSbp] = {}
    home: dict[str, NdSbp] = {}
    for node, choice in zip(nodes_of(p), assignment, strict=True):
        chosen = node.choices[choice]
        if node.kind == "op":
            states |= {(node.name, operand): state for operand, state in chosen.items()}
        elif node.kind != "output":
            home[node.name] = chosen[TENSOR]
    for parameter in program.parameters:
        update = program.op[parameter.update]
        follows = {parameter.tensor, parameter.gradient, *parameter.states}
        for operand, tensor in update.inputs:
            own = tensor in follows
            states[update.name, operand] = home[parameter.tensor] if own else broadcast(mesh.ndim)
    total = 0.0
    wanted: dict[str, set[NdSbp]] = {}
    skip = {p.tensor for p in program.parameters} | {
        s for p in program.parameters for s in p.states
    }
    for op in program.ops:
        shapes, moved = {}, 0
        for operand, tensor in op.operands:
            t = program.tensor[tensor]
            shape = local_shape(t.shape, states[op.name, operand], mesh.shape)
            assert shape is not None
            shapes[operand] = shape
            moved += int(np.prod(shape, dtype=int)) * t.item_bytes
            is_input = operand in dict(op.inputs)
            if is_input and not (op.type.endswith("_update") and tensor in skip):
                wanted.setdefault(tensor, set()).add(states[op.name, operand])
            if not is_input:
                home[tensor] = states[op.name, operand]
        rule = find(op.type)
        assert rule is not None
        overhead_s, rate, bandwidth = device.op_overhead_s, 1e12, device.memory_bytes_per_s
        kernel = device.kernels.get(op.type, device.kernels.get(rule.family))
        if kernel is not None:
            overhead_s, bandwidth = kernel.overhead_s, kernel.bytes_per_s
            rate = kernel.flops_per_s["float32"]
        flops = rule.flops(OpView.of(op, shapes))
        total += overhead_s + max(flops / rate, moved / bandwidth)
    for tensor in program.outputs:
        wanted.setdefault(tensor, set()).add(broadcast(mesh.ndim))
    prices = redistributor(mesh, p.profile)
    for tensor, goals in wanted.items():
        if tensor in home:
            t = program.tensor[tensor]
            table = prices.table(t.shape, t.item_bytes)
            total += sum(table.cost[table.index[home[tensor]], table.index[g]] for g in goals)
    return total


@pytest.mark.parametrize("mesh", ["4", "2x2", "2x4"])
@pytest.mark.parametrize("make", [mlp, transformer])
def test_cost_is_the_naive_sum(make: object, mesh: str) -> None:
    p = builder.build(make(), Mesh.parse(mesh), PROFILE)  # type: ignore[operator]
    for seed in range(3):
        assignment = random_assignment(p, seed)
        assert p.cost_s(assignment) == pytest.approx(naive_cost(p, assignment), rel=1e-9)
        assert p.lower_bound_s() <= p.cost_s(assignment)


@pytest.mark.parametrize("mesh", ["4", "2x2"])
def test_moves_price_exactly_what_changes(mesh: str) -> None:
    p = builder.build(transformer(layers=2), Mesh.parse(mesh), PROFILE)
    found = cells.build(p)
    moves = [*found[:4], *(cells.single(p, n) for n in (0, 5, 40, 90))]
    point = np.array(random_assignment(p, 1))
    for move in moves:
        seconds, memory = block_of(p.arrays, move, point)
        for alternative in range(1, len(seconds), max(1, len(seconds) // 5)):
            first, other = point.copy(), point.copy()
            first[move.variables] = move.columns[:, 0]
            other[move.variables] = move.columns[:, alternative]
            difference = p.cost_s(other) - p.cost_s(first)
            assert seconds[alternative] - seconds[0] == pytest.approx(difference, abs=1e-12)
            bytes_ = p.memory_bytes(other) - p.memory_bytes(first)
            assert memory[alternative] - memory[0] == bytes_


def with_states(p: CostNetwork, wanted: dict[str, dict[str, NdSbp]]) -> tuple[int, ...]:
    """Return the assignment in which every node has these operand states; others as they match."""
    point = []
    for node in nodes_of(p):
        goal = wanted.get(node.name)
        matching = [
            i
            for i, c in enumerate(node.choices)
            if goal is None or all(c[o] == s for o, s in goal.items())
        ]
        assert matching, node.name
        point.append(matching[0])
    return tuple(point)


def one_axis(p: CostNetwork, name: str, **states: object) -> dict[str, dict[str, NdSbp]]:
    return {name: {operand: NdSbp((state,)) for operand, state in states.items()}}  # type: ignore[arg-type]


def test_a_parameter_cut_and_used_whole_costs_gather_and_reduce_scatter() -> None:
    """ZeRO: an all-gather of the weight, a reduce-scatter of its P gradient (docs/formulas.md)."""
    p = builder.build(mlp(batch=8, sizes=(16, 32)), Mesh.parse("4"), PROFILE)
    weight = next(q for q in p.program.parameters if q.tensor.endswith("weight"))
    edges = {edge.tensor: edge for edge in edges_of(p)}
    size = p.program.tensor[weight.tensor].size_bytes
    overhead = PROFILE.device.op_overhead_s
    for tensor, src, dst, collective in (
        (weight.tensor, S(0), B, "all_gather"),
        (weight.gradient, P, S(0), "reduce_scatter"),
        (weight.gradient, P, B, "all_reduce"),
    ):
        table = edges[tensor].table
        link = PROFILE.link(collective, Crossing("gpu", 4))
        by_hand = {"all_gather": 3, "reduce_scatter": 3, "all_reduce": 6}[collective]
        expected = by_hand * (link.alpha_s + size / 4 * link.beta_s_per_byte)
        cost = table.cost[table.index[NdSbp((src,))], table.index[NdSbp((dst,))]]
        assert cost == pytest.approx(overhead + expected, rel=1e-12)
        assert expected == pytest.approx(
            collectives.seconds(
                collective, 4, size, alpha_s=link.alpha_s, beta_s_per_byte=link.beta_s_per_byte
            )
        )


def test_two_readers_of_one_state_are_charged_once() -> None:
    p = builder.build(mlp(batch=8, sizes=(16, 32, 8)), Mesh.parse("4"), PROFILE)
    shared = next(e for e in edges_of(p) if len(e.readers) >= 2 and len(set(e.source)) > 1)
    point = list(random_assignment(p, 0))
    (one, states_one), (two, states_two) = shared.readers[:2]
    for a, b in np.ndindex(len(states_one), len(states_two)):
        point[one], point[two] = a, b
        row = shared.table.cost[shared.source[point[shared.producer]]]
        rest = {int(s[point[n]]) for n, s in shared.readers[2:]}
        goals = rest | {int(states_one[a]), int(states_two[b])}
        assert shared.seconds(point) == pytest.approx(sum(row[g] for g in goals))


def test_memory_counts_weights_with_states_gradients_and_saved_activations() -> None:
    batch, sizes = 8, (16, 32, 8)
    p = builder.build(mlp(batch, sizes, optimizer="adam"), Mesh.parse("1"), PROFILE)
    weights = sum(a * b + b for a, b in pairwise(sizes))
    inputs = batch * (sizes[0] + sizes[-1])
    # backward reads: the input of each layer, gelu's input, the difference and (as a shape) the square
    kept = p.memory_bytes([0] * len(p)) // 4 - weights * 4 - inputs
    saved = {
        t
        for op in p.program.ops
        if op.phase == "backward"
        for _, t in op.inputs
        if p.program.tensor[t].role in ("activation", "loss")
    }
    assert kept == sum(p.program.tensor[t].elements for t in saved)
    assert batch * sizes[1] * 2 <= kept  # gelu's input and output at least


def test_a_parameter_has_only_states_that_its_update_accepts() -> None:
    program = mlp(optimizer="momentum")
    ops = tuple(
        replace(op, type="lars_update") if op.type == "momentum_update" else op
        for op in program.ops
    )
    unknown = replace(program, ops=ops)
    mesh = Mesh.parse((2, 2), ("node", "device"))

    def states(built: CostNetwork) -> set[tuple[str, ...]]:
        return {
            tuple(str(choice[TENSOR]) for choice in node.choices)
            for node in nodes_of(built)
            if node.kind == "parameter"
        }

    assert states(builder.build(unknown, mesh, PROFILE)) == {("(B, B)",)}
    assert all(len(row) > 3 for row in states(builder.build(program, mesh, PROFILE)))

    def rows(op: Op, devices: int) -> tuple[Signature, ...]:
        if op.type != "lars_update":
            return ()
        cut = dict.fromkeys(("model_0", "model_diff_0", "momentum_0"), S(0))
        return ({**cut, "learning_rate_0": B},)

    listed = states(builder.build(unknown, mesh, PROFILE, lists=rows))
    assert listed == {("(B, B)", "(B, S0)", "(S0, B)", "(S0, S0)")}
    with pytest.raises(AutoDDLError, match=r"lars_update can't update it in state \(S1, B\)"):
        builder.build(unknown, mesh, PROFILE, pin={"*weight": "S1,B"})


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("P,B", "leaves model.fc1.weight without a choice; the nearest is model.fc1.weight (B, B)"),
        ("S(0,2),B", "for this engine, without strides"),
        ("S0',S0", "the nearest is model.fc1.weight (B, S0)"),
        ("S0,S0,B", "3 entries, mesh 2x2 has 2 axes"),
        ("S0,X", "S, B or P expected at 'S0, <-- HERE X'"),
        ("S0:(3,1)", "level [node 2] do not fill its axes"),
    ],
)
def test_pins_that_can_not_be(state: str, words: str) -> None:
    with pytest.raises(AutoDDLError) as caught:
        builder.build(mlp(), Mesh.parse("2x2"), PROFILE, pin={"*weight": state})
    assert "pin '*weight'" in str(caught.value) and words in str(caught.value)


def test_pins_in_device_counts() -> None:
    def weights(pin: str) -> set[str]:
        p = builder.build(mlp(), Mesh.parse("2x2"), PROFILE, pin={"*weight": pin})
        return {
            str(node.choices[0][TENSOR])
            for node in nodes_of(p)
            if node.kind == "parameter" and node.name.endswith("weight")
        }

    assert weights("S0:(1,2), B:(2,1)") == weights("B,S0") == {"(B, S0)"}


def test_of_a_users_rule_only_what_the_engine_lists_is_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    program, mesh = mlp(), Mesh.parse("2x2")
    gelu = next(op for op in program.ops if op.type == "gelu")
    refused: tuple[Signature, ...] = ({"in_0": S(1), "out_0": S(1)},)

    def states(lists: SignatureLists | None) -> set[str]:
        return {str(c["in_0"]) for c in choices(program, gelu, mesh, lists, limits=ONEFLOW.limits)}

    assert is_built_in("gelu") and "(S0, S1)" in states(None)
    rule = registry.find("gelu")
    assert rule is not None
    registry.register(replace(rule, notes="a user's"))
    assert not is_built_in("gelu")
    assert states(lambda op, n: refused) == {"(B, B)", "(B, S1)", "(S1, B)", "(S1, S1)"}
    assert states(lambda op, n: ()) == states(None)  # no list: as the rule says


@pytest.mark.parametrize("engine", [ONEFLOW, ONEFLOW.whole_space()])
def test_other_streams_change_what_boxings_cost_and_nothing_else(engine: EngineModel) -> None:
    mesh = Mesh.parse("2x2")
    built, other = (
        builder.build(transformer(), mesh, PROFILE, engine=engine, compute_stream=stream)
        for stream in (True, False)
    )
    found = on_streams(other, COMPUTE_STREAM)
    assert found.compute_stream and found.variables is other.variables
    assert any(
        (a.table.cost != b.table.cost).any()
        for a, b in zip(edges_of(found), edges_of(other), strict=True)
    )
    for ours, theirs in zip(edges_of(found), edges_of(built), strict=True):
        assert (ours.tensor, ours.producer, ours.operands) == (
            theirs.tensor, theirs.producer, theirs.operands,
        )  # fmt: skip
        assert ours.table.states == theirs.table.states
        assert (ours.table.cost == theirs.table.cost).all()
        assert (ours.table.hop == theirs.table.hop).all()
        assert (ours.source == theirs.source).all()


def test_problems_share_the_prices_of_one_program_only() -> None:
    p = builder.build(transformer(1), Mesh.parse("2"), PROFILE)
    fewer = restricted(p, [np.zeros(1, dtype=np.int64)] * len(p))
    assert fewer.setting is p.setting
    mesh, program = Mesh.parse("4"), transformer(2)
    others = setting(program, p.mesh, p.profile), setting(p.program, mesh, p.profile)
    for other in others:
        assert other.prices is not p.setting.prices
        assert other.memory is not p.setting.memory
        assert (other.prices.program, other.prices.mesh) == (other.program, other.mesh)
