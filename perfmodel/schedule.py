"""When OneFlow runs the tasks of a rank, and which of their buffers share memory.

OneFlow orders tasks so that those go first that free memory; it merges tasks that are connected
without a transfer into chains, and gives every chain one block of memory, in which buffers that do
not live at the same time overlap. A buffer that is read from outside its chain lives to the end of it.

Source: OneFlow 0.9, core/graph/straighten_nodes.cpp (with the tag kCompressMemory), task_graph.cpp
and core/job/intra_job_mem_sharing_util.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from autoddl.perfmodel.compute_stream import stream_order
from autoddl.perfmodel.packing import packed
from autoddl.perfmodel.tasks import RankTasks

Packed = dict[tuple[tuple[int, ...], tuple[tuple[int, int], ...]], tuple[int, list[int]]]
"""By sizes and lives of buffers: bytes of their block, and which of them are alive at its peak."""

_VARIABLES = ("parameter", "state", "buffer")
_TRUNK = 4  # tasks in so many last layers (and the very last one) are never put off


class Block(NamedTuple):
    """Memory of one chain or of one buffer: bytes, and the buffers that are alive at its peak."""

    size: int
    alive: tuple[int, ...]


def blocks(rank: RankTasks) -> tuple[Block, ...]:
    """Return all blocks of memory that a rank allocates."""
    own = [Block(b.size, (i,)) for i, b in enumerate(rank.buffers) if not b.reused and b.size]
    chains = merged_chains(rank)
    order = stream_order(rank) if rank.compute_stream else execution_order(rank)
    overwriting = overwriting_tasks(rank, chains, order)
    members: dict[int, list[int]] = {}
    for task in order:
        members.setdefault(chains[task], []).append(task)
    known: Packed = {}
    shared = [
        _chain_block(rank, tasks, overwriting, known)
        if len(tasks) > 1
        else _task_block(rank, tasks[0])
        for tasks in members.values()
    ]
    return (*own, *(block for block in shared if block.size))


def merged_chains(rank: RankTasks) -> list[int]:
    """Return the chain of every task: those merged that a buffer connects, the others alone.

    The learning rate connects all updates of parameters, where these are merged at all.
    """
    chain = list(range(len(rank.tasks)))

    def root(task: int) -> int:
        while chain[task] != task:
            chain[task] = chain[chain[task]]
            task = chain[task]
        return task

    for buffer in rank.buffers:
        if rank.tasks[buffer.producer].merged:
            for reader in buffer.readers:
                if rank.tasks[reader].merged:
                    chain[root(reader)] = root(buffer.producer)
    updates = [n for n, task in enumerate(rank.tasks) if task.merged and task.phase == "optimizer"]
    for task in updates if rank.compute_stream else ():
        chain[root(task)] = root(updates[0])
    return [root(task) for task in range(len(rank.tasks))]


def execution_order(rank: RankTasks) -> list[int]:
    """Return the tasks in the order in which OneFlow runs them.

    Transfers start as soon as they can; while one is under way, as many computations run as there are
    for each transfer. Of the computations that are ready the one that adds the least memory goes first.
    """
    before, following = _edges(rank)
    turn = _turn(rank, before, following)
    priority = [0] * len(turn)
    for place, number in enumerate(turn):
        priority[number] = place
    waiting = list(map(len, before))
    transfer = [task.transfer for task in rank.tasks]
    left = [len(transfer) - sum(transfer), sum(transfer)]  # computations, transfers
    ready: tuple[list[int], list[int]] = ([], [])  # by priority; in ascending order it is a heap
    for number in turn:
        if waiting[number] == 0:
            ready[transfer[number]].append(priority[number])
    computations, transfers = ready
    order: list[int] = []
    while computations or transfers:
        count = min(len(computations) // len(transfers), left[0] // left[1]) if transfers else 1
        started = [turn[heappop(computations)] for _ in range(count)]
        left[0] -= count
        if transfers:
            moved = turn[heappop(transfers)]
            left[1] -= 1
            order.append(moved)
            order += started
            started.append(moved)
        else:
            order += started
        for number in started:
            for after in following[number]:
                waiting[after] -= 1
                if waiting[after] == 0:
                    heappush(ready[transfer[after]], priority[after])
    return order


def _edges(rank: RankTasks) -> tuple[list[tuple[int, ...]], list[list[int]]]:
    """Return for every task those that it waits for, and those that wait for it."""
    before: list[tuple[int, ...]] = []
    following: list[list[int]] = [[] for _ in rank.tasks]
    producer = [buffer.producer for buffer in rank.buffers]
    for number, task in enumerate(rank.tasks):
        reads = task.reads
        if len(reads) == 1 and not task.after:
            others: tuple[int, ...] = (producer[reads[0]],)
        else:
            others = tuple({*[producer[b] for b in reads], *task.after})
        before.append(others)
        for other in others:
            following[other].append(number)
    return before, following


def _turn(
    rank: RankTasks, before: Sequence[Sequence[int]], following: Sequence[Sequence[int]]
) -> list[int]:
    """Return the tasks by what decides between those that are ready.

    That is: added memory, latest layer, number. The layer of a task is the length of the longest way
    to it. Tasks come after those that they wait for.
    """
    layers: list[int] = []
    for others in before:
        if len(others) == 1:
            layers.append(layers[others[0]] + 1)
        else:
            layers.append(max([layers[other] for other in others], default=-1) + 1)
    last = max(layers, default=0)
    trunk = last - _TRUNK
    latest = [last] * len(layers)
    for number in range(len(layers) - 1, -1, -1):
        bound = last
        for after in following[number]:
            layer = layers[after]
            if layer < trunk:
                layer = latest[after] + 1
            if layer <= bound:
                bound = layer - 1
        latest[number] = bound
    orders = [task.order for task in rank.tasks]
    steps = [order[2] if len(order) > 2 else -1 for order in orders]
    keys = steps, [order[1] for order in orders], [order[0] for order in orders]
    found: list[int] = np.lexsort((*keys, latest, _added_bytes(rank))).tolist()
    return found


def _added_bytes(rank: RankTasks) -> list[int]:
    """Return the memory that each task makes, less its share in the memory that it reads."""
    added = [0] * len(rank.tasks)
    for buffer in rank.buffers:
        if buffer.reused:
            added[buffer.producer] += buffer.size
            for reader in buffer.readers:
                added[reader] -= buffer.size // len(buffer.readers)
    return added


def overwriting_tasks(
    rank: RankTasks, chains: Sequence[int], order: Sequence[int]
) -> frozenset[int]:
    """Return the tasks that may write their result over an input.

    All that read the input have to run before: in the same chain, or because the task needs them. So
    have those that read what is a view of the input, or what it is a view of. Boxings are no views,
    but OneFlow takes what they move for the tensor itself, and never waits for them.
    """
    position = {task: i for i, task in enumerate(order)}
    group = list(range(len(rank.buffers)))

    def root(buffer: int) -> int:
        while group[buffer] != buffer:
            group[buffer] = group[group[buffer]]
            buffer = group[buffer]
        return buffer

    for task in rank.tasks:
        if task.shares is not None and not task.shares[1]:
            group[root(task.writes[0])] = root(rank.buffers[task.shares[0]].origin)
    views: dict[int, list[int]] = {}
    for number in range(len(rank.buffers)):
        views.setdefault(root(number), []).append(number)
    found = set()
    for number in order:
        task = rank.tasks[number]
        if task.shares is None or not task.shares[1]:
            continue
        source = root(rank.buffers[task.shares[0]].origin)
        readers = {r for view in views[source] for r in rank.buffers[view].readers} - {number}
        elsewhere = [r for r in readers if chains[r] != chains[number]]
        late = any(position[r] > position[number] for r in readers)
        held = rank.buffers[source].kind in _VARIABLES
        if not (held or late) and _all_before(rank, elsewhere, number, position):
            found.add(number)
            group[root(task.writes[0])] = source
            views[source] += views.pop(task.writes[0], [])
    return frozenset(found)


def _all_before(
    rank: RankTasks, readers: Sequence[int], number: int, position: Mapping[int, int]
) -> bool:
    """Tell whether a task needs the results of all these computations, which run before it."""
    if any(rank.tasks[r].transfer for r in readers):
        return False
    first = min((position[r] for r in readers), default=0)
    left, seen, stack = set(readers), {number}, [number]
    while stack and left:
        task = rank.tasks[stack.pop()]
        for before in (*(rank.buffers[b].producer for b in task.reads), *task.after):
            if before not in seen and position[before] >= first:
                seen.add(before)
                left.discard(before)
                stack.append(before)
    return not left


def _task_block(rank: RankTasks, number: int) -> Block:
    """Return the block of a task that is alone in its chain: all that it writes, side by side."""
    held, size = [], 0
    for written in rank.tasks[number].writes:
        buffer = rank.buffers[written]
        if buffer.reused and buffer.size:
            held.append(written)
            size += buffer.size
    return Block(size, tuple(held))


def _chain_block(
    rank: RankTasks, tasks: Sequence[int], overwriting: frozenset[int], known: Packed
) -> Block:
    """Return the block of a chain whose tasks run in this order; `known` are those of equal chains."""
    position = {task: i for i, task in enumerate(tasks)}
    buffers, last = rank.buffers, len(tasks) - 1
    lives: dict[int, tuple[int, int]] = {}
    home: dict[int, int] = {}
    for i, number in enumerate(tasks):
        task = rank.tasks[number]
        shares = task.shares
        for written in task.writes:
            buffer = buffers[written]
            if not buffer.reused or not buffer.size:
                continue
            end = i
            for reader in buffer.readers:
                end = max(end, position.get(reader, last))
            holder = written
            if shares is not None and written == task.writes[0]:
                fits = shares[0] in home and buffers[shares[0]].size == buffer.size
                if fits and (not shares[1] or number in overwriting):
                    holder = home[shares[0]]
            home[written] = holder
            begin, until = lives.get(holder, (i, i))
            lives[holder] = begin, max(until, end)
    numbers = list(lives)
    key = tuple([buffers[number].size for number in numbers]), tuple(lives.values())
    if key not in known:
        known[key] = packed(*key)
    size, alive = known[key]
    return Block(size, tuple([numbers[i] for i in alive]))
