"""Exact search against brute force and against the ILP, with and without memory limits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from autoddl.errors import InfeasibleError
from autoddl.sbp.mesh import Mesh
from autoddl.search import builder, exact, ilp
from autoddl.search.problem import Problem
from tests.clusters import cluster
from tests.programs import mlp, transformer
from tests.search import random_problems
from tests.search.random_problems import every_cost

PROFILE = cluster()
KINDS = [random_problems.tree, random_problems.chain, random_problems.graph, random_problems.hub]


@pytest.mark.parametrize("make", KINDS)
def test_exact_is_the_minimum_of_all_assignments(make: Callable[[int], Problem]) -> None:
    """125 problems of each kind: 500."""
    for seed in range(125):
        p = make(seed)
        best = float(every_cost(p)[0].min())
        found = exact.search(p)
        assert found.cost_s == pytest.approx(best, rel=1e-9), seed
        assert found.cost_s == p.cost_s(found.assignment)
        assert found.lower_bound_s == found.cost_s, seed


@pytest.mark.parametrize("make", KINDS)
def test_exact_under_a_memory_limit(make: Callable[[int], Problem]) -> None:
    for seed in range(40):
        p = make(seed)
        seconds, memory = every_cost(p)
        flat = int(seconds.argmin())
        for limit in (int(memory.flat[flat]) - 1, int(np.median(memory)), int(memory.min())):
            best = float(seconds[memory <= limit].min(initial=np.inf))
            if not np.isfinite(best):
                with pytest.raises(InfeasibleError):
                    exact.search(p, memory_bytes=limit)
                continue
            found = exact.search(p, memory_bytes=limit)
            assert found.memory_bytes <= limit
            assert found.cost_s == pytest.approx(best, rel=1e-9), (seed, limit)
            assert found.lower_bound_s == found.cost_s, (seed, limit)


@pytest.mark.parametrize("make", [random_problems.graph, random_problems.hub])
def test_exact_equals_the_ilp_on_larger_problems(make: Callable[..., Problem]) -> None:
    """25 problems of each kind with 14 nodes: 50."""
    for seed in range(200, 225):
        p = make(seed, size=14)
        found, other = exact.search(p), ilp.search(p)
        assert found.cost_s == pytest.approx(other.cost_s, rel=1e-9), seed
        assert found.lower_bound_s == found.cost_s, seed


@pytest.mark.parametrize("mesh", ["4", "2x2"])
@pytest.mark.parametrize("program", [mlp(64, (64, 128, 32)), transformer()], ids=["mlp", "gpt"])
def test_exact_proves_programs_that_the_ilp_solves(program: object, mesh: str) -> None:
    p = builder.build(program, Mesh.parse(mesh), PROFILE)  # type: ignore[arg-type]
    found = exact.search(p)
    assert found.gap == 0.0
    assert found.cost_s == pytest.approx(ilp.search(p).cost_s, rel=1e-9)
