"""What ranks run: training steps under a plan, under OneFlow's auto-parallel, or on one device.

Started by experiments.figures.clock through the launcher: `TASK MODEL SIZES STEPS PLAN RESULT KEY`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import oneflow as flow

import autoddl
from autoddl.engine.oneflow.capture.shadow import modules, shadow
from autoddl.engine.oneflow.run.global_tensors import make_global
from autoddl.sbp.state import broadcast
from experiments import models
from experiments.fidelity.step_ranks import communication_s, timed
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
        step, inputs = peer(graph, inputs, tuple(map(int, plan.split("x"))))
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


def peer(graph: Any, inputs: Sequence[Any], shape: tuple[int, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Return the graph with auto-parallel on all ranks, and its inputs there, whole on each."""
    mesh = flow.placement("cpu", np.arange(int(np.prod(shape))).reshape(shape).tolist())
    make_global(graph, lambda _: mesh, lambda _: broadcast(len(shape)))
    graph = shadow(graph)  # whose optimizer has the global parameters
    graph.config.enable_auto_parallel(True)
    graph.config.enable_auto_parallel_ignore_user_sbp_config(True)
    whole = [flow.sbp.broadcast] * len(shape)
    return graph, tuple(x.to_global(placement=mesh, sbp=whole) for x in inputs)


if __name__ == "__main__":
    main(sys.argv[1:])
