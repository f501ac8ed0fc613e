"""Coordinate descent's parts: patches between two points, points without hope, and its restarts."""

from __future__ import annotations

import numpy as np
import pytest

from autoddl.sbp.mesh import Mesh
from autoddl.search import builder, coordinate, descent, ilp
from autoddl.search.descent import Descent
from autoddl.search.moves import patches
from autoddl.search.problem import Problem
from autoddl.search.random import random_assignment
from tests.clusters import cluster
from tests.programs import transformer
from tests.search import random_problems


def differing(problem: Problem, share: float, seed: int) -> tuple[list[int], list[int]]:
    """Two assignments of which about a share of the nodes differ."""
    rng = np.random.default_rng(seed)
    one, two = (list(random_assignment(problem, s)) for s in (seed, seed + 1))
    return one, [b if rng.random() < share else a for a, b in zip(one, two, strict=True)]


@pytest.mark.parametrize("share", [0.05, 0.3, 1.0])
def test_patches_are_independent_and_lead_from_one_point_to_the_other(share: float) -> None:
    p = builder.build(transformer(2), Mesh.parse("2x2"), cluster())
    one, two = differing(p, share, seed=3)
    found = patches(p, one, two)
    owner = {node: number for number, patch in enumerate(found) for node in patch.column}
    assert owner.keys() == {i for i, (a, b) in enumerate(zip(one, two, strict=True)) if a != b}
    for edge in p.edges:
        nodes = {edge.producer, *(n for n, _ in edge.readers)} & owner.keys()
        assert len({owner[n] for n in nodes}) <= 1
    point, more_s = one, 0.0
    for patch in found:
        point = patch.apply(point, 0)
        more_s += p.cost_s(patch.apply(one, 0)) - p.cost_s(one)
    assert point == two
    assert more_s == pytest.approx(p.cost_s(two) - p.cost_s(one), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_two_points_are_crossed_part_by_part(seed: int) -> None:
    """Each has a mistake at another end of the best one; only both together show where they are."""
    p = random_problems.chain(seed, blocks=8)
    best = list(ilp.search(p).assignment)
    first, last = (worse(p, best, nodes) for nodes in (range(4), range(len(best) - 4, len(best))))
    assert min(p.cost_s(first), p.cost_s(last)) > p.cost_s(best)
    descent = Descent(p, deadline=0.0)  # too late for more than to cross
    crossed = descent.crossed(first, last, np.random.default_rng(0))
    assert p.cost_s(crossed) == pytest.approx(p.cost_s(best))


def test_a_start_that_is_dear_but_soon_cheap_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """By their costs alone the starts would come in another order."""
    p = builder.build(transformer(2, 16, 256, 512, 4, 8192), Mesh.parse("4"), cluster())
    starts = [random_assignment(p, seed) for seed in range(4)]
    runs: list[float] = []
    run = Descent.run

    def noted(self: Descent, start: list[int], *rest: object) -> list[int]:
        runs.append(p.cost_s(start))
        return run(self, start, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Descent, "run", noted)
    found = coordinate.search(p, restarts=1, suggests=False, starts=starts)
    swept = [Descent(p).swept(start) for start in (*starts, descent.replicated(p))]
    assert runs == sorted(map(p.cost_s, swept))
    assert all(p.cost_s(s) < p.cost_s(start) for s, start in zip(swept, starts, strict=False))
    assert found.cost_s <= runs[0]


def worse(problem: Problem, point: list[int], nodes: range) -> list[int]:
    """The point with another choice of one of the nodes, such that it costs more."""
    for node in nodes:
        for choice in range(len(problem.nodes[node].choices)):
            changed = [*point[:node], choice, *point[node + 1 :]]
            if problem.cost_s(point) < problem.cost_s(changed) < np.inf:
                return changed
    raise AssertionError("no choice is worse")


def test_crossing_keeps_within_the_memory() -> None:
    p = random_problems.chain(1, blocks=8)
    least = list(descent.least_memory(p))
    limit = p.memory_bytes(least)
    other = list(descent.cheapest(p))
    assert p.memory_bytes(other) > limit
    crossing = Descent(p, memory_bytes=limit)
    crossed = crossing.crossed(other, least, np.random.default_rng(0))
    assert p.memory_bytes(crossed) <= limit
    assert p.cost_s(crossed) <= p.cost_s(least)
