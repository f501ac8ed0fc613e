"""The problem with the prices of a step: what it says bounds the step of every cut into stages."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from autoddl.planner.stages.stage_links import Links
from autoddl.planner.stages.staged_assignment import Staged
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.layout import OUTPUT
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program.forward_positions import positions
from autoddl.search.exact.primal_dual import search
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.pipeline_objective import repeated, weights
from autoddl.search.result import Assignment, SearchOptions
from experiments.lib import oneflow_problems as builder
from tests.search.enumeration import enumerate_assignments
from tests.search.objects import nodes_of
from tests.search.small import one_layer, restricted
from tests.support.clusters import cluster
from tests.support.programs import mlp
from tests.support.zoo import ZOO

ROUNDING = 1 + 1e-9
MICRO_BATCHES = (1, 2, 8)


def cuts(problem: CostNetwork, stages: int) -> Iterator[tuple[int, ...]]:
    count = positions(problem.program).count
    return itertools.combinations(range(1, count), stages - 1)


def staged(
    problem: CostNetwork, assignment: Assignment, bounds: tuple[int, ...], micro_batches: int
) -> Staged:
    whole = Mesh.parse(f"{len(bounds) + 1}x{problem.mesh.size}").cluster
    links = Links(problem.profile, whole)
    found = positions(problem.program)
    return Staged.equal(Assigned(problem, assignment), found, bounds, micro_batches, links)


def small() -> CostNetwork:
    """Return a linear layer with a few choices for each of the nodes that have most."""
    problem = one_layer(batch=16, features=8, out=4)
    most = sorted(range(len(problem)), key=lambda i: -len(nodes_of(problem)[i].choices))
    return restricted(problem, {i: min(3, len(nodes_of(problem)[i].choices)) for i in most[:3]})


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (2, 8), (3, 8)])
def test_no_cut_of_any_assignment_takes_less(stages: int, micro_batches: int) -> None:
    problem = small()
    weighted = repeated(problem, stages, micro_batches)
    steps = []
    for assignment in enumerate_assignments(problem):
        for bounds in cuts(problem, stages):
            found = staged(problem, assignment, bounds, micro_batches)
            assert weighted.cost_s(assignment) <= found.bounded_s * ROUNDING, (assignment, bounds)
            steps.append(found.bounded_s)
    least = search(weighted, SearchOptions(budget=5, seed=0))
    assert least.lower_bound_s <= min(steps) * ROUNDING
    assert len(set(steps)) > 50


@pytest.mark.parametrize("name", ZOO)
def test_no_cut_of_random_assignments_takes_less(name: str) -> None:
    problem = builder.build(ZOO[name](), Mesh.parse("2x2"), cluster())
    count = positions(problem.program).count
    rng = np.random.default_rng(1)
    for _ in range(12):
        assignment = tuple(int(rng.integers(len(node.choices))) for node in nodes_of(problem))
        stages, micro_batches = int(rng.integers(2, 5)), int(rng.integers(1, 9))
        places = rng.choice(np.arange(1, count), stages - 1, replace=False)
        bounds = tuple(sorted(int(place) for place in places))
        found = staged(problem, assignment, bounds, micro_batches)
        weighted = repeated(problem, stages, micro_batches)
        assert weighted.cost_s(assignment) <= found.bounded_s * ROUNDING


@pytest.mark.parametrize("micro_batches", MICRO_BATCHES)
def test_the_bound_is_reached_where_one_stage_has_it_all(micro_batches: int) -> None:
    """In one stage only what the graph returns is left out, where ops read it, too."""
    problem = builder.build(mlp(), Mesh.parse("2"), cluster())
    weighted = repeated(problem, 1, micro_batches)
    assert weights(1, micro_batches) == (micro_batches, 1)
    rng = np.random.default_rng(0)
    for _ in range(10):
        assignment = tuple(int(rng.integers(len(node.choices))) for node in nodes_of(problem))
        found = staged(problem, assignment, (), micro_batches)
        returned_s = sum(
            spent.seconds for spent in found.planned if spent.phase == "once" and OUTPUT in spent.of
        )
        cost_s = weighted.cost_s(assignment)
        assert cost_s + returned_s == pytest.approx(found.bounded_s, rel=1e-9)
        if micro_batches == 1:
            assert found.bounded_s == pytest.approx(problem.cost_s(assignment), rel=1e-9)


def test_memory_is_that_of_the_mean_stage() -> None:
    """Forward results of min(m, k - i) micro-batches, gradients and their sums, variables once."""
    problem = builder.build(mlp(), Mesh.parse("2"), cluster())
    weighted = repeated(problem, 4, 3)
    held = {"forward": (3 + 3 + 2 + 1) / 4, "backward": 2}
    seen = set()
    for old, new in zip(nodes_of(problem), nodes_of(weighted), strict=True):
        phase = problem.program.op[old.name].phase if old.kind == "op" else old.kind
        factor = held.get(phase, 1)
        np.testing.assert_array_equal(new.memory_bytes, np.floor(old.memory_bytes * factor))
        seen.add(phase)
    assert {"forward", "backward", "parameter"} <= seen
