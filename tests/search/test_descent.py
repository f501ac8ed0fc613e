"""The compiled loops of descents, against the prices that NumPy gives and against all assignments."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pytest

from autoddl.sbp.mesh import Mesh
from autoddl.search.builder import build
from autoddl.search.descent import Descent, replicated
from autoddl.search.exhaustive import search as exhaustive
from autoddl.search.moves import neighbours, single
from autoddl.search.random import random_assignment
from autoddl.search.result import Assignment
from tests.clusters import cluster
from tests.programs import transformer
from tests.search.random_problems import tree


def one_by_one(descent: Descent, start: Assignment, within: Collection[int]) -> list[int]:
    """Refine with the prices of moves.py."""
    point, memory = list(start), descent.problem.memory_bytes(start)
    queue = [n for n in descent.nodes if n in within]
    allowed = set(queue)
    while queue:
        node = queue.pop(0)
        choice, memory = descent._choose(point, memory, single(descent.problem, node))
        if choice is not None:
            point[node] = choice
            others = neighbours(descent.problem, node)
            queue += [n for n in others if n in allowed and n not in queue]
    return point


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("share", [None, 0.6])
@pytest.mark.parametrize("mesh", ["4", "2x2"])
def test_refining_takes_the_best_choices_in_turn(mesh: str, share: float | None, seed: int) -> None:
    problem = build(transformer(), Mesh.parse(mesh), cluster())
    start = random_assignment(problem, seed)
    limit = None if share is None else int(share * problem.memory_bytes(start))
    descent = Descent(problem, memory_bytes=limit)
    for within in (range(len(start)), set(range(0, len(start), 2))):
        found = descent.refine(start, within)
        assert found != list(start)
        assert found == one_by_one(descent, start, within)


@pytest.mark.parametrize("seed", range(12))
def test_forests_reach_the_optimum_of_a_tree(seed: int) -> None:
    problem = tree(seed)
    forests = Descent(problem).forests
    point, rng = list(replicated(problem)), np.random.default_rng(seed)
    for _ in range(4):
        before_s = problem.cost_s(point)
        point = forests.improve(point, rng)
        assert problem.cost_s(point) <= before_s * (1 + 1e-12)
    best = exhaustive(problem, budget=20.0, seed=0)
    assert problem.cost_s(point) == pytest.approx(best.cost_s, rel=1e-9)
