"""Budgets: what is given, and that searches which count evaluations do not depend on the machine."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import autoddl
from autoddl.errors import AutoDDLError
from autoddl.sbp.mesh import Mesh
from autoddl.search.budget import EVALUATION_S, Allowance, Budget, Counter
from autoddl.search.result import SearchOptions
from autoddl.search.solvers import ilp
from experiments.lib.oneflow_problems import build
from tests.support.clusters import cluster
from tests.support.programs import mlp, transformer


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "got 0 of seconds and evaluations; give one of them"),
        ({"seconds": 1, "evaluations": 1}, "got 2 of seconds and evaluations"),
        ({"seconds": 0}, "allowed are seconds > 0"),
        ({"seconds": math.nan}, "allowed are seconds > 0"),
        ({"evaluations": "many"}, "allowed are evaluations > 0"),
        ({"evaluations": True}, "allowed are evaluations > 0"),
    ],
)
def test_what_is_no_budget_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(AutoDDLError, match=r"^budget: ") as error:
        Budget(**given)
    assert message in str(error.value)


def test_a_counter_is_moved_by_work_alone() -> None:
    allowance = Budget(evaluations=300).begin()
    first = allowance.next(200 * EVALUATION_S)
    time.sleep(0.01)
    assert allowance.spent_s() == 0 and not first.over()
    allowance.clock.count(200)
    assert first.over() and first.left_s() == 0
    assert allowance.left_s() == pytest.approx(100 * EVALUATION_S)
    assert first.next(1.0).left_s() == 1.0


def test_every_plan_has_a_counter_of_its_own() -> None:
    budget = Budget(evaluations=10)
    budget.begin().clock.count(10)
    assert not budget.begin().over()
    assert isinstance(Budget(seconds=5).begin(), Allowance)
    assert not isinstance(Budget(seconds=5).begin().clock, Counter)


@contextmanager
def _slow(monkeypatch: pytest.MonkeyPatch, factor: float) -> Iterator[None]:
    """Let the machine's clock run so many times as fast, as if everything took as much longer."""
    begin = time.perf_counter()
    with monkeypatch.context() as patch:
        for module in ("autoddl.compiled", "autoddl.search.budget"):
            patch.setattr(
                f"{module}.clock_s", lambda: begin + factor * (time.perf_counter() - begin)
            )
        yield


@pytest.mark.parametrize("options", [{"mesh": "2x2"}, {"cluster": "4", "pipeline": "auto"}])
@pytest.mark.parametrize("evaluations", [3000, 300])
def test_as_many_evaluations_give_the_same_plan_on_a_slow_machine(
    options: dict[str, Any], evaluations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {**options, "profile": cluster(), "budget": Budget(evaluations=evaluations)}
    fast = autoddl.optimize(transformer(), **asked)
    with _slow(monkeypatch, 1e4):
        slow = autoddl.optimize(transformer(), **asked)
    assert fast.parts == slow.parts
    assert fast.search.lower_bound_s == slow.search.lower_bound_s
    assert fast.search.outcomes == slow.search.outcomes


@pytest.mark.parametrize("budget", [Budget(evaluations=1e4), Budget(evaluations=math.inf)])
def test_integer_programs_end_by_evaluations(budget: Budget) -> None:
    """HiGHS gets a limit of nodes in place of one of seconds, or none."""
    network = build(mlp(), Mesh.parse("2"), cluster())
    allowance = budget.begin()
    found = ilp.search(network, SearchOptions(allowance.seconds, clock=allowance.clock))
    assert found.cost_s == ilp.search(network).cost_s
    assert allowance.spent_s() > 0
