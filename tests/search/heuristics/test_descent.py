"""The compiled loop of single variables, against the prices of blocks one by one."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from autoddl.sbp.mesh import Mesh
from autoddl.search.heuristics.cells import single
from autoddl.search.heuristics.descent import Descent
from autoddl.search.network.cost_network import Ints, as_ints
from autoddl.search.result import Assignment
from autoddl.search.rivals.random_sampling import random_assignment
from experiments.lib.oneflow_problems import build
from tests.search import random_problems
from tests.support.clusters import cluster
from tests.support.programs import transformer


def one_by_one(descent: Descent, start: Assignment, within: Collection[int]) -> Ints:
    """Refine with the prices of blocks of one variable."""
    point, memory = as_ints(start).copy(), descent.network.memory_bytes(start)
    queue = [n for n in descent.free if n in within]
    allowed = set(queue)
    while queue:
        node = queue.pop(0)
        move = single(descent.network, node)
        choice, memory = descent.choose(point, memory, move)
        if choice is not None:
            point[node] = choice
            others = descent.network.neighbours(node)
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
        assert (found != as_ints(start)).any()
        assert (found == one_by_one(descent, start, within)).all()


def test_variables_that_read_a_tensor_twice_take_the_best_choices_too() -> None:
    """Their two states may differ, so that neither alone tells what the factor costs."""
    twice = 0
    for seed in range(60):
        problem = random_problems.graph(seed)
        pairs = list(zip(problem.factors.variable, problem.factors.factor, strict=True))
        twice += len(set(pairs)) < len(pairs)
        start, descent = random_assignment(problem, seed), Descent(problem)
        every = range(len(start))
        assert (descent.refine(start, every) == one_by_one(descent, start, every)).all(), seed
    assert twice > 10
