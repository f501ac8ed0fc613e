"""The predicted timeline of a plan for Perfetto: `python -m autoddl trace plan.json -o trace.json`.

Open the file in ui.perfetto.dev or chrome://tracing. A plan with stages has a process per stage, with
the passes of all micro-batches and the transfers; one without has the ops and boxings of a device,
which are priced again with the plan's profile.
"""

from __future__ import annotations

from pathlib import Path

from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.pipeline.pipeline_step import COMPUTE
from autoddl.perfmodel.pipeline.pipeline_timeline import Span, Timeline
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.step_cost import StepPrices
from autoddl.perfmodel.timeline import DEVICE, StepTimeline
from autoddl.plan.value import PlanValue
from autoddl.report.chrome_trace import write_chrome_trace


def write(
    plan: PlanValue, path: str | Path, *, profile: str | Path | Profile | None = None
) -> Timeline:
    """Write the predicted timeline of a plan as Chrome/Perfetto JSON, and return it.

    Raises:
        AutoDDLError: the file can't be written, or as `timeline_of`.
    """
    timeline = timeline_of(plan, profile)
    phases = {} if plan.pipelined else {op.name: op.phase for op in plan.program.ops}
    try:
        write_chrome_trace(timeline, path, categories=phases)
    except OSError as error:
        raise AutoDDLError(f"trace file {path}: {error.strerror}; give another") from None
    return timeline


def timeline_of(plan: PlanValue, profile: str | Path | Profile | None = None) -> Timeline:
    """Return the predicted timeline of a plan.

    A plan without stages is priced with `profile`, by default the bundled one that it names.

    Raises:
        AutoDDLError: the plan has no seconds, or there is no such profile.
    """
    if plan.pipelined:
        return plan.timeline
    known, layout = _profile(plan, profile), plan.layout
    prices = StepPrices(plan.program, plan.mesh, known)
    found = StepTimeline(prices, layout, overlaps=not plan.compute_stream)
    streams = {DEVICE: COMPUTE}
    spans = tuple(
        Span(s.name, 0, streams.get(s.resource, s.resource), s.start_s, s.end_s)
        for s in found.works.spans()
    )
    return Timeline(spans, max((s.end_s for s in spans), default=0.0), (1,), (0,))


def _profile(plan: PlanValue, given: str | Path | Profile | None) -> Profile:
    if given is None and plan.profile not in profiles.bundled():
        raise AutoDDLError(
            f"trace: the plan was made with profile {plan.profile!r}, which is not bundled; give its "
            "file (--profile FILE)"
        )
    return profiles.load(plan.profile if given is None else given, device_type=plan.device)
