"""Bounds on the step: below what the simulation says, of any assignment, with any weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from autoddl.engine.oneflow.model.engine_model import ONEFLOW
from autoddl.errors import InfeasibleError
from autoddl.perfmodel.resources import DEVICE
from autoddl.perfmodel.timeline import StepTimeline
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Op, Program, Tensor
from autoddl.search.assigned.assigned_layout import assigned_layout
from autoddl.search.budget import Counter
from autoddl.search.exact import primal_dual
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.result import Assignment, SearchOptions, SearchResult
from autoddl.search.rivals.random_sampling import random_assignment
from autoddl.search.step.bound_network import Kind, Mixture, StepBounds
from autoddl.search.step.dependency_path import EARLY, EITHER, LATE, DependencyPath
from autoddl.search.step.overlap import StepSearch
from autoddl.search.step.step_bound import StepBound
from experiments.lib.oneflow_problems import build
from tests.support.clusters import cluster
from tests.support.programs import mlp, tied, transformer
from tests.support.zoo import experts

PROGRAMS = {
    "mlp": mlp(32, (64, 64, 32)), "transformer": transformer(1), "tied": tied(),
    "experts": experts(4, 4, 4, 16, 32),
}  # fmt: skip
PAIRS = [
    ("mlp", "4"), ("transformer", "2x2"), ("mlp", "2x2x2"), ("tied", "2x2x2"), ("experts", "4"),
    ("transformer", "4"), ("experts", "2x2"),
]  # fmt: skip


def timeline(network: CostNetwork, point: Sequence[int]) -> StepTimeline:
    return StepTimeline(network.setting.prices, assigned_layout(network, point), orders=True)


def drawn(network: CostNetwork, rng: np.random.Generator) -> Assignment:
    return random_assignment(network, int(rng.integers(1 << 30)))


def weights_of(bounds: StepBounds, rng: np.random.Generator) -> dict[Kind, float]:
    """Weights that add up to 1 in each window; what may run in either weighs no more than in both."""
    found = {}
    for window in (EARLY, LATE):
        own = [kind for kind in bounds.kinds if kind[0] == window]
        found.update(zip(own, rng.dirichlet(np.full(len(own), 0.3)).tolist(), strict=True))
    for resource in bounds.resources:
        found[EITHER, resource] = min(found[EARLY, resource], found[LATE, resource])
    return {kind: found[kind] for kind in bounds.kinds}


@cache
def problem(name: str, mesh: str, device: str = "cpu") -> CostNetwork:
    return build(replace(PROGRAMS[name], device=device), Mesh.parse(mesh), cluster())


@pytest.mark.parametrize(
    ("name", "mesh", "device"),
    [*[(*pair, "cpu") for pair in PAIRS], ("transformer", "2x2", "cuda"), ("mlp", "4", "cuda")],
)
def test_every_mixture_is_below_every_step(name: str, mesh: str, device: str) -> None:
    """The network's cost is below the mixture of the bounds, and that below the simulated step."""
    network, rng = problem(name, mesh, device), np.random.default_rng(7)
    tight = 0.0
    for _ in range(3):
        bounds = StepBounds(network, DependencyPath.longest(timeline(network, drawn(network, rng))))
        weights = weights_of(bounds, rng)
        numbers = np.array(list(weights.values()))
        mixed = Mixture(bounds, weights)
        for _ in range(8):
            point = drawn(network, rng)
            found = timeline(network, point)
            each = float(numbers @ bounds.of(found))
            assert each <= found.works.end_s * (1 + 1e-9)
            cost_s = mixed.network.cost_s(point)
            assert cost_s <= float(numbers @ mixed.plane(point)) * (1 + 1e-9)
            assert cost_s <= each * (1 + 1e-9)
            best = StepBound(bounds)
            best.cut(found)
            assert best.weights()[1] <= found.works.end_s * (1 + 1e-9)
            tight = max(tight, best.weights()[1] / found.works.end_s)
    assert tight > 0.6  # else any small numbers would do


def test_weights_that_add_up_to_more_than_1_bound_nothing() -> None:
    network, rng = problem("mlp", "4"), np.random.default_rng(3)
    path = DependencyPath.longest(timeline(network, drawn(network, rng)))
    bounds = StepBounds(network, path)
    weights = {kind: 1.5 * float(kind[1] == DEVICE) for kind in bounds.kinds}
    points = [drawn(network, rng) for _ in range(20)]
    wrong = Mixture(bounds, weights)
    assert any(wrong.network.cost_s(p) > timeline(network, p).works.end_s for p in points)


def test_the_path_is_a_chain_of_ops_and_its_pivot_parts_what_comes_before_and_behind_it() -> None:
    network = problem("transformer", "2x2")
    program, columns = network.program, network.program.columns
    point = random_assignment(network, 5)
    path = DependencyPath.longest(timeline(network, point))
    maker = columns.maker[columns.inputs.tensor]
    assert (maker[path.slots] == path.ops[:-1]).all()
    assert (columns.inputs.op[path.slots] == path.ops[1:]).all()
    pivot = program.ops[path.ops[path.pivot]]
    assert pivot.phase == "forward" and program.ops[path.ops[path.pivot + 1]].phase == "backward"
    after, before = {pivot.name}, {pivot.name}
    for op in program.ops:
        if any(t in program.producer and program.producer[t].name in after for _, t in op.inputs):
            after.add(op.name)
    for op in reversed(program.ops):
        if op.name in before:
            made = [program.producer[t] for _, t in op.inputs if t in program.producer]
            before.update(one.name for one in made)
    both = set(program.op) - before - after
    for number, op in enumerate(program.ops):
        of = (op.name in before, op.name in after - {pivot.name}, op.name in both).index(True)
        assert path.spans[number] == (EARLY, LATE, EITHER)[of]
        assert path.is_made_late[number] == (op.name in after)


class Judged:
    """An assignment that is simulated."""

    def __init__(self, network: CostNetwork, point: Sequence[int]) -> None:
        self.assignment, self.timeline = point, timeline(network, point)
        self.step_s = self.timeline.works.end_s
        self.memory_bytes = network.memory_bytes(point)


@pytest.mark.parametrize("name", ["mlp", "tied", "experts"])
def test_no_start_is_faster(name: str) -> None:
    network, rng = problem(name, "2x2"), np.random.default_rng(2)
    judge = cache(lambda point: Judged(network, point))
    starts = [drawn(network, rng) for _ in range(3)]
    found = StepSearch(network, primal_dual.search, judge).search(SearchOptions(starts=starts))
    own = primal_dual.search(network)
    assert found.cost_s <= min(judge(start).step_s for start in [*starts, own.assignment])
    assert 0 < found.lower_bound_s <= found.cost_s
    assert [s for _, s in found.trace] == sorted((s for _, s in found.trace), reverse=True)


def test_the_fastest_that_fits_else_the_least_memory() -> None:
    network = problem("mlp", "4")
    judge = cache(lambda point: Judged(network, point))
    free = StepSearch(network, primal_dual.search, judge).search(SearchOptions())
    least = network.least_memory_bytes
    limit = (least + free.memory_bytes) // 2
    assert least < limit < free.memory_bytes
    options = SearchOptions(memory_bytes=limit)
    search = StepSearch(network, primal_dual.search, judge, limit)
    found = search.search(options)
    assert found.memory_bytes <= limit and found.cost_s >= free.cost_s
    assert search.binds == (search.fastest_s < found.cost_s)
    tight = StepSearch(network, primal_dual.search, judge, least - 1).search(options)
    assert tight.memory_bytes <= found.memory_bytes


def test_weights_are_where_the_planes_meet() -> None:
    network = problem("mlp", "4")
    path = DependencyPath.longest(timeline(network, np.zeros(len(network), np.int64)))
    bound = StepBound(StepBounds(network, path))
    level, kinds = network.mesh.axes[0].level, bound.bounds.kinds
    wanted = (LATE, DEVICE), (LATE, level), (EITHER, level)
    device, links, either = map(kinds.index, wanted)
    planes = np.zeros((2, len(kinds)))
    planes[:, [device, links]] = (4, 1), (2, 5)
    bound.planes = list(planes)
    weights, most = bound.weights()
    assert most == pytest.approx(3, rel=1e-3)
    found = list(weights.values())
    assert [found[device], found[links]] == pytest.approx([2 / 3, 1 / 3], abs=1e-3)
    # What may run in both windows weighs as much as in that in which it weighs less: half of 6.
    planes[:, either], planes[:, kinds.index((EARLY, DEVICE))] = 6, 6
    bound.planes = list(planes)
    weights, most = bound.weights()
    assert most == pytest.approx(9, rel=1e-3)
    for window in (EARLY, LATE):
        assert sum(w for (span, _), w in weights.items() if span == window) == pytest.approx(1)
        assert weights[EITHER, level] <= weights[window, level] + 1e-9


def test_a_network_whose_axes_cut_in_any_order_is_bounded_in_it() -> None:
    network = build(mlp(16, (32, 32)), Mesh.parse("2x2"), cluster(), engine=ONEFLOW.whole_space())
    rng = np.random.default_rng(1)
    path = DependencyPath.longest(timeline(network, drawn(network, rng)))
    bounds = StepBounds(network, path)
    mixed = Mixture(bounds, weights_of(bounds, rng))
    states = {table.shape: table.states for table in network.factors.tables}
    assert all(table.states == states[table.shape] for table in mixed.network.factors.tables)
    for _ in range(20):
        point = drawn(network, rng)
        assert mixed.network.cost_s(point) <= timeline(network, point).works.end_s * (1 + 1e-9)


def test_a_single_op_is_a_path() -> None:
    tensors = (
        Tensor("x", (8, 8), "float32", "input"), Tensor("y", (8, 8), "float32", "activation")
    )  # fmt: skip
    op = Op("a", "relu", (("x_0", "x"),), (("y_0", "y"),))
    network = build(Program((op,), tensors, ("x",), ("y",), (), None), Mesh.parse("2x2"), cluster())
    found = StepSearch(network, primal_dual.search, cache(lambda p: Judged(network, p))).search()
    assert 0 < found.lower_bound_s <= found.cost_s


def test_starts_that_are_slower_are_no_candidates() -> None:
    """The search looks into the timelines of candidates: for the bound, and for paths."""
    network, asked = problem("transformer", "2x2"), set[Assignment]()

    class Looked(Judged):
        def __init__(self, point: Assignment) -> None:
            self.assignment, self.memory_bytes = point, network.memory_bytes(point)
            self._timeline = timeline(network, point)
            self.step_s = self._timeline.works.end_s

        @property
        def timeline(self) -> StepTimeline:
            asked.add(self.assignment)
            return self._timeline

    rng, judge = np.random.default_rng(4), cache(Looked)
    starts = [drawn(network, rng) for _ in range(8)]
    first = judge(primal_dual.search(network).assignment)
    assert all(judge(start).step_s > first.step_s for start in starts)
    StepSearch(network, primal_dual.search, judge).search(
        SearchOptions(budget=0.3, clock=Counter(), starts=starts)
    )
    assert asked and not asked & set(starts)


def test_memory_is_told_of_what_is_faster_only() -> None:
    network = problem("transformer", "2x2")
    judged, told = list[Assignment](), list[Assignment]()

    class Counted(Judged):
        def __init__(self, point: Assignment) -> None:
            self.assignment, self.timeline = point, timeline(network, point)
            self.step_s = self.timeline.works.end_s
            judged.append(point)

        @property
        def memory_bytes(self) -> int:
            told.append(self.assignment)
            return network.memory_bytes(self.assignment)

    limit = network.memory_bytes(primal_dual.search(network).assignment)
    judge = cache(Counted)
    options = SearchOptions(budget=1.0, clock=Counter())
    found = StepSearch(network, primal_dual.search, judge, limit).search(options)
    assert found.memory_bytes <= limit
    assert len(judged) > 50 and len(set(told)) < len(judged) / 3


def test_a_solver_that_finds_nothing_in_little_time_leaves_what_is_known() -> None:
    network, calls = problem("transformer", "2x2"), []

    def solver(network: CostNetwork, options: SearchOptions) -> SearchResult:
        calls.append(options.budget)
        if len(calls) > 1:
            raise InfeasibleError("no assignment that is possible was found")
        return primal_dual.search(network, options)

    judge = cache(lambda point: Judged(network, point))
    found = StepSearch(network, solver, judge).search()
    assert len(calls) > 1 and found.cost_s <= judge(primal_dual.search(network).assignment).step_s
    assert found.lower_bound_s == pytest.approx(network.lower_bound_s())


def test_progress_is_told_of_steps_that_get_shorter_and_at_the_end() -> None:
    network, told = problem("experts", "2x2"), []
    judge = cache(lambda point: Judged(network, point))
    options = SearchOptions(progress=lambda _, best_s: told.append(best_s))
    found = StepSearch(network, primal_dual.search, judge).search(options)
    assert told == sorted(told, reverse=True) and told[-1] == found.cost_s
