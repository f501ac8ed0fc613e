"""The bound and the search of steps against brute force; a bound that is too high would be seen.

Bounds of random mixtures lie below the simulated steps of random assignments. Of tiny problems, in which
a few variables of a small network have a few choices left, every assignment is simulated.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from autoddl.perfmodel.timeline import StepTimeline
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.mesh import Mesh
from autoddl.search.exact import primal_dual
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.restriction import restricted
from autoddl.search.result import SearchOptions
from autoddl.search.rivals.random_sampling import random_assignment
from autoddl.search.step.bound_network import Kind, Mixture, StepBounds
from autoddl.search.step.dependency_path import EARLY, EITHER, LATE, DependencyPath
from autoddl.search.step.overlap import StepSearch
from experiments.lib.oneflow_problems import build
from tests.support.clusters import cluster
from tests.support.programs import mlp

ROUNDING = 1 + 1e-9
FREE, CHOICES = 4, 3  # variables of a tiny problem, and the most choices of each
EXCESS = 6.0  # of a mixture's weights, with which bounds have to be wrong


@pytest.fixture(scope="module", params=["4", "2x2", "2x4", "4 cuda", "2x2 cuda"])
def network(request: pytest.FixtureRequest) -> CostNetwork:
    """Return a problem; on CUDA devices messages share a queue."""
    profile, (mesh, *device) = cluster(), request.param.split()
    program = replace(mlp(32, (64, 64)), device=(device or ["cpu"])[0])
    return build(program, Mesh.parse(mesh, profile.levels), profile)


def test_mixtures_bound_random_assignments(network: CostNetwork) -> None:
    assert max(_shares(network, 0, 30, 1.0)) <= ROUNDING
    assert max(_shares(network, 0, 30, EXCESS)) > ROUNDING


@pytest.mark.parametrize("seed", [0, 2])
def test_the_least_steps_of_tiny_problems(network: CostNetwork, seed: int) -> None:
    """The search finds them, and neither its bound nor that of a mixture is above them."""
    tiny = _tiny(network, seed)
    judge = cache(lambda point: Assigned(tiny, point))
    found = StepSearch(tiny, primal_dual.search, judge).search(SearchOptions())
    least_s = _least_s(tiny) * ROUNDING
    assert found.lower_bound_s <= found.cost_s <= least_s
    assert _mixed_s(tiny, found.assignment, seed, 1.0) <= least_s
    if seed == 0:  # weights that are too large bound nothing
        drawn = (_mixed_s(tiny, found.assignment, number, EXCESS) for number in range(4))
        assert max(drawn) > least_s


def _step(network: CostNetwork, point: Sequence[int]) -> StepTimeline:
    return Assigned(network, point).timeline


def _shares(network: CostNetwork, seed: int, count: int, excess: float) -> Iterator[float]:
    """Yield by which share of their steps mixtures bound random assignments."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        point = random_assignment(network, int(rng.integers(1 << 30)))
        found = _step(network, point)
        if number % 100 == 0:
            bounds = StepBounds(network, DependencyPath.longest(found))
            weights = _weights(bounds, rng, excess)
            mixed = Mixture(bounds, weights).network
        yield mixed.cost_s(point) / found.works.end_s
        yield float(np.array([*weights.values()]) @ bounds.of(found)) / found.works.end_s


def _weights(bounds: StepBounds, rng: np.random.Generator, total: float) -> dict[Kind, float]:
    """Draw weights that have this sum in each window, and in either the smaller one."""
    found: dict[Kind, float] = {}
    for window in (EARLY, LATE):
        own = [kind for kind in bounds.kinds if kind[0] == window]
        drawn = total * rng.dirichlet(np.full(len(own), 0.3))
        found.update(zip(own, drawn.tolist(), strict=True))
    for resource in bounds.resources:
        found[EITHER, resource] = min(found[EARLY, resource], found[LATE, resource])
    return {kind: found[kind] for kind in bounds.kinds}


def _tiny(network: CostNetwork, seed: int) -> CostNetwork:
    """Leave a few choices of a few variables, and one of all others."""
    rng = np.random.default_rng((seed, 1))
    domains = [np.array([c]) for c in random_assignment(network, seed)]
    several = np.flatnonzero(network.variables.sizes > 1)
    for variable in rng.choice(several, FREE, replace=False).tolist():
        size = int(network.variables.sizes[variable])
        domains[variable] = np.sort(rng.choice(size, min(size, CHOICES), replace=False))
    return restricted(network, domains)


def _least_s(network: CostNetwork) -> float:
    """Return the seconds of the shortest step of all assignments."""
    points = itertools.product(*[range(n) for n in network.variables.sizes.tolist()])
    return min(_step(network, point).works.end_s for point in points)


def _mixed_s(network: CostNetwork, point: Sequence[int], seed: int, excess: float) -> float:
    """Return the bound of a mixture whose weights add up to `excess`."""
    bounds = StepBounds(network, DependencyPath.longest(_step(network, point)))
    weights = _weights(bounds, np.random.default_rng((seed, 2)), excess)
    return primal_dual.search(Mixture(bounds, weights).network).lower_bound_s
