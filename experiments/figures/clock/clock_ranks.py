"""What ranks run: training steps under a plan, under OneFlow's auto-parallel, or on one device.

Started by experiments.figures.clock through the launcher: `TASK MODEL SIZES STEPS PLAN RESULT KEY`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import oneflow as flow

import autoddl
from autoddl.engine.oneflow.capture.shadow import modules
from experiments import models
from experiments.fidelity.step_ranks import communication_s, timed
from experiments.lib.auto_parallel import auto_parallel, on_mesh
from experiments.lib.frames import RowStore
from experiments.models.training import seed_weights

FIRST = 3  # steps whose losses are compared
SECONDS = 6.0  # of timed steps, if there are enough in that


def main(argv: Sequence[str]) -> None:
    """Run `plan` (and its `traffic` alone), `peer` on a mesh, or `alone`; rank 0 keeps the row."""
    task, model, sizes, steps, plan, result, key = argv
    graph, inputs = models.build(model, **json.loads(sizes))
    for root in modules(graph):
        seed_weights(root, 1)
    row: dict[str, Any] = json.loads(key)
    if task == "peer":
        inputs = on_mesh(graph, inputs, tuple(map(int, plan.split("x"))))
        step = auto_parallel(graph)
    else:
        step = graph if task == "alone" else autoddl.load(plan).apply(graph)
    row["losses"] = [float(step(*inputs).numpy()) for _ in range(FIRST)]
    if task != "alone":
        row["samples_s"] = timed(step, inputs, int(steps), SECONDS)
    if task == "traffic":
        known = autoddl.load(plan)
        row["communication_s"] = communication_s(known, known.program)
    if flow.env.get_rank() == 0:
        RowStore(Path(result)).add(row)


if __name__ == "__main__":
    main(sys.argv[1:])
