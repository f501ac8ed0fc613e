"""The predicted timeline of a plan for Perfetto: `python -m autoddl trace plan.json -o trace.json`.

Open the file in ui.perfetto.dev or chrome://tracing. A plan with stages has a process per stage, with
the passes of all micro-batches and the transfers; one without has the ops and boxings of a device,
which are priced again with the plan's profile.

Source: Trace Event Format, complete events ("ph": "X") and metadata ("M").
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.pipeline.pipeline_step import BOXING, COMPUTE
from autoddl.perfmodel.pipeline.pipeline_timeline import Span, Timeline
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.resources import DEVICE
from autoddl.perfmodel.step_cost import StepPrices
from autoddl.perfmodel.timeline import StepTimeline
from autoddl.plan.priced_with import profile_of
from autoddl.plan.value import PlanValue

CATEGORIES = {"F": "forward", "B": "backward"}


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
        Path(path).write_text(json.dumps(chrome_trace(timeline, phases)) + "\n")
    except OSError as error:
        raise AutoDDLError(f"trace file {path}: {error.strerror}; give another") from None
    return timeline


def timeline_of(plan: PlanValue, profile: str | Path | Profile | None = None) -> Timeline:
    """Return the predicted timeline of a plan.

    A plan without stages is priced with `profile`, by default the bundled one that it names.

    Raises:
        AutoDDLError: the plan has no seconds, or there is no such profile.
    """
    if plan.pipelined and profile is not None:
        raise AutoDDLError("trace: a plan with stages has its seconds in it; leave out the profile")
    if plan.pipelined:
        return plan.timeline
    known, layout = profile_of(plan, profile, "trace"), plan.layout
    (part,) = plan.parts
    prices = StepPrices(
        plan.program, part.mesh, known.part(part.kinds), plan.queue, part.device_kinds
    )
    found = StepTimeline(prices, layout, overlaps=not plan.compute_stream)
    streams = {DEVICE: COMPUTE}
    spans = tuple(
        Span(s.name, 0, streams.get(s.resource, s.resource), s.start_s, s.end_s)
        for s in found.works.spans()
    )
    return Timeline(spans, max((s.end_s for s in spans), default=0.0), (1,))


def chrome_trace(timeline: Timeline, categories: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the timeline as JSON data: a process per stage, a thread per stream, microseconds.

    A transfer is shown with the stage that sends. `categories` are those of spans that are no passes or
    transfers, by name.
    """
    streams = sorted({_row(timeline, span) for span in timeline.spans})
    rows = {row: number for number, row in enumerate(streams)}
    events: list[dict[str, Any]] = []
    for stage in range(len(timeline.in_flight)):
        events.append(_named("process_name", f"stage {stage}", stage, 0))
    for (stage, _, stream), row in rows.items():
        events.append(_named("thread_name", stream, stage, row))
        sort = {"name": "thread_sort_index", "ph": "M", "pid": stage, "tid": row}
        events.append({**sort, "args": {"sort_index": row}})
    for span in timeline.spans:
        row = rows[_row(timeline, span)]
        events.append(
            {
                "name": span.name,
                "cat": (categories or {}).get(span.name) or _category(span),
                "ph": "X",
                "ts": span.start_s * 1e6,
                "dur": (span.end_s - span.start_s) * 1e6,
                "pid": span.stage,
                "tid": row,
                "args": {"stage": span.stage},
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _row(timeline: Timeline, span: Span) -> tuple[int, int, str]:
    """Return stage, place and name of the span's stream: compute, boxing, then transfers."""
    known = (COMPUTE, BOXING)
    place = known.index(span.stream) if span.stream in known else len(known)
    return span.stage, place, span.stream


def _category(span: Span) -> str:
    if span.stream not in (COMPUTE, BOXING):
        return "transfer"
    return CATEGORIES.get(span.name[0], "once")


def _named(kind: str, name: str, stage: int, row: int) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": stage, "tid": row, "args": {"name": name}}
