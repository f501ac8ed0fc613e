"""The queue of NCCL collectives of a step: their static order, and which OneFlow joins to one launch.

On CUDA devices boxings that are no ops of the compute stream are *requests*. All devices issue them in
one order, which is that of the plan: a request waits until all before it are issued, ready or not.
OneFlow walks through the tasks in *waves*. A wave ends at requests, and the next one begins with what
waited for these; so each request is of a later wave than those that it depends on. Within a wave tasks
come by *layer*, the length of the longest way to them; and as the ops of a device run one behind the
other, that is mostly the order in which gradients are made. What comes in one layer of one wave has no
order of its own: OneFlow walks through hash maps there, whose order changes from compilation to
compilation. Such requests are parameters that are gathered at the begin of a step, and gradients that
one op makes together.

Neighbours of one wave, one group of devices and one type for which fusion is on are launched together,
as long as they are small enough. Gradients a (10 MB), b (4 MB) and c (4 MB) are summed in this order:
one launch for a and b, with 14 of 16 MB, and one for c.

Source: OneFlow 0.9, core/job/plan_util.cpp (GenCollectiveBoxingPlan), core/job/collective_boxing
(scheduler.cpp, nccl_executor_backend.cu, static_group_coordinator.cpp).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autoddl.compiled import compiled
from autoddl.engine.model import CollectiveQueue
from autoddl.engine.oneflow.model.memory.execution_order import execution_order
from autoddl.engine.oneflow.model.memory.liveness import merged_chains
from autoddl.engine.oneflow.model.memory.task_graph import (
    NONE,
    CollectiveRequest,
    Flags,
    Ints,
    RankTasks,
)
from autoddl.sbp.boxing import ALL_REDUCE

# What oneflow.boxing.nccl sets, and OneFlow's own defaults; sizes are rounded up to 32 bytes.
NCCL_QUEUE = CollectiveQueue(16, 64, (ALL_REDUCE,), alignment=32)


class Queued(NamedTuple):
    """A request in the queue of a rank: what it is, which task, and when it is issued."""

    request: CollectiveRequest
    task: int
    wave: int
    layer: int


def queue(rank: RankTasks) -> list[Queued]:
    """Return the requests of a rank in the order in which it issues them.

    What has the same wave and layer is in the order of the program. Where boxings are ops of the compute
    stream there are no requests.
    """
    order = execution_order(rank)
    is_request = rank.tasks.request != NONE
    wave, layer = _places(*rank.before, order, merged_chains(rank), is_request, rank.tasks.away)
    tasks = is_request.nonzero()[0]
    tasks = tasks[np.lexsort((tasks, layer[tasks], wave[tasks]))]
    return [
        Queued(
            rank.requests[rank.tasks.request[task]], int(task), int(wave[task]), int(layer[task])
        )
        for task in tasks
    ]


@compiled
def _places(
    start: Ints, before: Ints, order: Ints, chains: Ints, is_request: Flags, away: Ints
) -> tuple[Ints, Ints]:
    """Return the wave of each task and its layer in there; a chain's tasks go one behind the other.

    Before a task there are so many others `away` on the longest way.
    """
    count = len(order)
    wave, layer, last = np.zeros(count, np.int64), np.zeros(count, np.int64), np.full(count, -1)
    for task in order:
        chain = chains[task]
        for k in range(start[task], start[task + 1] + 1):
            other = before[k] if k < start[task + 1] else last[chain]
            if other < 0:
                continue
            since = wave[other] + is_request[other]  # a request ends its wave
            way = away[task] + (0 if is_request[other] else layer[other] + 1)
            if since > wave[task]:
                wave[task], layer[task] = since, way
            elif since == wave[task]:
                layer[task] = max(layer[task], way)
        last[chain] = task
    return wave, layer


def groups(queued: Sequence[Queued], limits: CollectiveQueue = NCCL_QUEUE) -> list[list[Queued]]:
    """Return which requests are launched together, one group after the other."""
    found: list[list[Queued]] = []
    size = 0
    for one in queued:
        more = -(-one.request.size_bytes // limits.alignment) * limits.alignment
        if found and _joins(found[-1], one, limits) and size + more <= limits.threshold_bytes:
            found[-1].append(one)
            size += more
        else:
            found.append([one])
            size = more
    return found


def _joins(group: Sequence[Queued], one: Queued, limits: CollectiveQueue) -> bool:
    last = group[-1]
    return (
        len(group) < limits.max_ops
        and one.wave == last.wave
        and one.request.axes == last.request.axes
        and one.request.collective == last.request.collective
        and one.request.collective in limits.fused
    )
