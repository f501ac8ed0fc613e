"""What ranks run: a pass of several plans, whose steps take turns in the same processes.

Started by experiments.figures.clock and experiments.demo through the launcher with a job, as JSON:
`model` and `sizes`; `plans`, each with its name and a `file`, or the `script` of one with its
`learning_rate`, or OneFlow's auto-parallel on a `mesh`, or none of these (one device);
`rounds`, in each of which every plan trains one step; `result`, a file of rows, and what they begin with
(`key`); `running`, a file with the plan that is run. Slow phases of a machine hit all plans of a round.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import oneflow as flow

import autoddl
from autoddl.engine.oneflow.capture.shadow import modules
from experiments import models
from experiments.fidelity.step_ranks import step_seconds
from experiments.figures.clock.script_steps import script_step
from experiments.lib.auto_parallel import auto_parallel, on_mesh
from experiments.lib.frames import RowStore
from experiments.models.training import seed_weights

FIRST = 3  # steps whose losses are compared


def main(argv: Sequence[str]) -> None:
    """Run a job; rank 0 keeps a row for each plan in the end."""
    job = json.loads(argv[0])
    first = flow.env.get_rank() == 0

    def told(name: str) -> str:
        if first:
            Path(job["running"]).write_text(name)
        return name

    rows, steps = {}, {}
    for one in job["plans"]:
        name = told(one["plan"])
        step, inputs = _built(job, one)
        losses = [float(step(*inputs).numpy()) for _ in range(FIRST)]
        rows[name] = {**job["key"], "plan": name, "losses": losses, "samples_s": []}
        steps[name] = step, inputs
    if job["rounds"]:
        for step, inputs in steps.values():  # others were built since its last one
            step_seconds(step, inputs)
    for number in range(job["rounds"]):  # every other round from behind
        for name in [*steps][:: -1 if number % 2 else 1]:
            rows[told(name)]["samples_s"].append(step_seconds(*steps[name]))
    if first:
        kept = RowStore(Path(job["result"]))
        for row in rows.values():
            kept.add(row)


def _built(job: Mapping[str, Any], one: Mapping[str, Any]) -> tuple[Any, tuple[Any, ...]]:
    """Return a step and its inputs."""
    graph, inputs = models.build(job["model"], **job["sizes"])
    for root in modules(graph):
        seed_weights(root, 1)
    if "script" in one:
        (root,) = modules(graph)
        return script_step(Path(one["script"]), root, inputs, one["learning_rate"])
    if "mesh" in one:
        inputs = on_mesh(graph, inputs, tuple(map(int, one["mesh"].split("x"))))
        return auto_parallel(graph), inputs
    return (autoddl.load(one["file"]).apply(graph) if "file" in one else graph), inputs


if __name__ == "__main__":
    main(sys.argv[1:])
