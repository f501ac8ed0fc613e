"""All that `explain` tells of a plan, as values; autoddl.report.explanation_text writes them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from autoddl.errors import AutoDDLError, shown
from autoddl.explain.alternatives import Why
from autoddl.explain.alternatives import why as reasons
from autoddl.explain.certainty import Certainty, certainty
from autoddl.explain.layer_rows import LayerRow, layer_rows
from autoddl.explain.reopened import Reopened, check_whole, reopened
from autoddl.explain.waits import StageWait, Waits, stage_waits, waits_of
from autoddl.explain.why_not import WhyNot
from autoddl.explain.why_not import why_not as reason_not
from autoddl.perfmodel.profile import Profile
from autoddl.plan.priced_with import is_known, profile_of
from autoddl.plan.value import PlanValue
from autoddl.search.budget import Budget

BUDGET_S = 2.0  # of each search around another choice
SMALL = 1e-3  # relative; by less a step that is priced again is the plan's own


@dataclass(frozen=True)
class Explanation:
    """What a plan does, layer by layer, what its step waits for, and what is certain of it.

    With `stages` what these wait for stands in place of the step's `waits`, which are None, too, where
    the plan's profile is not known. Where prices are no more those that the plan was made with its
    step takes `repriced_s` now. Where it was asked about a module or tensor there are `whys`, or a
    `why_not`, in place of all that.
    """

    devices: str
    profile: str
    layers: tuple[LayerRow, ...] = ()
    stages: tuple[StageWait, ...] = ()
    waits: Waits | None = None
    certain: Certainty | None = None
    repriced_s: float | None = None
    whys: tuple[Why, ...] = ()
    why_not: WhyNot | None = None


def explain(
    plan: PlanValue, why: str | None = None, why_not: str | None = None, *,
    profile: str | Path | Profile | None = None, budget: float | Budget = BUDGET_S,
) -> Explanation:  # fmt: skip
    """Return what a plan does; with `why` that of a module or tensor, with `why_not` of a state of it.

    The search around each other choice gets a `budget`; 0 is none.

    Raises:
        AutoDDLError: there is no such module or state; why is asked of a plan with stages, or of one
            whose profile is not known.
    """
    for option, given in (("why", why), ("why_not", why_not)):
        if not isinstance(given, str | None):
            raise AutoDDLError(f"explain: {option}: got {shown(given, 150)}; allowed is text")
    if why is None and why_not is not None:
        raise AutoDDLError(
            f"explain: why_not={shown(why_not)} of what? give a module or tensor with why"
        )
    if why is not None:
        check_whole(plan)
        known = profile_of(plan, profile, "explain")
        found = reopened(plan, known)
        told = Explanation(plan.devices_text, known.name, repriced_s=_repriced(plan, found))
        each = None if not isinstance(budget, Budget) and budget == 0 else Budget.of(budget)
        if why_not is None:
            return replace(told, whys=reasons(found, why, each))
        return replace(told, why_not=reason_not(found, why, why_not, each))
    rows = layer_rows(plan)
    if plan.pipelined:
        if profile is not None:
            raise AutoDDLError(
                "explain: a plan with stages has its seconds in it; leave out the profile"
            )
        certain, stages = certainty(plan), stage_waits(plan)
        return Explanation(plan.devices_text, plan.profile, rows, stages, certain=certain)
    if profile is None and not is_known(plan):
        return Explanation(plan.devices_text, plan.profile, rows, certain=certainty(plan))
    known = profile_of(plan, profile, "explain")
    found = reopened(plan, known)
    waits = waits_of(found.chosen.timeline)
    return Explanation(
        plan.devices_text,
        known.name,
        rows,
        (),
        waits,
        certainty(plan, found),
        _repriced(plan, found),
    )


def _repriced(plan: PlanValue, found: Reopened) -> float | None:
    """Return what the step takes now where that is not what was planned."""
    step_s, planned_s = found.chosen.step_s, plan.estimate.step_s
    return step_s if abs(step_s - planned_s) > SMALL * planned_s else None
