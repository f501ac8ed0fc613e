"""Exact search against brute force and against the ILP, with and without memory limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from autoddl.errors import InfeasibleError
from autoddl.sbp.mesh import Mesh
from autoddl.search.budget import Counter
from autoddl.search.exact import primal_dual as exact
from autoddl.search.heuristics import descent
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.quotient import Quotient, quotient
from autoddl.search.reductions.restriction import restricted
from autoddl.search.relaxation.dual import Dual
from autoddl.search.result import SearchOptions
from autoddl.search.solvers import coordinate, ilp
from experiments.lib import oneflow_problems as builder
from tests.search import random_problems
from tests.search.elimination import minimum
from tests.search.objects import nodes_of, reduced_costs
from tests.search.random_problems import every_cost
from tests.support.clusters import cluster
from tests.support.programs import mlp, transformer

PROFILE = cluster()
KINDS = [random_problems.tree, random_problems.chain, random_problems.graph, random_problems.hub]


@pytest.mark.parametrize("seeds", [range(8), range(8, 32), range(32, 40)], ids=str)
@pytest.mark.parametrize("make", KINDS)
def test_exact_is_the_minimum_of_all_assignments(
    make: Callable[[int], CostNetwork], seeds: range
) -> None:
    """40 problems of each kind: 160."""
    for seed in seeds:
        p = make(seed)
        best = float(every_cost(p)[0].min())
        found = exact.search(p)
        assert found.cost_s == pytest.approx(best, rel=1e-9), seed
        assert found.cost_s == p.cost_s(found.assignment)
        assert found.lower_bound_s == found.cost_s, seed


@pytest.mark.parametrize("seeds", [range(4), range(4, 16), range(16, 20)], ids=str)
@pytest.mark.parametrize("make", KINDS)
def test_exact_under_a_memory_limit(make: Callable[[int], CostNetwork], seeds: range) -> None:
    for seed in seeds:
        p = make(seed)
        seconds, memory = every_cost(p)
        flat = int(seconds.argmin())
        for limit in (int(memory.flat[flat]) - 1, int(np.median(memory)), int(memory.min())):
            best = float(seconds[memory <= limit].min(initial=np.inf))
            if not np.isfinite(best):
                with pytest.raises(InfeasibleError):
                    exact.search(p, SearchOptions(memory_bytes=limit))
                continue
            found = exact.search(p, SearchOptions(memory_bytes=limit))
            assert found.memory_bytes <= limit
            assert found.cost_s == pytest.approx(best, rel=1e-9), (seed, limit)
            assert found.lower_bound_s == found.cost_s, (seed, limit)


@pytest.mark.parametrize("seeds", [range(200, 202), range(202, 208), range(208, 210)], ids=str)
@pytest.mark.parametrize("make", [random_problems.graph, random_problems.hub])
def test_exact_equals_the_ilp_on_larger_problems(
    make: Callable[..., CostNetwork], seeds: range
) -> None:
    """10 problems of each kind with 14 nodes: 20."""
    for seed in seeds:
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


LAYERED = [(6, "2", None), (5, "2x2", None), (5, "4", 0.5)]  # layers, mesh, where memory binds


@pytest.mark.parametrize(("layers", "mesh", "tight"), LAYERED)
def test_folded_layers_are_the_whole_problem(
    layers: int, mesh: str, tight: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = builder.build(transformer(layers), Mesh.parse(mesh), PROFILE)
    assert quotient(p).network is not p
    free = p.memory_bytes(exact.search(p).assignment)
    least = p.least_memory_bytes
    limit = None if tight is None else int(least + tight * (free - least))
    budget = 0.3 if limit else 60.0
    folded = exact.search(p, SearchOptions(memory_bytes=limit, budget=budget, clock=Counter()))
    monkeypatch.setattr(exact, "quotient", Quotient.identity)
    whole = exact.search(p, SearchOptions(memory_bytes=limit, budget=budget, clock=Counter()))
    assert whole.lower_bound_s <= folded.cost_s * (1 + 1e-9)
    assert folded.lower_bound_s <= whole.cost_s * (1 + 1e-9)
    if limit is None:
        assert folded.gap == whole.gap == 0.0
        assert folded.cost_s == pytest.approx(whole.cost_s, rel=1e-9)


@pytest.mark.parametrize("mesh", ["2", "2x2"])
@pytest.mark.parametrize("remain", [(1, 1), (2, 1), (3, 1), (2, 2), (3, 2)])
def test_a_fold_bounds_all_plans_of_all_layers(remain: tuple[int, int], mesh: str) -> None:
    p = builder.build(transformer(7), Mesh.parse(mesh), PROFILE)
    some = Quotient.apply(p, *remain)
    if not some.exact:
        assert remain == (1, 1)  # the first layer is followed by the embedding, no other one is
        return
    copies = some.multiplicities
    known = [
        exact.search(p).assignment,
        coordinate.search(p, SearchOptions(budget=2.0), restarts=2).assignment,
        descent.replicated(p),
    ]
    dual = Dual(some.network, most_s=2 * p.cost_s(known[-1]), copies=copies)
    for _ in range(3):
        bound, excess = dual.ascend(4), reduced_costs(dual)
        for assignment in known:
            most = max(excess[n][c] for n, c in zip(some.representative, assignment, strict=True))
            assert bound + most <= p.cost_s(assignment) * (1 + 1e-9)
    assert bound >= 0.9 * p.cost_s(known[0])


@pytest.mark.parametrize("seeds", [range(3), range(3, 12), range(12, 15)], ids=str)
@pytest.mark.parametrize("remain", [(1, 1), (2, 1), (2, 2)])
def test_a_fold_bounds_every_choice_of_every_layer(remain: tuple[int, int], seeds: range) -> None:
    for seed in seeds:
        p = random_problems.layers(seed)
        costs, _ = every_cost(p)
        some = Quotient.apply(p, *remain)
        assert len(some.variables) == 2 + sum(remain) and some.exact
        copies = some.multiplicities
        dual = Dual(some.network, most_s=float(2 * costs.min()), copies=copies)
        for _ in range(3):
            bound, excess = dual.ascend(3), reduced_costs(dual)
            for node, place in enumerate(some.representative):
                least = costs.min(axis=tuple(i for i in range(costs.ndim) if i != node))
                assert (bound + excess[place] <= least + 1e-9 * costs.min()).all(), (seed, node)


@pytest.mark.parametrize("seeds", [range(10), range(10, 20), range(20, 30)], ids=str)
def test_layers_that_a_fold_proves_are_the_minimum_of_all_assignments(
    seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most are proven without a look at all layers, which makes a Dual of as many nodes."""
    whole = []

    def counted(p: CostNetwork, **options: Any) -> Dual:
        whole.append(len(p) == 7 and "copies" not in options)
        return Dual(p, **options)

    monkeypatch.setattr(exact, "Dual", counted)
    for seed in seeds:
        p = random_problems.layers(seed)
        found = exact.search(p)
        assert found.cost_s == pytest.approx(float(every_cost(p)[0].min()), rel=1e-9), seed
        assert found.lower_bound_s == found.cost_s, seed
    assert sum(whole) < len(seeds) / 2


def test_deep_models_cost_what_elimination_finds() -> None:
    for seed in range(20):
        p = random_problems.layers(seed, blocks=30, size=2)
        found = exact.search(p)
        best = minimum(p, [np.arange(len(node.choices)) for node in nodes_of(p)])
        assert found.cost_s == pytest.approx(p.cost_s(best), rel=1e-9), seed
        assert found.lower_bound_s == found.cost_s, seed


def test_the_budget_and_the_gap_end_a_search() -> None:
    p = builder.build(transformer(6), Mesh.parse("2x2"), PROFILE)
    start = descent.replicated(p)
    none = exact.search(p, SearchOptions(budget=0.0, starts=[start]))
    assert none.cost_s <= p.cost_s(start) and none.lower_bound_s <= none.cost_s
    near = exact.search(p, SearchOptions(stop_gap=0.2))
    assert near.gap <= 0.2
    best = exact.search(p)
    assert near.lower_bound_s <= best.cost_s and none.lower_bound_s <= best.cost_s
    assert len(near.trace) <= len(best.trace)


def test_many_readers_of_one_tensor_are_proven() -> None:
    """More than one table can have entries for."""
    for seed in range(6):
        p = random_problems.hub(seed, size=12)
        found = exact.search(p)
        assert found.lower_bound_s == found.cost_s
        assert found.cost_s == pytest.approx(ilp.search(p).cost_s, rel=1e-9)


def test_a_tensor_with_more_readers_than_an_array_has_dims() -> None:
    for seed in range(3):
        p = random_problems.hub(seed, size=45)
        rng = np.random.default_rng(seed)
        known = coordinate.search(p, restarts=4).assignment
        some = [rng.random() < 0.2 for _ in nodes_of(p)]  # who may do otherwise than that
        domains = [
            np.arange(len(node.choices)) if free else np.array([choice])
            for node, free, choice in zip(nodes_of(p), some, known, strict=True)
        ]
        left = restricted(p, domains)
        found = exact.search(left)
        assert found.lower_bound_s == found.cost_s
        assert found.cost_s == pytest.approx(ilp.search(left).cost_s, rel=1e-7)
