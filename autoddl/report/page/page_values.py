"""What the page of a plan shows, as values; what can't be told has a reason in its place.

A plan with stages has no critical path: `missing["time"]` says so, and the page shows its stages instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from autoddl.calls import uncollected
from autoddl.engine.model import MemoryCourse
from autoddl.errors import AutoDDLError, shown
from autoddl.explain.certainty import Certainty, SourceError, certainty, source_errors
from autoddl.explain.explanation import SMALL
from autoddl.explain.layer_rows import LayerRow, layer_rows
from autoddl.explain.reopened import Reopened, reopened
from autoddl.explain.sensitivity import (
    MemoryFlip,
    Sensitivity,
    known_plans,
    memory_flips,
    sensitivities,
)
from autoddl.explain.time_and_memory import ParetoPoint, pareto
from autoddl.explain.waits import Waits, waits_of
from autoddl.perfmodel.pipeline.pipeline_timeline import Timeline
from autoddl.perfmodel.profile import Profile
from autoddl.plan.priced_with import is_known, profile_of
from autoddl.plan.value import PlanValue
from autoddl.report.perfetto import timeline_of

TIME, MEMORY, TIMELINE, SENSITIVITY, CALIBRATION = (
    "time", "memory", "timeline", "sensitivity", "calibration"
)  # fmt: skip
"""Sections that may be missing."""


@dataclass(frozen=True)
class PageValues:
    """All that a page shows; None and () where `missing` has a reason, by section.

    Prices are those of `profile`, where that is known. Where they are no more those that the plan was
    made with its step takes `repriced_s` now. `searched` tells whether `points` hold what was planned
    again.
    """

    plan: PlanValue
    layers: tuple[LayerRow, ...]
    certain: Certainty
    points: tuple[ParetoPoint, ...]
    profile: Profile | None = None
    repriced_s: float | None = None
    waits: Waits | None = None
    memory: MemoryCourse | None = None
    timeline: Timeline | None = None
    sensitivities: tuple[Sensitivity, ...] = ()
    memory_flips: tuple[MemoryFlip, ...] = ()
    sources: tuple[SourceError, ...] = ()
    searched: bool = False
    missing: Mapping[str, str] = field(default_factory=dict)


def known_values(plan: PlanValue) -> PageValues:
    """Return what the plan itself tells, without prices: little time, for notebooks."""
    return PageValues(plan, layer_rows(plan), certainty(plan), ())


def page_values(
    plan: PlanValue, profile: str | Path | Profile | None = None, what: str = "report"
) -> PageValues:
    """Return what the page of a plan shows, priced with a profile, by default the bundled one it names.

    Raises:
        AutoDDLError: there is no such profile, or it is given for a plan with stages.
    """
    if plan.pipelined and profile is not None:
        raise AutoDDLError(
            f"{what}: a plan with stages has its seconds in it; leave out the profile"
        )
    known = None
    if profile is not None or is_known(plan):
        known = profile_of(plan, profile, what)
    missing: dict[str, str] = {}
    with uncollected():
        memory, timeline = _memory(plan, missing), _timeline(plan, known, missing)
        found = _reopened(plan, known, missing)
        told = PageValues(
            plan, layer_rows(plan), certainty(plan, found), pareto(plan, found), known,
            memory=memory, timeline=timeline, missing=missing,
        )  # fmt: skip
        return told if found is None else _priced(told, found)


def _priced(told: PageValues, found: Reopened) -> PageValues:
    """Return what a page shows, with what takes prices of single ops and links."""
    step_s, planned_s = found.chosen.step_s, told.plan.estimate.step_s
    rivals = known_plans(found)
    return replace(
        told,
        repriced_s=step_s if abs(step_s - planned_s) > SMALL * planned_s else None,
        waits=waits_of(found.chosen.timeline),
        sensitivities=sensitivities(found, rivals),
        memory_flips=memory_flips(found, rivals),
        sources=source_errors(found),
        searched=True,
    )


def _memory(plan: PlanValue, missing: dict[str, str]) -> MemoryCourse | None:
    """Return the course of memory of a plan without stages."""
    if plan.pipelined:
        missing[MEMORY] = (
            "A plan with stages has the most that each stage needs, not its course over the step."
        )
        return None
    try:
        memory = plan.engine.memory(plan.program, plan.mesh.cuts)
        return memory.course(plan.layout, compute_stream=plan.compute_stream)
    except AutoDDLError as error:
        missing[MEMORY] = _sentence(error)
        return None


def _timeline(plan: PlanValue, known: Profile | None, missing: dict[str, str]) -> Timeline | None:
    if known is None and not plan.pipelined:
        missing[TIMELINE] = _unknown(plan)
        return None
    try:
        return timeline_of(plan, None if plan.pipelined else known)
    except AutoDDLError as error:
        missing[TIMELINE] = _sentence(error)
        return None


def _reopened(plan: PlanValue, known: Profile | None, missing: dict[str, str]) -> Reopened | None:
    """Return the plan as a choice among others, None where that can't be."""
    reason = ""
    if plan.pipelined:
        reason = (
            f"The plan has {len(plan.parts)} stages and {plan.micro_batches} micro-batches: it carries "
            "the seconds of each stage, not those of single ops and links, so it can't be priced again."
        )
    elif known is None:
        reason = _unknown(plan)
    else:
        try:
            found = reopened(plan, known)
            found.chosen.step_s  # noqa: B018  # priced here, where it may be refused
            return found
        except AutoDDLError as error:
            reason = _sentence(error)
    missing |= dict.fromkeys((TIME, SENSITIVITY, CALIBRATION), reason)
    return None


def _unknown(plan: PlanValue) -> str:
    return (
        f"The plan was made with profile {shown(plan.profile, 80)}, which is not bundled; give its file "
        "(--profile FILE) to have it priced."
    )


def _sentence(error: AutoDDLError) -> str:
    text = str(error).removeprefix("explain: ").removeprefix("trace: ")
    return f"{text[:1].upper()}{text[1:]}."
