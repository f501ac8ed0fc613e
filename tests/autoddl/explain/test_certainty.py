"""What is certain of a plan: against its file, and against the prices of single ops and boxings."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest

from autoddl.explain.certainty import certainty, source_errors
from autoddl.explain.reopened import reopened
from autoddl.perfmodel.timeline import MODEL_ERROR
from autoddl.planner.whole.assigned import Assigned
from autoddl.search.baselines import assignments
from tests.autoddl.explain.plans import PROGRAMS, planned, profile_for


@pytest.mark.parametrize("name", PROGRAMS)
def test_from_its_file_plans_within_the_error_are_tied(name: str) -> None:
    plan = planned(name)
    told, off_s = certainty(plan), plan.estimate.uncertainty_s
    more = {row.name: row.step_s - plan.estimate.step_s for row in plan.baselines}
    assert dict((*told.tied, *told.clear)) == more
    assert {n for n, _ in told.tied} == {n for n, s in more.items() if abs(s) <= off_s}
    assert (told.gap, told.uncertainty_s) == (plan.search.gap, off_s)


@pytest.mark.parametrize("name", PROGRAMS)
def test_with_prices_what_both_take_of_one_source_cancels_out(name: str) -> None:
    """Summed up here price by price."""
    plan, profile = planned(name), profile_for(name)
    found = reopened(plan, profile)
    rivals = {n: Assigned(found.problem, a) for n, a in assignments(found.problem).items()}
    tied = set()
    for rival, one in rivals.items():
        apart = defaultdict[str, float](float)
        for sign, each in ((1, found.chosen), (-1, one)):
            cost = found.problem.setting.prices.step(each.layout)
            for price in (*cost.ops.rows(), *cost.boxings.rows()):
                apart[price.source] += sign * price.seconds * price.error
        more_s = one.step_s - found.chosen.step_s
        if abs(more_s) <= math.hypot(*apart.values(), MODEL_ERROR * more_s):
            tied.add(rival)
    told = certainty(plan, found)
    assert {n for n, _ in told.tied} == tied
    assert {n for n, _ in (*told.tied, *told.clear)} == rivals.keys()


@pytest.mark.parametrize("name", ["mlp", "cuda"])
def test_errors_by_source_are_those_of_all_prices(name: str) -> None:
    found = reopened(planned(name), profile_for(name))
    told = source_errors(found)
    cost = found.problem.setting.prices.step(found.chosen.layout)
    rows = [price for part in cost for price in part.rows()]
    assert sum(each.seconds for each in told) == pytest.approx(sum(p.seconds for p in rows))
    for each in told:
        own = [price for price in rows if price.source == each.source]
        assert each.off_s == pytest.approx(sum(p.seconds * p.error for p in own))
    assert [e.off_s for e in told] == sorted((e.off_s for e in told), reverse=True)
