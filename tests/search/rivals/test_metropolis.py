"""Metropolis–Hastings: its distribution by enumeration, its bookkeeping, memory, repeatability."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from autoddl.errors import InfeasibleError
from autoddl.sbp.mesh import Mesh
from autoddl.search.heuristics import descent
from autoddl.search.result import Assignment, SearchOptions
from autoddl.search.rivals import metropolis
from autoddl.search.rivals.metropolis import Walk
from autoddl.search.solvers import exhaustive
from experiments.lib import oneflow_problems as builder
from tests.search.enumeration import enumerate_assignments
from tests.search.objects import nodes_of
from tests.search.small import one_layer, restricted
from tests.support.clusters import cluster
from tests.support.programs import transformer

FEW = {3: 4, 5: 3, 6: 2}  # neighbours with unequal numbers of choices


def test_visits_follow_the_boltzmann_distribution() -> None:
    p = restricted(one_layer(), FEW)
    points = list(enumerate_assignments(p))
    costs = np.array([p.cost_s(point) for point in points])
    temperature_s = (costs.max() - costs.min()) / 4
    weights = np.exp(-(costs - costs.min()) / temperature_s)
    expected = dict(zip(points, weights / weights.sum(), strict=True))
    walk = Walk(p, points[-1], np.random.default_rng(0))
    walk.temperature_s = temperature_s
    steps = 30_000
    visits: Counter[Assignment] = Counter()
    for _ in range(steps):
        walk.step()
        visits[Assignment(walk.point)] += 1
    assert len(points) == 24 and max(expected.values()) > 10 * min(expected.values())
    distance = sum(abs(visits[point] / steps - share) for point, share in expected.items()) / 2
    assert distance < 0.02  # total variation; 0.2 for visits that are uniform


def test_a_walk_knows_what_its_point_costs() -> None:
    p = builder.build(transformer(), Mesh.parse("2x2"), cluster())
    start = descent.replicated(p)
    walk = Walk(p, start, np.random.default_rng(1), cell_share=0.5)
    walk.temperature_s = 100 * walk.scale_s()
    moved = [walk.step() for _ in range(1500)]
    assert 100 < sum(moved) < 1500
    assert walk.seconds == pytest.approx(p.cost_s(walk.point), rel=1e-9)
    assert walk.memory == p.memory_bytes(walk.point)


def test_cells_are_changed_as_one() -> None:
    p = builder.build(transformer(layers=2), Mesh.parse("2"), cluster())
    walk = Walk(p, descent.replicated(p), np.random.default_rng(0), cell_share=1.0)
    walk.temperature_s = np.inf
    most = 0
    for _ in range(30):
        before = walk.point.copy()
        walk.step()
        most = max(most, int((before != walk.point).sum()))
    assert most > max(len(move.variables) for move in walk.cells) / 2


def test_the_temperature_is_a_small_part_of_the_median_difference() -> None:
    p = one_layer()
    point = list(descent.cheapest(p))
    differences = []
    for node, choice in itertools.chain.from_iterable(
        ((i, c) for c in range(len(n.choices))) for i, n in enumerate(nodes_of(p))
    ):
        other = [*point[:node], choice, *point[node + 1 :]]
        differences.append(abs(p.cost_s(other) - p.cost_s(point)))
    real = [d for d in differences if d > 1e-15]
    walk = Walk(p, point, np.random.default_rng(0))
    assert walk.scale_s() == pytest.approx(np.median(real) / 200, rel=1e-6)


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_it_finds_the_best_of_a_small_problem(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metropolis, "CELL_SHARE", share)
    p = restricted(one_layer(1024, 512, 128), {3: 6, 4: 4, 5: 3, 6: 4, 10: 6, 12: 6})
    best = exhaustive.search(p)
    worst = max(enumerate_assignments(p), key=p.cost_s)
    found = metropolis.search(p, SearchOptions(budget=60.0, starts=[worst]), proposals=5000)
    assert found.cost_s == pytest.approx(best.cost_s)


def test_the_same_seed_gives_the_same_walk() -> None:
    p = one_layer(4096, 512, 128, mesh="2x2")
    runs = [
        metropolis.search(p, SearchOptions(budget=600.0, seed=s), proposals=100) for s in (3, 3, 4)
    ]
    assert runs[0].assignment == runs[1].assignment != runs[2].assignment
    assert runs[0].evaluations == runs[1].evaluations
    for found in runs:
        costs = [cost for _, cost in found.trace]
        assert len(costs) > 3 and costs[:-1] == sorted(costs[:-1], reverse=True)
        assert costs[-1] == found.cost_s == pytest.approx(costs[-2], rel=1e-9)


def test_a_result_counts_what_it_priced_and_is_not_worse_than_its_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metropolis, "CELL_SHARE", 0.0)
    p = one_layer()
    start = exhaustive.search(p).assignment
    found = metropolis.search(p, SearchOptions(budget=60.0, starts=[start]), proposals=50)
    assert found.cost_s == pytest.approx(p.cost_s(start))
    alternatives = sum(len(node.choices) - 1 for node in nodes_of(p))
    assert found.evaluations == 2 + alternatives + 50  # the start and replication; the temperature


def test_the_memory_limit_holds() -> None:
    p = builder.build(transformer(), Mesh.parse("2x2"), cluster())
    least = p.least_memory_bytes
    free = metropolis.search(p, SearchOptions(budget=60.0), proposals=1000)
    for limit in (least, (least + free.memory_bytes) // 2):
        found = metropolis.search(p, SearchOptions(budget=60.0, memory_bytes=limit), proposals=1000)
        assert found.memory_bytes == p.memory_bytes(found.assignment) <= limit
    with pytest.raises(InfeasibleError, match="1 B more"):
        metropolis.search(p, SearchOptions(budget=1.0, memory_bytes=least - 1))


def test_a_problem_without_choices() -> None:
    p = restricted(one_layer(), {})
    found = metropolis.search(p, SearchOptions(budget=60.0))
    assert set(found.assignment) == {0}
