"""The ILP against brute force over all assignments, and its relaxation as a lower bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize

from autoddl.errors import InfeasibleError
from autoddl.sbp.mesh import Mesh
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.result import SearchOptions
from autoddl.search.solvers import coordinate, exhaustive, ilp
from autoddl.search.solvers.milp_model import Model
from experiments.lib import oneflow_problems as builder
from tests.search import random_problems
from tests.search.objects import Node, edges_of, nodes_of, replaced
from tests.search.random_problems import GIB, every_cost
from tests.support.clusters import cluster
from tests.support.programs import mlp, transformer

PROFILE = cluster()
KINDS = [random_problems.tree, random_problems.chain, random_problems.graph, random_problems.hub]


def relaxation(p: CostNetwork) -> float:
    """Return the optimum in seconds where nodes may mix their choices: a lower bound."""
    model = Model(p)
    scale = ilp.LARGEST / model.cost.max()
    bounds = optimize.Bounds(0.0, 1.0)
    found = optimize.milp(model.cost * scale, bounds=bounds, constraints=model.constraint)
    return float(found.fun) / scale


@pytest.mark.parametrize("seeds", [range(2), range(2, 12), range(12, 14)], ids=str)
@pytest.mark.parametrize("make", KINDS)
def test_ilp_is_the_minimum_of_all_assignments(
    make: Callable[[int], CostNetwork], seeds: range
) -> None:
    for seed in seeds:
        p = make(seed)
        seconds, memory = every_cost(p)
        best = float(seconds.min())
        found = ilp.search(p)
        assert found.cost_s == pytest.approx(best, rel=1e-9), seed
        assert found.cost_s == p.cost_s(found.assignment)
        assert found.memory_bytes == p.memory_bytes(found.assignment)
        assert best * (1 - 1e-6) <= found.lower_bound_s <= found.cost_s
        assert p.lower_bound_s() * (1 - 1e-6) <= relaxation(p) <= best * (1 + 1e-9), seed
        check_limits(p, seconds, memory, seed)


def check_limits(p: CostNetwork, seconds: np.ndarray, memory: np.ndarray, seed: int) -> None:
    """Compare under a limit that is just missed by the best assignment, and under the least."""
    flat = int(seconds.argmin())
    for limit in (int(memory.flat[flat]) - 1, int(memory.min())):
        best = float(seconds[memory <= limit].min(initial=np.inf))
        if np.isfinite(best):
            found = ilp.search(p, SearchOptions(memory_bytes=limit))
            assert found.cost_s == pytest.approx(best, rel=1e-9), seed
            assert found.memory_bytes <= limit
        else:
            with pytest.raises(InfeasibleError):
                ilp.search(p, SearchOptions(memory_bytes=limit))


def test_relaxation_of_a_tree_is_its_optimum() -> None:
    """Convex hulls that overlap in one node at most have none but whole corners."""
    trees = [random_problems.tree(seed) for seed in range(100, 130)]
    hulls = [p for p in trees if all(len(edge.readers) <= 2 for edge in edges_of(p))]
    assert len(hulls) > 15
    for p in hulls:
        assert relaxation(p) == pytest.approx(float(every_cost(p)[0].min()), rel=1e-6)


@pytest.mark.parametrize("mesh", ["2x2", "4", "2"])
@pytest.mark.parametrize("program", [mlp(64, (64, 128, 32)), transformer()], ids=["mlp", "gpt"])
def test_no_other_solver_is_better(program: object, mesh: str) -> None:
    p = builder.build(program, Mesh.parse(mesh), PROFILE)  # type: ignore[arg-type]
    found = ilp.search(p)
    other = coordinate.search(p, SearchOptions(budget=3.0), restarts=2)
    assert found.cost_s <= other.cost_s * (1 + 1e-9)
    assert found.gap == pytest.approx(0.0, abs=1e-9)
    assert relaxation(p) <= found.cost_s * (1 + 1e-9)


@pytest.mark.parametrize("sizes", [(8, (4, 2)), (256, (512, 8)), (4, (64, 256))])
def test_ilp_against_exhaustive(sizes: tuple[int, tuple[int, ...]]) -> None:
    program = mlp(*sizes, optimizer="sgd", act="", bias=False)
    p = builder.build(program, Mesh.parse("2"), PROFILE)
    exact = exhaustive.search(p, limit=50_000_000)
    assert ilp.search(p).cost_s == pytest.approx(exact.cost_s, rel=1e-9)


def test_memory_is_compared_to_the_byte() -> None:
    """One byte over a limit of many GiB is less than HiGHS's tolerance."""
    p = random_problems.tree(0)
    nodes = [replace(node, memory_bytes=GIB * 64 * (node.memory_bytes % 9)) for node in nodes_of(p)]
    heavy = replaced(p, nodes)
    seconds, memory = every_cost(heavy)
    limit = int(memory.flat[int(seconds.argmin())]) - 1
    assert limit > heavy.least_memory_bytes
    found = ilp.search(heavy, SearchOptions(memory_bytes=limit))
    assert found.memory_bytes <= limit
    assert found.cost_s == pytest.approx(float(seconds[memory <= limit].min()), rel=1e-9)


def test_too_little_memory_says_how_much_is_missing() -> None:
    p = random_problems.graph(0)
    with pytest.raises(InfeasibleError, match="1 B more"):
        ilp.search(p, SearchOptions(memory_bytes=p.least_memory_bytes - 1))


def test_no_assignment_of_finite_cost() -> None:
    p = random_problems.graph(0)
    lost: list[Node] = [
        replace(nodes_of(p)[0], compute_s=np.full(len(nodes_of(p)[0].choices), np.inf))
    ]
    with pytest.raises(InfeasibleError, match="ILP of 6 nodes on mesh 2x2"):
        ilp.search(replaced(p, (*lost, *nodes_of(p)[1:])))


def test_without_time_the_best_start_comes_back_with_a_bound() -> None:
    p = builder.build(transformer(), Mesh.parse("2x2"), PROFILE)
    start = coordinate.search(p, SearchOptions(budget=2.0), restarts=1).assignment
    seen: list[float] = []
    found = ilp.search(
        p, SearchOptions(budget=0.0, starts=[start], progress=lambda _, cost: seen.append(cost))
    )
    assert found.assignment == start
    assert p.lower_bound_s() <= found.lower_bound_s <= found.cost_s
    assert seen == [found.cost_s] * 2


def test_the_gap_at_which_to_stop() -> None:
    p = random_problems.graph(3, size=8)
    found = ilp.search(p, SearchOptions(stop_gap=0.5))
    assert found.gap <= 0.5
    assert found.lower_bound_s <= ilp.search(p).cost_s
