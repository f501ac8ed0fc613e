"""The trace has every span once, in microseconds, on rows that have names and never overlap."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict

from autoddl.perfmodel.pipeline.pipeline_step import (
    BOXING,
    COMPUTE,
    PipelineStep,
    StageWork,
    TransferWork,
)
from autoddl.perfmodel.pipeline.pipeline_timeline import simulate
from autoddl.report.perfetto import chrome_trace


def test_trace() -> None:
    work = StageWork(((COMPUTE, 1.0), (BOXING, 0.5)), ((COMPUTE, 2.0),), ((BOXING, 1.0),))
    transfers = (TransferWork(0, 1, 0.25, "hidden"), TransferWork(1, 0, 0.25))
    timeline = simulate(PipelineStep((work,) * 4, 4, transfers))
    data = chrome_trace(timeline)
    assert json.loads(json.dumps(data)) == data
    spans = [e for e in data["traceEvents"] if e["ph"] == "X"]
    names = {
        (e["name"], e["pid"], e["tid"]): e["args"]["name"]
        for e in data["traceEvents"]
        if e["name"] in ("process_name", "thread_name")
    }
    assert len(spans) == len(timeline.spans)
    seen = {
        (
            e["name"],
            e["args"]["stage"],
            names["thread_name", e["pid"], e["tid"]],
            e["ts"] / 1e6,
            (e["ts"] + e["dur"]) / 1e6,
        )
        for e in spans
    }
    assert seen == {(s.name, s.stage, s.stream, s.start_s, s.end_s) for s in timeline.spans}
    assert all(e["pid"] == e["args"]["stage"] for e in spans)
    rows = defaultdict(list)
    for e in spans:
        rows[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
    for row in rows.values():
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(sorted(row)))
    processes = [name for (kind, _, _), name in sorted(names.items()) if kind == "process_name"]
    assert processes == [f"stage {i}" for i in range(4)]
    assert {e["cat"] for e in spans} == {"forward", "backward", "transfer", "once"}
