"""Coordinate descent: its blocks and its restarts."""

from __future__ import annotations

from autoddl.sbp.mesh import Mesh
from autoddl.search.heuristics.descent import Descent, replicated
from autoddl.search.result import SearchOptions
from autoddl.search.solvers import coordinate, ilp
from experiments.lib import oneflow_problems as builder
from tests.search import random_problems
from tests.support.clusters import cluster
from tests.support.programs import transformer


def test_blocks_leave_a_fixed_point_of_single_nodes() -> None:
    """What no single node improves blocks do, and at the end neither does."""
    p = builder.build(transformer(2, 16, 256, 512, 4, 8192), Mesh.parse("4"), cluster())
    descent = Descent(p)
    refined = descent.refine(replicated(p))
    found = descent.run(refined)
    assert p.cost_s(found) < p.cost_s(refined) * 0.99
    assert (descent.run(found) == found).all()


def test_restarts_find_more_and_are_the_same_each_time() -> None:
    p = random_problems.graph(3, size=14)
    one, many, again = (
        coordinate.search(p, SearchOptions(seed=1), restarts=n) for n in (1, 60, 60)
    )
    best_s = ilp.search(p).cost_s
    assert best_s * (1 - 1e-9) <= many.cost_s <= one.cost_s
    assert many.assignment == again.assignment
    assert any(
        coordinate.search(random_problems.graph(s, size=14), restarts=60).cost_s
        < coordinate.search(random_problems.graph(s, size=14), restarts=1).cost_s
        for s in range(6)
    )
