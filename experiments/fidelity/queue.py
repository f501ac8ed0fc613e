"""The queue of NCCL collectives that we predict against that of OneFlow's own plan, compiled for CUDA.

`python -m experiments.fidelity.queue` compares, request by request, the types, sizes, groups of devices,
waves and order of plans of all kinds, without a GPU. Requests of one layer of one wave have no order of
their own (autoddl.engine.oneflow.model.collective_queue): any is right. OneFlow 0.9 does not always
compile a plan to the same queue: where ops add equally much memory, chance decides which goes first. So
a plan whose queue is not ours is compiled again, and is right if ours is one of OneFlow's. Every plan is
a line of runs.jsonl at once: a run that is cut off goes on from there. The exit code is 1 where the queue
of a baseline or of a plan as searches find them is not OneFlow's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

import click
import pandas as pd

from autoddl.api import Plan
from autoddl.engine.oneflow.job.parameter_gathers import gathers_behind
from autoddl.engine.oneflow.model.collective_queue import Queued, groups, queue
from autoddl.engine.oneflow.model.memory.lowering import rank_tasks
from autoddl.engine.oneflow.model.memory.task_graph import CollectiveRequest
from autoddl.engine.oneflow.model.rewrites.clipped_gradients import chained
from autoddl.planner.assemble import make_plan
from autoddl.sbp.boxing import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from autoddl.sbp.mesh import Mesh
from experiments.fidelity.memory.cases import SIZES, assignment_of, problem_of
from experiments.fidelity.memory.cuda_memory import compiled
from experiments.lib import cli, frames
from experiments.lib.frames import Row, RowStore

MODELS = {**SIZES, "resnet50": {"blocks": (1, 1), "image": 64, "batch": 16}}
PLANS = (
    "data parallel", "ZeRO 2", "hybrid ZeRO 2", "Megatron", "refined 0", "refined 1",
    "random 0", "random 1",
)  # fmt: skip
RANDOM = "random"
MOST = 3  # compilations of one plan
COLUMNS: frames.Formats = {
    "model": "{}", "mesh": "{}", "plan": "{}", "requests": "{}", "tied": "{}", "same": "{}",
    "launches": "{}", "oneflow": "{}", "compiled": "{}", "right": "{}",
}  # fmt: skip


@click.command(help=__doc__)
@cli.listed("--models", MODELS)
@click.option("--meshes", default="4,2x2", show_default=True)
@cli.folder("out/queue")
def command(models: Sequence[str], meshes: str, folder: Path) -> int:
    """Run what is missing, print the table and write it."""
    kept, found = RowStore(folder / "runs.jsonl"), list[Row]()
    for model in models:
        for mesh in meshes.split(","):
            problem = cache(partial(problem_of, folder, model, mesh, MODELS[model]))
            for name in PLANS:
                key = {"model": model, "mesh": mesh, "plan": name}
                row = kept.once(key, partial(compared, problem, model, name))
                if "requests" in row:
                    found.append(row)
                    print(
                        f"{model} [{mesh}] {name}: {row['same']} of {row['requests']}", flush=True
                    )
    frame = pd.DataFrame(found)
    print(frames.text(frame, COLUMNS))
    frames.save(frame, folder, "queue")
    print(f"{frame.right.sum()} of {len(frame)} plans have OneFlow's queue")
    return cli.MISSED if not frame.right[~frame.plan.str.startswith(RANDOM)].all() else 0


def compared(problem: Any, model: str, name: str) -> Row:
    """Compile a plan for CUDA and count which requests of the first rank are where we say."""
    network = problem()
    assignment = assignment_of(network, name)
    if assignment is None:
        return {}
    plan = Plan.of(make_plan(network, network.result(name, assignment)))
    ours, sizes, times = planned_queue(plan), {"name": model, **MODELS[model]}, 0
    real: list[Queued] = []
    while times < MOST and not (times and equal(ours, real)):
        real = oneflow_queue(compiled(plan, "experiments.models:build", sizes), plan.mesh)
        times += 1
    return {
        "requests": len(real), "tied": sum(len(some) for some in layers(ours) if len(some) > 1),
        "same": sum(map(alike, ours, real)),
        "launches": len(groups(ours)), "oneflow": len(groups(real)), "compiled": times,
        "right": equal(ours, real),
    }  # fmt: skip


def planned_queue(plan: Any) -> list[Queued]:
    """Return the queue of the first rank as we predict it."""
    layout = chained(plan.layout)
    shape = plan.mesh.shape
    return queue(rank_tasks(shape, layout, (0,) * len(shape), gathers=gathers_behind(layout)))


def oneflow_queue(plan: Any, mesh: Mesh) -> list[Queued]:
    """Return the queue of the first rank in OneFlow's own plan (a message); layers are not told there."""
    from oneflow.core.common import data_type_pb2 as types
    from oneflow.core.graph.boxing import collective_boxing_pb2 as boxing

    names = {
        boxing.kOpTypeAllReduce: ALL_REDUCE, boxing.kOpTypeAllGather: ALL_GATHER,
        boxing.kOpTypeReduceScatter: REDUCE_SCATTER,
    }  # fmt: skip
    item = {
        types.kFloat: 4, types.kInt64: 8, types.kInt32: 4, types.kFloat16: 2, types.kInt8: 1,
        types.kBool: 1,
    }  # fmt: skip
    found = []
    for requests in plan.collective_boxing_plan.job_id2request_set.values():
        for one in sorted(requests.request, key=lambda one: one.order):
            devices = [device.machine_id for device in one.device_set.device]
            if 0 in devices:
                size = item[one.op_desc.data_type]
                for dim in one.op_desc.shape.dim:
                    size *= dim
                coords = list(zip(*map(mesh.coords, devices), strict=True))
                axes = tuple(axis for axis, where in enumerate(coords) if len(set(where)) > 1)
                request = CollectiveRequest(names[one.op_desc.op_type], size, axes)
                found.append(Queued(request, -1, one.dependency_depth, -1))
    return found


def alike(one: Queued, other: Queued) -> bool:
    """Tell whether two requests are the same, in the same wave."""
    return (one.request, one.wave) == (other.request, other.wave)


def layers(queued: Sequence[Queued]) -> list[list[Queued]]:
    """Return what has an order: the requests of one layer of one wave together."""
    return [list(some) for _, some in groupby(queued, key=lambda one: (one.wave, one.layer))]


def equal(ours: Sequence[Queued], real: Sequence[Queued]) -> bool:
    """Tell whether a queue is that of OneFlow, whatever the order within layers."""
    begin = 0
    for some in layers(ours):
        there = real[begin : begin + len(some)]
        if sorted(one.request for one in some) != sorted(one.request for one in there):
            return False
        if any(one.wave != some[0].wave for one in there):
            return False
        begin += len(some)
    return begin == len(real)


if __name__ == "__main__":
    sys.exit(cli.run(command, "fidelity.queue"))
