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
from autoddl.sbp.program import Program
from experiments import models
from experiments.fidelity.traffic import traffic
from experiments.lib.frames import RowStore
from experiments.models.training import seed_weights

WARM_UP = 2
LEAST, MOST = 5, 40  # timed steps of each plan …
SECONDS = 8.0  # … as many as fit into that
_TRAFFIC_LEAST, _TRAFFIC_SECONDS = 3, 3.0


def main(argv: Sequence[str]) -> None:
    """Run `step MODEL SIZES RESULT PLAN`; with `traffic` time the communication alone, too."""
    task, model, sizes, result, file = argv
    plan = autoddl.load(file)
    line = {"plan": Path(file).stem, **measured(model, json.loads(sizes), plan)}
    if task == "traffic":
        line["communication_s"] = communication_s(plan, plan.program)
    if flow.env.get_rank() == 0:
        RowStore(Path(result)).add(line)


def measured(model: str, sizes: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """Return the seconds of the steps under a plan and how many signatures the engine changed."""
    graph, inputs = models.build(model, **sizes)
    for root in modules(graph):
        seed_weights(root, 1)
    step = plan.apply(graph)
    samples = timed(step, inputs)
    changed = len(step.changed_signatures)
    return {"step_s": lower_quartile(samples), "samples_s": samples, "changed": changed}


def communication_s(plan: Plan, program: Program) -> float:
    """Return the seconds of the plan's redistributions, one after another."""
    if not plan.redistributions:
        return 0.0
    graph, tensors = traffic(plan, program)
    return lower_quartile(timed(graph, tensors, _TRAFFIC_LEAST, _TRAFFIC_SECONDS))


def lower_quartile(samples: Sequence[float]) -> float:
    """Return what is timed (calibration.measurements): other processes only ever add time."""
    return float(np.quantile(samples, QUARTILE))


def timed(
    step: Any, inputs: tuple[Any, ...], least: int = LEAST, seconds: float = SECONDS
) -> list[float]:
    """Return the seconds of each timed step.

    How many fit into the time follows from rank 0's last warm-up step.
    """
    samples = [step_seconds(step, inputs) for _ in range(WARM_UP)]
    count = flow.tensor([min(MOST, max(least, round(seconds / samples[-1])))])
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
