"""Rhino's O3: cones against brute force, and against exhaustive search with and without limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from autoddl.errors import InfeasibleError
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.result import SearchOptions
from autoddl.search.rivals.random_sampling import random_assignment
from autoddl.search.rivals.rhino import cones
from autoddl.search.rivals.rhino.cones import Cones, min_plus
from autoddl.search.solvers import exhaustive
from tests.search.objects import edges_of, nodes_of
from tests.search.random_problems import chain, every_cost, graph, hub, tree

SHAPES = (tree, graph, hub, chain)
SEEDS = 20  # 75, 300 networks in all, take 12 s


def test_min_plus_is_the_shortest_path_over_states() -> None:
    gelu, cast = np.array([[1.0, 5.0], [0.0, 2.0]]), np.array([[1.0, 3.0], [9.0, 2.0]])
    assert min_plus(gelu, cast).tolist() == [[2.0, 4.0], [1.0, 3.0]]


@pytest.mark.parametrize("make", SHAPES)
def test_as_exhaustive_search(make: Callable[[int], CostNetwork]) -> None:
    contracted = 0
    for seed in range(SEEDS):
        problem = make(seed)
        found, best = cones.search(problem), exhaustive.search(problem).cost_s
        assert found.cost_s == pytest.approx(best, rel=1e-9), seed
        assert found.cost_s == pytest.approx(problem.cost_s(found.assignment))
        assert found.lower_bound_s == pytest.approx(best, rel=1e-6)
        contracted += len(problem) - len(Cones.apply(problem).kept)
    assert contracted > 10 or make in (graph, hub)


@pytest.mark.parametrize("make", SHAPES)
def test_as_exhaustive_search_within_memory(make: Callable[[int], CostNetwork]) -> None:
    for seed in range(20):
        problem = make(seed)
        if seed % 2:  # nodes of which some hold the same whatever they choose
            free = [
                domain._replace(memory_bytes=domain.memory_bytes * (number % 2) + number)
                for number, domain in enumerate(problem.variables.domains)
            ]
            problem = replace(problem, variables=problem.variables._replace(domains=free))
        least, seconds = problem.least_memory_bytes, exhaustive.search(problem)
        limit = (least + seconds.memory_bytes) // 2
        options = SearchOptions(memory_bytes=limit)
        try:
            best = exhaustive.search(problem, options).cost_s
        except InfeasibleError:
            continue
        found = cones.search(problem, options)
        assert found.cost_s == pytest.approx(best, rel=1e-9), seed
        assert found.memory_bytes <= limit


@pytest.mark.parametrize("make", SHAPES)
def test_a_contracted_assignment_costs_what_the_best_completion_does(
    make: Callable[[int], CostNetwork],
) -> None:
    for seed in range(10):
        problem = make(seed)
        some, every = Cones.apply(problem), every_cost(problem)[0]
        for draw in range(10):
            point = random_assignment(some.network, draw)
            sliced = np.full(len(problem), -1)
            sliced[some.kept] = np.asarray(point)
            best = every[tuple(slice(None) if c < 0 else c for c in sliced.tolist())].min()
            assert some.network.cost_s(point) == pytest.approx(best)
            if np.isfinite(best):
                assert problem.cost_s(some.invert(point)) == pytest.approx(best)


def test_by_the_papers_rule_only_roots_are_left_and_plans_may_be_dearer() -> None:
    dearer = 0
    for make in SHAPES:
        for seed in range(20):
            problem = make(seed)
            some = Cones.apply(problem, by_root=True)
            assert some.kept.tolist() == _roots(problem)
            found, best = cones.search(problem, by_root=True), exhaustive.search(problem).cost_s
            assert found.cost_s == pytest.approx(problem.cost_s(found.assignment))
            assert found.cost_s >= best * (1 - 1e-9)
            assert found.lower_bound_s <= best * (1 + 1e-9)
            dearer += found.cost_s > best * (1 + 1e-6)
    assert 0 < dearer < 20


def _roots(problem: CostNetwork) -> list[int]:
    """Return the nodes with several inputs, or with another number of readers than one."""
    edges, found = edges_of(problem), []
    for node in range(len(nodes_of(problem))):
        inputs = sum(reader == node for edge in edges for reader, _ in edge.readers)
        readers = sum(len(edge.readers) for edge in edges if edge.producer == node)
        if inputs > 1 or readers != 1:
            found.append(node)
    return found
