"""A pipeline's timeline for chrome://tracing and Perfetto.

Source: Trace Event Format, complete events ("ph": "X") and metadata ("M").
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoddl.perfmodel.pipeline.pipeline_step import BOXING, COMPUTE
from autoddl.perfmodel.pipeline.pipeline_timeline import Span, Timeline

CATEGORIES = {"F": "forward", "B": "backward"}


def chrome_trace(timeline: Timeline, categories: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the timeline as JSON data: a process per rank, a thread per stream, microseconds.

    A transfer is shown with the rank that sends. `categories` are those of spans that are no passes or
    transfers, by name.
    """
    streams = sorted({_row(timeline, span) for span in timeline.spans})
    rows = {row: number for number, row in enumerate(streams)}
    events: list[dict[str, Any]] = []
    for rank in sorted(set(timeline.rank_of)):
        stages = [str(s) for s, owner in enumerate(timeline.rank_of) if owner == rank]
        name = f"stage{'s' if len(stages) > 1 else ''} {', '.join(stages)}"
        events.append(_named("process_name", name, rank, 0))
    for (rank, _, stream), row in rows.items():
        events.append(_named("thread_name", stream, rank, row))
        sort = {"name": "thread_sort_index", "ph": "M", "pid": rank, "tid": row}
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
                "pid": timeline.rank_of[span.stage],
                "tid": row,
                "args": {"stage": span.stage},
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write_chrome_trace(
    timeline: Timeline, path: Path | str, *, categories: Mapping[str, str] | None = None
) -> None:
    """Write chrome_trace's data to a JSON file."""
    Path(path).write_text(json.dumps(chrome_trace(timeline, categories)) + "\n")


def _row(timeline: Timeline, span: Span) -> tuple[int, int, str]:
    """Return rank, place and name of the span's stream: compute, boxing, then transfers."""
    known = (COMPUTE, BOXING)
    place = known.index(span.stream) if span.stream in known else len(known)
    return timeline.rank_of[span.stage], place, span.stream


def _category(span: Span) -> str:
    if span.stream not in (COMPUTE, BOXING):
        return "transfer"
    return CATEGORIES.get(span.name[0], "once")


def _named(kind: str, name: str, rank: int, row: int) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": rank, "tid": row, "args": {"name": name}}
