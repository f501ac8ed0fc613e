"""What the ranks of the fidelity experiment run: time training steps under given plans.

Started by experiments.fidelity through the launcher, on one node or on all nodes of a testbed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import oneflow as flow

import autoddl
from autoddl.api import Plan
from autoddl.engine.oneflow.capture.shadow import modules
from autoddl.perfmodel.calibration.measurements import QUARTILE
from experiments import models
from experiments.lib.frames import RowStore
from experiments.models.training import seed_weights

WARM_UP = 2
LEAST, MOST = 5, 40  # timed steps of each plan …
SECONDS = 8.0  # … as many as fit into that


def main(argv: Sequence[str]) -> None:
    """Run `MODEL SIZES RESULT PLAN`: rank 0 keeps a row of the seconds of its steps."""
    model, sizes, result, file = argv
    line = {"plan": Path(file).stem, **measured(model, json.loads(sizes), autoddl.load(file))}
    if flow.env.get_rank() == 0:
        RowStore(Path(result)).add(line)


def measured(model: str, sizes: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """Return the seconds of the steps under a plan and how many signatures the engine changed."""
    graph, inputs = models.build(model, **sizes)
    for root in modules(graph):
        seed_weights(root, 1)
    step = plan.apply(graph)
    samples = timed(step, inputs)
    step_s = float(np.quantile(samples, QUARTILE))  # other processes only ever add time
    return {"step_s": step_s, "samples_s": samples, "changed": len(step.changed_signatures)}


def timed(step: Any, inputs: tuple[Any, ...]) -> list[float]:
    """Return the seconds of each timed step.

    How many fit into the time follows from rank 0's last warm-up step.
    """
    samples = [step_seconds(step, inputs) for _ in range(WARM_UP)]
    count = flow.tensor([min(MOST, max(LEAST, round(SECONDS / samples[-1])))])
    flow.comm.broadcast(count, 0)
    return [step_seconds(step, inputs) for _ in range(int(count.numpy()[0]))]


def step_seconds(step: Any, inputs: tuple[Any, ...]) -> float:
    """Return the seconds from a barrier until all ranks have the result and have updated."""
    flow.comm.barrier()
    start = time.perf_counter()
    step(*inputs).numpy()
    flow._oneflow_internal.eager.Sync()
    flow.comm.barrier()
    return time.perf_counter() - start


if __name__ == "__main__":
    main(sys.argv[1:])
