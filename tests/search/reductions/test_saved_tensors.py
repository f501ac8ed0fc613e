"""Tensors that wait for the backward pass: what that costs and holds, and plans under memory limits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program.waiting_for_loss import waiting_for_loss
from autoddl.search.baselines import BASELINES, assignments
from autoddl.search.exact import primal_dual as exact
from autoddl.search.network.cost_network import SAVED, CostNetwork, as_ints
from autoddl.search.network.evaluator import factor_s
from autoddl.search.reductions.quotient import quotient
from autoddl.search.reductions.saved_tensors import SavedTensors
from autoddl.search.relaxation.lagrangian import mixed
from autoddl.search.result import Assignment, Point, SearchOptions
from autoddl.search.rivals.random_sampling import random_assignment
from autoddl.search.solvers import ilp
from experiments.lib import oneflow_problems as builder
from tests.search.objects import nodes_of
from tests.support.clusters import cluster
from tests.support.programs import mlp, transformer

GPT = replace(transformer(), device="cuda")
DEEP = replace(transformer(layers=6), device="cuda")


def problem(mesh: str, program=GPT) -> CostNetwork:  # type: ignore[no-untyped-def]
    base = builder.build(program, Mesh.parse(mesh), cluster(), compute_stream=True)
    return SavedTensors.apply(base).network


def made_again(found: CostNetwork, assignment: Point) -> Assignment:
    saved = SavedTensors(found)
    return saved.as_made(saved.invert(assignment))


def points(found: CostNetwork, count: int = 4) -> list[tuple[int, ...]]:
    """Return what baselines, tensors that wait as they were made, and chance do."""
    drawn = [random_assignment(found, seed) for seed in range(count)]
    held = [a for make in BASELINES.values() if (a := make(found)) is not None]
    return [*held, *(made_again(found, a) for a in held), *drawn]


@pytest.mark.parametrize("mesh", ["4", "2x2"])
def test_the_cost_is_that_of_every_boxing(mesh: str) -> None:
    """What a tensor waits in is paid once, and what it becomes then for every path of the plan.

    Parameters and inputs are there anyway: their readers take them as they are, each on its own path.
    """
    found = problem(mesh)
    made_by_ops = {t.name for t, op in zip(GPT.tensors, GPT.columns.maker, strict=True) if op >= 0}
    for assignment in points(found):
        one = Assigned(found, assignment)
        made = one.layout.made
        seconds: dict[object, float] = {}
        for number, item in enumerate(one.layout.redistributions):
            prices = [
                p.seconds
                for p in found.setting.prices.path(item.tensor, made[item.tensor], item.path)
            ]
            if item.tensor in made_by_ops:
                early = item.early if item.after else len(prices)
                seconds[item.tensor, item.path[:early]] = sum(prices[:early])
                seconds[number] = sum(prices[early:])
            else:
                states = made[item.tensor], item.path[-1]
                table = found.factors.tables[table_of(found, item.tensor)]
                direct = table.cost[table.index[states[0]], table.index[states[1]]]
                assert item.early == 0 and sum(prices) == pytest.approx(direct)
        names = [GPT.tensors[tensor].name for tensor in found.factors.tensor]
        paid = zip(names, factor_s(found.arrays, as_ints(assignment)), strict=True)
        wanted = sum(s for name, s in paid if name in made_by_ops)
        assert sum(seconds.values()) == pytest.approx(wanted)
        if not any(item.early for item in one.layout.redistributions):
            assert one.prediction.step_s <= one.step_s * (1 + 1e-9)


def table_of(found: CostNetwork, name: str) -> int:
    """Return which table has the prices of a tensor."""
    return int(found.factors.table[found.factors.tensor == GPT.columns.number[name]][0])


def test_zero_gathers_no_parameter_twice_that_waits_whole() -> None:
    """Of a norm's weight, which waits whole, the backward pass reads a shard, too."""
    found = problem("2x2")
    base = builder.build(GPT, Mesh.parse("2x2"), cluster(), compute_stream=True)
    held = SavedTensors(found).as_read(assignments(base)["ZeRO 2"])
    layout = Assigned(found, held).layout
    step_s = found.setting.prices.step(layout).totals.communication_s
    assert step_s == pytest.approx(found.communication_s(held), rel=5e-3)
    assert step_s <= found.communication_s(held)


@pytest.mark.parametrize("mesh", ["4", "2x2"])
@pytest.mark.parametrize("program", [GPT, replace(mlp(64, (64, 128, 32)), device="cuda")])
def test_what_waits_is_part_of_the_memory(mesh: str, program) -> None:  # type: ignore[no-untyped-def]
    found = problem(mesh, program)
    for assignment in points(found, 8):
        assert 0 < found.memory_bytes(assignment) <= Assigned(found, assignment).memory_bytes


def test_parameters_come_for_each_pass_and_hold_less() -> None:
    """Weights cut over all devices and gathered to be read; then once for each pass."""
    found = problem("4")
    held = BASELINES["ZeRO 2"](found)
    assert held is not None
    base = builder.build(GPT, Mesh.parse("4"), cluster(), compute_stream=True)
    once = BASELINES["ZeRO 2"](base)
    assert once is not None
    assert found.cost_s(held) == pytest.approx(base.cost_s(once), rel=1e-3)
    shared, twice = Assigned(found, held), Assigned(found, made_again(found, held))
    assert twice.memory_bytes < shared.memory_bytes
    assert twice.step_s > shared.step_s
    program, weights = GPT, {p.tensor for p in GPT.parameters}
    position = {op.name: n for n, op in enumerate(program.ops)}
    moved = [r for r in twice.layout.redistributions if r.tensor in weights]
    assert len(moved) > len([r for r in shared.layout.redistributions if r.tensor in weights])
    for item in twice.layout.redistributions:
        assert all(position[item.after] < position[name] for name, _ in item.readers if item.after)
    large = {node.name for node in nodes_of(found) if node.kind == SAVED} & weights
    again = Counter(r.tensor for r in moved if r.after)
    assert {again[name] for name in large} <= {1, 2}
    assert 2 * sum(again[name] == 2 for name in large) > len(large)


@pytest.mark.parametrize("mesh", ["4", "2x2"])
def test_assignments_carry_over(mesh: str) -> None:
    """All other choices stay; what is wanted once in both passes is paid once."""
    found = problem(mesh)
    base = builder.build(GPT, Mesh.parse(mesh), cluster(), compute_stream=True)
    for make in BASELINES.values():
        others = make(base)
        if others is None:
            continue
        saved = SavedTensors(found)
        assignment = saved.as_read(others)
        assert list(saved.invert(assignment)) == list(others)
        assert found.compute_s(assignment) == pytest.approx(base.compute_s(others))
        assert found.cost_s(assignment) == pytest.approx(base.cost_s(others), rel=0.02)
        twice = found.cost_s(made_again(found, assignment))
        assert twice >= base.cost_s(others) * (1 - 1e-9)


def test_what_does_not_wait_for_the_loss_runs_at_once() -> None:
    late = {GPT.ops[i].name for i in waiting_for_loss(GPT).nonzero()[0]}
    phases = {op.name: op.phase for op in GPT.ops}
    assert late and all(phases[name] != "forward" for name in late)
    reads = {name for op in GPT.ops if op.name in late for _, name in op.inputs}
    assert GPT.loss in reads
    for op in GPT.ops:
        if op.phase != "forward" and op.name not in late:
            makers = [GPT.producer[t].name for _, t in op.inputs if t in GPT.producer]
            assert not set(makers) & late


def test_plans_under_a_limit_are_nearly_those_of_the_ilp() -> None:
    found = problem("4", replace(mlp(64, (64, 128, 32)), device="cuda"))
    roomy = exact.search(found)
    limit = (7 * roomy.memory_bytes + 3 * found.least_memory_bytes) // 10
    under, best = (s.search(found, SearchOptions(memory_bytes=limit)) for s in (exact, ilp))
    assert under.memory_bytes <= limit < roomy.memory_bytes
    assert best.gap == pytest.approx(0, abs=1e-9)  # the ILP has proven it
    assert under.lower_bound_s <= best.cost_s * (1 + 1e-9)
    assert best.cost_s * (1 - 1e-9) <= under.cost_s <= best.cost_s * 1.01


def test_memory_that_is_left_goes_to_some_of_the_layers() -> None:
    """Between two plans, of which one does not fit, lie such as keep a tensor in some layers only."""
    found = problem("4", DEEP)
    assert quotient(found).exact
    held = BASELINES["ZeRO 2"](found)
    assert held is not None
    again = made_again(found, held)
    least, most = found.memory_bytes(again), found.memory_bytes(held)
    costs = []
    for part in np.linspace(0, 1, 9):
        limit = int(least + part * (most - least))
        between = mixed(found, again, held, limit)
        assert found.memory_bytes(between) <= limit
        costs.append(found.cost_s(between))
    assert costs == sorted(costs, reverse=True)
    assert len(set(costs)) > 4
    assert (costs[0], costs[-1]) == (found.cost_s(again), pytest.approx(found.cost_s(held)))


def test_a_limit_that_binds_is_priced_in_all_layers_at_once() -> None:
    found = problem("4", DEEP)
    roomy = exact.search(found)
    limit = (roomy.memory_bytes + found.least_memory_bytes) // 2
    under = exact.search(found, SearchOptions(memory_bytes=limit, budget=60, stop_gap=0.03))
    assert under.memory_bytes <= limit
    assert 0 <= under.gap <= 0.03
