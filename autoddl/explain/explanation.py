"""All that `explain` tells of a plan, as values; autoddl.report.explanation_text writes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autoddl.explain.certainty import Certainty, certainty
from autoddl.explain.layer_rows import LayerRow, layer_rows
from autoddl.explain.reopened import check_whole, reopened
from autoddl.explain.waits import Waits, waits_of
from autoddl.perfmodel.profile import Profile
from autoddl.plan.priced_with import is_known, profile_of
from autoddl.plan.value import PlanValue

SMALL = 1e-3  # relative; by less a step that is priced again is the plan's own


@dataclass(frozen=True)
class Explanation:
    """What a plan does, layer by layer, what its step waits for, and what is certain of it.

    `waits` is None where the plan's profile is not known. Where the profile is another one than the plan
    was made with its step takes `step_s` now.
    """

    devices: str
    profile: str
    layers: tuple[LayerRow, ...] = ()
    waits: Waits | None = None
    certain: Certainty | None = None
    repriced_s: float | None = None


def explain(plan: PlanValue, *, profile: str | Path | Profile | None = None) -> Explanation:
    """Return what a plan does and why.

    Raises:
        AutoDDLError: the plan has stages; its profile is not known.
    """
    check_whole(plan)
    known = profile_of(plan, profile, "explain") if profile or is_known(plan) else None
    told = Explanation(plan.devices_text, plan.profile, layer_rows(plan), certain=certainty(plan))
    if known is None:
        return told
    found = reopened(plan, known).chosen
    step_s, planned_s = found.step_s, plan.estimate.step_s
    other = abs(step_s - planned_s) > SMALL * planned_s
    return Explanation(
        plan.devices_text, known.name, told.layers, waits_of(found.timeline), told.certain,
        step_s if other else None,
    )  # fmt: skip
