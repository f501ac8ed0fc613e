"""The order in which OneFlow runs the tasks of a rank: list scheduling, those first that free memory.

Ready are op a, which makes 4 MB, op b, which makes 1 MB and is the last reader of 3 MB (so it adds
−2 MB), and a transfer t: t starts, then b, then a.

Source: OneFlow 0.9, core/graph/straighten_nodes.cpp (with the tag kCompressMemory).
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from autoddl.compiled import compiled
from autoddl.engine.oneflow.model.memory.task_graph import Ints, RankTasks

_COMPUTATION, _TRANSFER, _SOON = range(3)
_TRUNK = 4  # tasks in so many last layers (and the very last one) are never put off


def execution_order(rank: RankTasks) -> Ints:
    """Return the tasks in the order in which OneFlow runs them.

    Transfers start as soon as they can; while one is under way, as many computations run as there are
    for each transfer. Of those that are ready goes first what adds the least memory, then what may be
    put off least, then what comes first.
    """
    buffers, before = rank.buffers, rank.before
    added = _added_bytes(rank.tasks.first, buffers.size * buffers.reused, *rank.readers)
    latest = _latest(*before, _TRUNK)
    tasks = rank.tasks
    turn = np.lexsort((tasks.order, latest, added))
    return _in_turn(*before, turn, np.where(tasks.soon, _SOON, tasks.transfer))


@compiled
def _added_bytes(first: Ints, sizes: Ints, start: Ints, readers: Ints) -> Ints:
    """Return the memory that each task makes, less its share in the memory that it reads."""
    added = np.zeros(len(first) - 1, np.int64)
    for task in range(len(added)):
        for buffer in range(first[task], first[task + 1]):
            added[task] += sizes[buffer]
            for k in range(start[buffer], start[buffer + 1]):
                added[readers[k]] -= sizes[buffer] // (start[buffer + 1] - start[buffer])
    return added


@compiled
def _latest(start: Ints, before: Ints, trunk: int) -> Ints:
    """Return the last layer in which each task may run.

    The layer of a task is the length of the longest way to it.
    """
    count, last = len(start) - 1, 0
    layers = np.zeros(count, np.int64)
    for task in range(count):
        for k in range(start[task], start[task + 1]):
            layers[task] = max(layers[task], layers[before[k]] + 1)
        last = max(last, layers[task])
    latest = np.full(count, last)
    for task in range(count - 1, -1, -1):
        bound = layers[task] - 1 if layers[task] >= last - trunk else latest[task]
        for k in range(start[task], start[task + 1]):
            latest[before[k]] = min(latest[before[k]], bound)
    return latest


@compiled
def _in_turn(start: Ints, before: Ints, turn: Ints, kinds: Ints) -> Ints:
    """Return the tasks as they run; of each of the `kinds` those that are ready by `turn`."""
    count, done = len(turn), 0
    order, known = np.empty(count, np.int64), np.empty((3, count), np.int64)
    priority, waiting, last = known[0], known[1], known[2]
    for place in range(count):
        priority[turn[place]], last[place] = place, -1
    ready = [[np.int64(0) for _ in range(0)] for _ in range(3)]  # heaps of priorities
    left, taken = np.zeros(3, np.int64), np.zeros(3, np.int64)
    pairs = np.empty((2, len(before)), np.int64)  # who waits, and the pair before
    for task in range(count):
        left[kinds[task]] += 1
        waiting[task] = start[task + 1] - start[task]
        for k in range(start[task], start[task + 1]):
            pairs[0, k], pairs[1, k], last[before[k]] = task, last[before[k]], k
        if waiting[task] == 0:
            heappush(ready[kinds[task]], priority[task])
    while done < count:
        taken[2] = len(ready[2])
        taken[1] = min(len(ready[1]), 1) if taken[2] == 0 else 0
        taken[0] = 1 if taken[2] == 0 else 0
        if taken[1]:
            taken[0] = min(len(ready[0]) // len(ready[1]), left[0] // left[1])
        begin = done
        for kind in range(2, -1, -1):
            left[kind] -= taken[kind]
            for _ in range(taken[kind]):
                order[done] = turn[heappop(ready[kind])]
                done += 1
        for place in range(begin, done):
            k = last[order[place]]
            while k >= 0:
                task = pairs[0, k]
                waiting[task] -= 1
                if waiting[task] == 0:
                    heappush(ready[kinds[task]], priority[task])
                k = pairs[1, k]
    return order
