"""What the ranks of the fidelity experiment run: time training steps under given plans.

Started by experiments.fidelity through the launcher, on one node or on all nodes of a testbed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import oneflow as flow

import autoddl
from autoddl.engine.shadow import modules
from autoddl.perfmodel.samples import QUARTILE
from autoddl.plan import Plan
from autoddl.sbp.program import Program
from experiments import models
from experiments.fidelity.traffic import traffic
from experiments.models.training import seed_weights

WARM_UP = 2
LEAST, MOST = 5, 40  # timed steps of each plan …
SECONDS = 8.0  # … as many as fit into that
_TRAFFIC_LEAST, _TRAFFIC_SECONDS = 3, 3.0


def main(argv: Sequence[str]) -> None:
    """Run `capture MODEL SIZES PROGRAM`, `time MODEL SIZES PROGRAM RESULT PLAN` or the same with `step`.

    `step` leaves out the time of the communication alone; it needs no program.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=("capture", "time", "step"))
    parser.add_argument("model")
    parser.add_argument("sizes", help="JSON")
    parser.add_argument("program", type=Path, help="of the model; captured there")
    parser.add_argument("result", type=Path, nargs="?", help="gets a line for each plan")
    parser.add_argument("plan", type=Path, nargs="?")
    args = parser.parse_args(argv)
    sizes = json.loads(args.sizes)
    if args.task == "capture":
        graph, inputs = models.build(args.model, **sizes)
        autoddl.capture(graph, *inputs).save(args.program)
        return
    plan = autoddl.load(args.plan)
    line = {"plan": args.plan.stem, **measured(args.model, sizes, plan)}
    if args.task == "time":
        line["communication_s"] = communication_s(plan, Program.load(args.program))
    if flow.env.get_rank() == 0:
        with args.result.open("a") as out:
            out.write(json.dumps(line) + "\n")


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
    """Return what is timed (autoddl.perfmodel.samples): other processes only ever add time."""
    return float(np.quantile(samples, QUARTILE))


def timed(
    step: Any, inputs: tuple[Any, ...], least: int = LEAST, seconds: float = SECONDS
) -> list[float]:
    """Return the seconds of each timed step.

    How many fit into the time follows from rank 0's last warm-up step.
    """
    samples = [_once(step, inputs) for _ in range(WARM_UP)]
    count = flow.tensor([min(MOST, max(least, round(seconds / samples[-1])))])
    flow.comm.broadcast(count, 0)
    return [_once(step, inputs) for _ in range(int(count.numpy()[0]))]


def _once(step: Any, inputs: tuple[Any, ...]) -> float:
    """Return the seconds from a barrier until all ranks have the result and have updated."""
    flow.comm.barrier()
    start = time.perf_counter()
    step(*inputs).numpy()
    flow._oneflow_internal.eager.Sync()
    flow.comm.barrier()
    return time.perf_counter() - start


if __name__ == "__main__":
    main(sys.argv[1:])
