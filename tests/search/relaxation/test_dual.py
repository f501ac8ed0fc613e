"""The relaxation and what is solved with it, against the costs of all assignments."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from autoddl.sbp.mesh import Mesh
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.prices import Prices
from autoddl.search.reductions.restriction import restricted
from autoddl.search.relaxation import factor_graph
from autoddl.search.relaxation.dual import Dual
from experiments.lib import oneflow_problems as builder
from tests.search import random_problems
from tests.search.objects import edges_of, nodes_of, reduced_costs
from tests.search.random_problems import every_cost
from tests.support.clusters import cluster
from tests.support.programs import transformer

KINDS = [random_problems.tree, random_problems.chain, random_problems.graph, random_problems.hub]
CLOSE = 1e-9  # relative


def least_with(costs: np.ndarray, node: int) -> np.ndarray:
    """Return for each choice of a node the cost of the best assignment that has it."""
    return costs.min(axis=tuple(i for i in range(costs.ndim) if i != node))


@pytest.mark.parametrize("rounds", [0, 1, 20])
@pytest.mark.parametrize("make", KINDS)
def test_no_assignment_is_below_the_bound_nor_below_that_of_its_choices(
    make: Callable[[int], CostNetwork], rounds: int
) -> None:
    for seed in range(10):
        p = make(seed)
        costs, _ = every_cost(p)
        dual = Dual(p, most_s=float(2 * costs.min()))
        bound = dual.ascend(rounds)
        assert bound <= costs.min() * (1 + CLOSE), seed
        for node, excess in enumerate(reduced_costs(dual)):
            least = least_with(costs, node)
            assert (bound + excess <= least + CLOSE * costs.min()).all(), (seed, node)


@pytest.mark.parametrize("make", KINDS)
def test_ascent_never_falls_and_is_tight_on_trees(make: Callable[[int], CostNetwork]) -> None:
    for seed in range(10):
        p = make(seed)
        best = float(every_cost(p)[0].min())
        dual = Dual(p, most_s=2 * best)
        bounds = [dual.bound(), *_without_momentum(dual, 30)]
        assert (np.diff(bounds) >= -CLOSE * best).all(), seed
        if make is random_problems.tree and all(len(e.readers) == 1 for e in edges_of(p)):
            assert bounds[-1] == pytest.approx(best, rel=1e-6), seed


def _without_momentum(dual: Dual, rounds: int) -> list[float]:
    """Return the bounds after each of so many rounds."""
    bounds = []
    for _ in range(rounds):
        dual.stop()
        bounds.append(dual.ascend(1))
    return bounds


@pytest.mark.parametrize("mesh", ["4", "2x2"])
def test_momentum_saves_rounds(mesh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where terms have few readers messages creep."""
    monkeypatch.setattr(factor_graph, "MANY_READERS", 4)
    program = transformer(2, batch=64, length=512, width=1024, heads=16, vocabulary=8192)
    problem = builder.build(program, Mesh.parse(mesh), cluster())
    slow = _without_momentum(Dual(problem, most_s=1e3), 40)
    fast = Dual(problem, most_s=1e3).ascend(17)
    assert slow[17] < (1 - 5e-5) * slow[-1] < (1 - 1e-7) * slow[-1] <= fast


def test_a_restricted_problem_keeps_shares_and_messages() -> None:
    for seed in range(20):
        p = random_problems.graph(seed)
        costs, _ = every_cost(p)
        best = np.unravel_index(int(costs.argmin()), costs.shape)
        dual = Dual(p, most_s=float(2 * costs.min()))
        bound = dual.ascend(10)
        domains = [
            np.unique([int(c), len(n.choices) - 1]) for c, n in zip(best, nodes_of(p), strict=True)
        ]
        after = Dual(restricted(p, domains), most_s=float(2 * costs.min()), before=dual)
        dual.drop(domains)
        assert after.bound() >= bound * (1 - CLOSE), seed
        assert dual.bound() >= bound * (1 - CLOSE), seed
        smaller = costs[np.ix_(*domains)].min()
        for relaxation in (dual, after):
            assert relaxation.ascend(5) <= smaller * (1 + CLOSE), seed


@pytest.mark.parametrize("make", KINDS)
def test_a_relaxation_that_begins_anew_is_that_of_the_choices_which_are_left(
    make: Callable[[int], CostNetwork],
) -> None:
    for seed in range(10):
        p, rng = make(seed), np.random.default_rng(seed)
        costs, held = every_cost(p)
        byte_s, most_s = float(costs.min() / held.max()), float(4 * costs.min())
        dual = Dual(p, most_s=most_s, prices=Prices(byte_s=byte_s))
        dual.ascend(3)
        dual.drop([np.zeros(1, dtype=np.int64)] * len(p))
        sizes = p.variables.sizes.tolist()
        some = [np.flatnonzero(np.append(rng.random(n - 1) < 0.5, True)) for n in sizes]
        dual.begin(some)
        fresh = Dual(p, most_s=most_s, prices=dual.prices)
        fresh.drop(some)
        assert (dual.messages == fresh.messages).all() and (dual.lent == fresh.lent).all(), seed
        assert dual.ascend(4) == fresh.ascend(4), seed
        excess = np.concatenate(reduced_costs(dual))
        assert np.isinf(excess).sum() == sum(sizes) - sum(map(len, some)), seed
        least = (costs + byte_s * held)[np.ix_(*some)].min()
        assert dual.bound() <= least * (1 + CLOSE), seed


@pytest.mark.parametrize("make", KINDS)
def test_choices_are_kept_within_the_slack_and_one_at_least(
    make: Callable[[int], CostNetwork],
) -> None:
    dropped = only = 0
    for seed in range(10):
        dual = Dual(make(seed), most_s=1.0)
        dual.ascend(3)
        excess = reduced_costs(dual)
        for slack_s in (0.0, float(np.median(np.concatenate(excess)))):
            for own, kept in zip(excess, dual.kept(slack_s), strict=True):
                wanted = [i for i, e in enumerate(own) if e <= slack_s or e == own.min()]
                assert kept.tolist() == wanted
                dropped += len(kept) < len(own)
                only += own.min() > slack_s
    assert dropped
    assert only or make is random_problems.tree
