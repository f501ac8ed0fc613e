"""HAP's A*: against exhaustive search with each heuristic, and what each tensor is sent to."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from autoddl.errors import AutoDDLError, InfeasibleError
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.result import SearchOptions
from autoddl.search.rivals.hap import synthesis
from autoddl.search.solvers import exhaustive
from tests.search.enumeration import enumerate_assignments
from tests.search.objects import edges_of
from tests.search.random_problems import chain, graph, hub, tree
from tests.search.small import one_layer, restricted

SHAPES = (tree, graph, hub, chain)


@pytest.mark.parametrize("make", SHAPES)
def test_as_exhaustive_search(make: Callable[[int], CostNetwork]) -> None:
    for seed in range(50):
        problem = make(seed)
        best = exhaustive.search(problem).cost_s
        for heuristic in synthesis.HEURISTICS:
            found = synthesis.search(problem, heuristic=heuristic, communicated_once=False)
            assert found.cost_s == pytest.approx(best), (seed, heuristic)
            assert found.cost_s == pytest.approx(problem.cost_s(found.assignment))
            assert found.lower_bound_s == found.cost_s


@pytest.mark.parametrize("make", SHAPES)
def test_each_tensor_is_sent_once(make: Callable[[int], CostNetwork]) -> None:
    """All assignments are looked at, and those with a tensor in two other states left out."""
    for seed in range(4):
        problem = make(seed, 5) if make is not chain else make(seed, 2)
        edges, best = edges_of(problem), math.inf
        for point in enumerate_assignments(problem):
            if all(len(e.wanted(point) - {int(e.source[point[e.producer]])}) <= 1 for e in edges):
                best = min(best, problem.cost_s(point))
        for heuristic in synthesis.HEURISTICS:
            found = synthesis.search(problem, heuristic=heuristic)
            assert found.cost_s == pytest.approx(best)
            assert found.lower_bound_s <= exhaustive.search(problem).cost_s * (1 + 1e-9)


def test_restriction_can_cost_something() -> None:
    found = [
        [synthesis.search(hub(seed), communicated_once=once).cost_s for once in (True, False)]
        for seed in range(20)
    ]
    assert any(once > free * 1.001 for once, free in found)


def test_updates_want_gradients_before_they_are_made() -> None:
    """A parameter is chosen first, its gradient is sent to that state once it is made."""
    rng, whole = np.random.default_rng(0), one_layer()
    kinds = whole.variables.sizes.tolist()
    for _ in range(10):
        some = rng.choice(len(kinds), 7, replace=False).tolist()
        problem = restricted(whole, {v: min(kinds[v], 4) for v in some})
        best = exhaustive.search(problem).cost_s
        for heuristic in synthesis.HEURISTICS:
            found = synthesis.search(problem, heuristic=heuristic, communicated_once=False)
            assert found.cost_s == pytest.approx(best)


def test_a_guess_saves_states() -> None:
    problem = one_layer()
    visited = {
        heuristic: synthesis.search(
            problem, heuristic=heuristic, communicated_once=False
        ).evaluations
        for heuristic in synthesis.HEURISTICS
    }
    assert visited["dual"] < visited["compute"] < visited["none"]


@pytest.mark.parametrize("seed", range(10))
def test_within_memory(seed: int) -> None:
    problem = graph(seed)
    least, free = problem.least_memory_bytes, exhaustive.search(problem).memory_bytes
    options = SearchOptions(memory_bytes=(least + max(free, least)) // 2)
    found = synthesis.search(problem, options, communicated_once=False)
    assert found.memory_bytes <= options.memory_bytes
    assert found.cost_s == pytest.approx(exhaustive.search(problem, options).cost_s)


def test_wrong_and_too_large() -> None:
    with pytest.raises(
        AutoDDLError, match="heuristic: got 'best'; allowed are none, compute, dual"
    ):
        synthesis.search(tree(0), heuristic="best")
    with pytest.raises(InfeasibleError, match="more than 3 states of the 6 nodes"):
        synthesis.search(tree(0), heuristic="none", limit=3)
