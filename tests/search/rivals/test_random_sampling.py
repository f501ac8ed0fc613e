"""Random search: against enumeration, under memory limits, repeatable."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from autoddl.errors import InfeasibleError
from autoddl.sbp.mesh import Mesh
from autoddl.search.heuristics import descent
from autoddl.search.incumbent import Incumbent
from autoddl.search.result import Assignment, Point, SearchOptions
from autoddl.search.rivals import random_sampling as random
from experiments.lib import oneflow_problems as builder
from tests.search.enumeration import enumerate_assignments
from tests.search.objects import nodes_of
from tests.search.small import one_layer, restricted
from tests.support.clusters import cluster
from tests.support.programs import transformer


def test_many_samples_find_the_best_of_few_assignments() -> None:
    p = restricted(one_layer(), {3: 4, 5: 3, 6: 2})
    worst = max(enumerate_assignments(p), key=p.cost_s)
    found = random.search(p, SearchOptions(budget=60.0, starts=[worst]), samples=300)
    assert found.cost_s == pytest.approx(min(map(p.cost_s, enumerate_assignments(p))))


def test_samples_are_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    p = restricted(one_layer(), {5: 3, 6: 2})
    drawn: Counter[Assignment] = Counter()
    offer = Incumbent.offer

    def recorded(run: Incumbent, point: Point) -> tuple[float, int, bool]:
        drawn[Assignment.of(point)] += 1
        return offer(run, point)

    monkeypatch.setattr(Incumbent, "offer", recorded)
    random.search(p, SearchOptions(budget=60.0), samples=600)
    counts = [drawn[point] for point in enumerate_assignments(p)]
    assert 600 < sum(counts) < 610  # with those that it begins with
    assert min(counts) > 70 and max(counts) < 130


def test_samples_are_priced_right() -> None:
    p = builder.build(transformer(), Mesh.parse("2x2"), cluster())
    found = random.search(p, SearchOptions(budget=60.0, seed=2), samples=100)
    assert found.cost_s == pytest.approx(p.cost_s(found.assignment))
    assert found.trace[-2][1] == pytest.approx(found.cost_s, rel=1e-9)
    assert found.evaluations == 101
    assert all(0 <= c < len(n.choices) for c, n in zip(found.assignment, nodes_of(p), strict=True))


def test_more_samples_begin_with_the_same_ones() -> None:
    p = builder.build(transformer(), Mesh.parse("2x2"), cluster())
    costs = [
        random.search(p, SearchOptions(budget=60.0), samples=n).cost_s for n in (10, 40, 40, 90)
    ]
    assert costs[1] == costs[2]
    assert costs == sorted(costs, reverse=True)
    assert random.search(p, SearchOptions(budget=60.0, seed=1), samples=40).cost_s != costs[1]


def test_never_worse_than_a_start() -> None:
    p = builder.build(transformer(), Mesh.parse("2x2"), cluster())
    start = descent.replicated(p)
    assert (
        random.search(p, SearchOptions(budget=60.0, starts=[start]), samples=10).assignment == start
    )


def test_the_memory_limit_holds() -> None:
    p = builder.build(transformer(), Mesh.parse("2x2"), cluster())
    sizes = [p.memory_bytes(random.random_assignment(p, seed)) for seed in range(20)]
    for limit in (p.least_memory_bytes, int(np.median(sizes))):
        found = random.search(p, SearchOptions(budget=60.0, memory_bytes=limit), samples=64)
        assert found.memory_bytes == p.memory_bytes(found.assignment) <= limit
    small = restricted(one_layer(), {5: 3, 6: 2, 4: 4, 3: 4})
    points = list(enumerate_assignments(small))
    limit = int(np.median([small.memory_bytes(point) for point in points])) - 1
    costs = [small.cost_s(point) for point in points if small.memory_bytes(point) <= limit]
    assert min(costs) > min(map(small.cost_s, points))
    found = random.search(small, SearchOptions(budget=60.0, memory_bytes=limit), samples=1000)
    assert found.cost_s == pytest.approx(min(costs))
    with pytest.raises(InfeasibleError, match="1 B more"):
        random.search(p, SearchOptions(budget=1.0, memory_bytes=p.least_memory_bytes - 1))
