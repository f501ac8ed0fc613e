"""The relaxation and what is solved with it, against the costs of all assignments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from autoddl.sbp.mesh import Mesh
from autoddl.search import builder
from autoddl.search.dual import Dual
from autoddl.search.frontier import cheapest
from autoddl.search.problem import Problem
from autoddl.search.restrict import restricted
from tests.clusters import cluster
from tests.programs import transformer
from tests.search import random_problems
from tests.search.random_problems import every_cost

KINDS = [random_problems.tree, random_problems.chain, random_problems.graph, random_problems.hub]
CLOSE = 1e-9  # relative


def least_with(costs: np.ndarray, node: int) -> np.ndarray:
    """Return for each choice of a node the cost of the best assignment that has it."""
    return costs.min(axis=tuple(i for i in range(costs.ndim) if i != node))


@pytest.mark.parametrize("rounds", [0, 1, 20])
@pytest.mark.parametrize("make", KINDS)
def test_no_assignment_is_below_the_bound_nor_below_that_of_its_choices(
    make: Callable[[int], Problem], rounds: int
) -> None:
    for seed in range(30):
        p = make(seed)
        costs, _ = every_cost(p)
        dual = Dual(p, most_s=float(2 * costs.min()))
        bound = dual.ascend(rounds)
        assert bound <= costs.min() * (1 + CLOSE), seed
        for node, excess in enumerate(dual.excess()):
            least = least_with(costs, node)
            assert (bound + excess <= least + CLOSE * costs.min()).all(), (seed, node)


@pytest.mark.parametrize("make", KINDS)
def test_ascent_never_falls_and_is_tight_on_trees(make: Callable[[int], Problem]) -> None:
    for seed in range(30):
        p = make(seed)
        best = float(every_cost(p)[0].min())
        dual = Dual(p, most_s=2 * best)
        bounds = [dual.bound(), *_without_momentum(dual, 30)]
        assert (np.diff(bounds) >= -CLOSE * best).all(), seed
        if make is random_problems.tree and all(len(e.readers) == 1 for e in p.edges):
            assert bounds[-1] == pytest.approx(best, rel=1e-6), seed


def _without_momentum(dual: Dual, rounds: int) -> list[float]:
    """Return the bounds after each of so many rounds."""
    bounds = []
    for _ in range(rounds):
        dual.stop()
        bounds.append(dual.ascend(1))
    return bounds


@pytest.mark.parametrize("mesh", ["4", "2x2"])
def test_momentum_saves_rounds(mesh: str) -> None:
    program = transformer(2, batch=64, length=512, width=1024, heads=16, vocabulary=8192)
    problem = builder.build(program, Mesh.parse(mesh), cluster())
    slow = _without_momentum(Dual(problem, most_s=1e3), 40)
    fast = Dual(problem, most_s=1e3).ascend(17)
    assert slow[17] < (1 - 5e-5) * slow[-1] < (1 - 1e-7) * slow[-1] <= fast


@pytest.mark.parametrize("make", KINDS)
def test_unary_pair_and_tensor_terms_add_up_to_the_cost(make: Callable[[int], Problem]) -> None:
    """Whatever the slack and the order of nodes: within it the cheapest plan is the optimum."""
    for seed in range(40):
        p = make(seed)
        costs, _ = every_cost(p)
        best = float(costs.min())
        dual = Dual(p, most_s=2 * best)
        bound = dual.ascend(seed % 4)
        domains = [np.arange(len(node.choices)) for node in p.nodes]
        found = cheapest(dual, domains, best * (1 + CLOSE) - bound, width=1_000_000)
        assert found.proven and found.assignment is not None
        assert p.cost_s(found.assignment) == pytest.approx(best, rel=CLOSE), seed
        none = cheapest(dual, domains, best * (1 - 1e-6) - bound, width=1_000_000)
        assert none.proven and none.assignment is None, seed


@pytest.mark.parametrize("make", KINDS)
def test_a_beam_finds_plans_and_claims_nothing(make: Callable[[int], Problem]) -> None:
    narrowed = 0
    for seed in range(20):
        p = make(seed)
        costs, _ = every_cost(p)
        worst = float(costs[np.isfinite(costs)].max())
        dual = Dual(p, most_s=2 * worst)
        domains = [np.arange(len(node.choices)) for node in p.nodes]
        found = cheapest(dual, domains, worst - dual.bound(), width=2)
        if found.proven:
            continue
        narrowed += 1
        assert found.assignment is None or costs[tuple(found.assignment)] >= costs.min()
    assert narrowed > 5


def test_a_restricted_problem_keeps_shares_and_messages() -> None:
    for seed in range(20):
        p = random_problems.graph(seed)
        costs, _ = every_cost(p)
        best = np.unravel_index(int(costs.argmin()), costs.shape)
        dual = Dual(p, most_s=float(2 * costs.min()))
        bound = dual.ascend(10)
        domains = [
            np.unique([int(c), len(n.choices) - 1]) for c, n in zip(best, p.nodes, strict=True)
        ]
        after = Dual(restricted(p, domains), most_s=float(2 * costs.min()), before=dual)
        dual.drop(domains)
        assert after.bound() >= bound * (1 - CLOSE), seed
        assert dual.bound() >= bound * (1 - CLOSE), seed
        smaller = costs[np.ix_(*domains)].min()
        for relaxation in (dual, after):
            assert relaxation.ascend(5) <= smaller * (1 + CLOSE), seed


@pytest.mark.parametrize("make", KINDS)
def test_other_prices_are_as_those_of_a_relaxation_of_their_own(
    make: Callable[[int], Problem],
) -> None:
    rng, compared = np.random.default_rng(0), 0
    for seed in range(20):
        p = make(seed)
        dual = Dual(p, byte_s=1e-3, most_s=1e3)
        dual.ascend(2)
        node = int(rng.integers(len(p.nodes)))
        held = rng.integers(0, 1000, len(p.nodes[node].choices))
        nodes, edges = list(p.nodes), list(p.edges)
        nodes[node] = replace(nodes[node], memory_bytes=held)
        for index, edge in enumerate(p.edges):
            if len(edge.readers) == 1:
                cost = rng.permuted(edge.table.cost) + 0.5
                edges[index] = replace(edge, table=replace(edge.table, cost=cost))
                other = replace(p, nodes=tuple(nodes), edges=tuple(edges))
                anew = Dual(other, byte_s=2e-3, most_s=1e3, before=dual)
                again = dual.repriced(2e-3, index, cost, {node: held})
                assert again.bound() == pytest.approx(anew.bound(), rel=CLOSE), seed
                assert again.ascend(3) == pytest.approx(anew.ascend(3), rel=CLOSE), seed
                assert dual.repriced(1e-3, index, edge.table.cost, {}).bound() == dual.bound()
                edges[index] = edge
                compared += 1
    assert compared > 20


@pytest.mark.parametrize("make", KINDS)
def test_choices_are_kept_within_the_slack_and_one_at_least(make: Callable[[int], Problem]) -> None:
    dropped = only = 0
    for seed in range(10):
        dual = Dual(make(seed), most_s=1.0)
        dual.ascend(3)
        excess = dual.excess()
        for slack_s in (0.0, float(np.median(np.concatenate(excess)))):
            for own, kept in zip(excess, dual.kept(slack_s), strict=True):
                wanted = [i for i, e in enumerate(own) if e <= slack_s or e == own.min()]
                assert kept.tolist() == wanted
                dropped += len(kept) < len(own)
                only += own.min() > slack_s
    assert dropped
    assert only or make is random_problems.tree
