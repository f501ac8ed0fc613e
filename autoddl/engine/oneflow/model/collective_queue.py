"""The queue of NCCL collectives of a step: their static order, and which OneFlow joins to one launch.

On CUDA devices boxings that are no ops of the compute stream are *requests*, of which the plan has all in
one order, by waves and layers of tasks (perfmodel.simulation.launch_queue, which prices steps by the
same rules). What comes in one layer of one wave has no order of its own: OneFlow walks through hash maps
there, whose order changes from compilation to compilation. Such requests are parameters that are
gathered at the begin of a step, and gradients that one op makes together.

Gradients a (10 MB), b (4 MB) and c (4 MB) are summed in this order: one launch for a and b, with 14 of
16 MB, and one for c.

Source: OneFlow 0.9, core/job/plan_util.cpp (GenCollectiveBoxingPlan).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autoddl.engine.model import CollectiveQueue
from autoddl.engine.oneflow.model.memory.execution_order import execution_order
from autoddl.engine.oneflow.model.memory.liveness import merged_chains
from autoddl.engine.oneflow.model.memory.task_graph import NONE, CollectiveRequest, RankTasks
from autoddl.perfmodel.simulation.launch_queue import LaunchLimits, in_queue, launches, places
from autoddl.ragged import Ragged
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

    What has the same wave and layer is in the order of execution. Where boxings are ops of the compute
    stream there are no requests.
    """
    order, request = execution_order(rank), rank.tasks.request
    first, later = Ragged.sorted(rank.before.items, rank.before.row, len(order))
    chains = merged_chains(rank)
    wave, layer = places(first, later, order, chains, request != NONE)
    return [
        Queued(rank.requests[request[task]], task, int(wave[task]), int(layer[task]))
        for task in in_queue(order, wave, layer, request).tolist()
    ]


def groups(queued: Sequence[Queued], limits: CollectiveQueue = NCCL_QUEUE) -> list[list[Queued]]:
    """Return which requests are launched together, one group after the other."""
    numbers: dict[tuple[str, tuple[int, ...]], int] = {}
    keys = [(one.request.collective, one.request.axes) for one in queued]
    kind = [numbers.setdefault(key, len(numbers)) for key in keys]
    lines = [[(0.0, 0.0)] if collective in limits.fused else [] for collective, _ in numbers]
    wave, size = ([one.wave for one in queued], [one.request.size_bytes for one in queued])
    launch, _ = launches(
        np.arange(len(queued)), np.array(wave, dtype=np.int64), np.array(kind, dtype=np.int64),
        np.array(size, dtype=np.int64), LaunchLimits.of(limits, lines),
    )  # fmt: skip
    found: dict[int, list[Queued]] = {}
    for one, head in zip(queued, launch.tolist(), strict=True):
        found.setdefault(head, []).append(one)
    return list(found.values())
