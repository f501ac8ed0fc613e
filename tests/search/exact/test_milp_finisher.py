"""What ascents leave unproven: better plans and proofs from an integer linear program."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from autoddl.perfmodel import profile
from autoddl.sbp.mesh import Mesh
from autoddl.search.budget import Counter
from autoddl.search.exact import milp_finisher
from autoddl.search.exact import primal_dual as exact
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.result import SearchOptions, SearchResult
from autoddl.search.solvers import coordinate
from experiments.lib import oneflow_problems as builder
from tests.search import random_problems
from tests.search.random_problems import every_cost
from tests.support.programs import transformer


def without(
    problem: CostNetwork, monkeypatch: pytest.MonkeyPatch, limit: int | None = None
) -> SearchResult:
    """Search without a program."""
    with monkeypatch.context() as patch:
        patch.setattr(exact, "finish", lambda run, ascent, go_on: None)
        return exact.search(problem, SearchOptions(memory_bytes=limit))


@pytest.mark.parametrize("seeds", [range(30, 45), range(30), range(45, 60)], ids=str)
@pytest.mark.parametrize("limited", [False, True])
def test_what_is_left_is_proven(
    limited: bool, seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against brute force, where ascents can't look at what they leave."""
    open_ones = 0
    for seed in seeds:
        p = random_problems.graph(seed)
        seconds, held = every_cost(p)
        limit = int(np.median(held)) if limited else None
        least_s = float(seconds[held <= limit].min() if limited else seconds.min())
        found = exact.search(p, SearchOptions(memory_bytes=limit))
        assert found.cost_s == pytest.approx(least_s, rel=1e-9), seed
        assert found.lower_bound_s == found.cost_s, seed
        assert limit is None or found.memory_bytes <= limit
        open_ones += without(p, monkeypatch, limit).gap > 1e-6
    assert open_ones


def test_many_readers_are_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    p = random_problems.hub(11, size=20)
    before, found = without(p, monkeypatch), exact.search(p)
    assert before.gap > 0.01
    assert before.lower_bound_s <= found.lower_bound_s == found.cost_s
    assert found.cost_s <= coordinate.search(p, restarts=8).cost_s


def gpt() -> CostNetwork:
    links = profile.load("cpu-loopback", device_type="cpu")
    return builder.build(transformer(2, 8, 64, 256, 8, 512), Mesh.parse("2x2"), links)


GROWING = [
    (lambda: random_problems.hub(11, size=20), 20), (gpt, 400),
    (lambda: random_problems.graph(1, size=40), 20),
]  # fmt: skip


@pytest.mark.parametrize(("make", "first"), GROWING, ids=["hub", "gpt", "graph"])
def test_programs_grow_until_one_has_the_best_plan(
    make: Callable[[], CostNetwork], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = make()
    monkeypatch.setattr(milp_finisher, "FIRST", first)
    options = SearchOptions(budget=60.0, clock=Counter())  # of evaluations, whatever else runs
    before, found = without(p, monkeypatch), exact.search(p, options)
    assert before.lower_bound_s <= found.lower_bound_s == found.cost_s < before.cost_s * 0.995
