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
from itertools import chain
from typing import NamedTuple

import numpy as np

from autoddl.perfmodel.compute_stream import stream_order
from autoddl.perfmodel.packing import Ints, packed
from autoddl.perfmodel.rank import RankTasks

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
    sizes, reused = rank.buffers.size, rank.buffers.reused
    own = [Block(size, (i,)) for i, size in enumerate(sizes) if size and not reused[i]]
    results: dict[int, list[int]] = {}  # what tasks write that may be reused
    for number, producer in enumerate(rank.buffers.producer):
        if reused[number] and sizes[number]:
            results.setdefault(producer, []).append(number)
    chains = merged_chains(rank)
    order = stream_order(rank) if rank.compute_stream else execution_order(rank)
    overwriting = overwriting_tasks(rank, chains, order)
    members: dict[int, list[int]] = {}
    for task in order:
        members.setdefault(chains[task], []).append(task)
    known: Packed = {}
    shared = []
    for tasks in members.values():
        if len(tasks) > 1:
            shared.append(_chain_block(rank, tasks, results, overwriting, known))
        elif tasks[0] in results:  # side by side
            found = results[tasks[0]]
            shared.append(Block(sum([sizes[number] for number in found]), tuple(found)))
    return (*own, *(block for block in shared if block.size))


def merged_chains(rank: RankTasks) -> list[int]:
    """Return the chain of every task: those merged that a buffer connects, the others alone.

    The learning rate connects all updates of parameters, where these are merged at all.
    """
    merged, parent = rank.tasks.merged, list(range(len(rank.tasks)))

    def root(task: int) -> int:
        while parent[task] != task:
            parent[task] = parent[parent[task]]
            task = parent[task]
        return task

    for producer, readers in zip(rank.buffers.producer, rank.buffers.readers, strict=True):
        if merged[producer]:
            for reader in readers:
                if merged[reader]:
                    parent[root(reader)] = root(producer)
    if rank.compute_stream:
        phases = enumerate(rank.tasks.phase)
        updates = [n for n, phase in phases if phase == "optimizer" and merged[n]]
        for task in updates:
            parent[root(task)] = root(updates[0])
    return [root(task) for task in parent]


def execution_order(rank: RankTasks) -> list[int]:
    """Return the tasks in the order in which OneFlow runs them.

    Transfers start as soon as they can; while one is under way, as many computations run as there are
    for each transfer. Of the computations that are ready the one that adds the least memory goes first.
    """
    before = rank.before
    following: list[list[int]] = [[] for _ in before]
    for number, others in enumerate(before):
        for other in others:
            following[other].append(number)
    turn = _turn(rank, before, following)
    priority = [0] * len(turn)
    for place, number in enumerate(turn):
        priority[number] = place
    waiting = list(map(len, before))
    transfer = rank.tasks.transfer
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
    found: list[int] = np.lexsort(
        (np.array(rank.tasks.order), np.array(latest), _added_bytes(rank))
    ).tolist()
    return found


def _added_bytes(rank: RankTasks) -> Ints:
    """Return the memory that each task makes, less its share in the memory that it reads."""
    buffers = rank.buffers
    sizes = np.array(buffers.size) * np.array(buffers.reused)
    counts = np.fromiter(map(len, buffers.readers), dtype=np.int64, count=len(sizes))
    readers = np.fromiter(chain.from_iterable(buffers.readers), dtype=np.int64)
    added = np.zeros(len(rank.tasks), dtype=np.int64)
    np.add.at(added, buffers.producer, sizes)
    np.subtract.at(added, readers, (sizes // np.maximum(counts, 1)).repeat(counts))
    return added


def overwriting_tasks(
    rank: RankTasks, chains: Sequence[int], order: Sequence[int]
) -> frozenset[int]:
    """Return the tasks that may write their result over an input.

    All that read the input have to run before: in the same chain, or because the task needs them. So
    have those that read what is a view of the input, or what it is a view of. Boxings are no views,
    but OneFlow takes what they move for the tensor itself, and never waits for them.
    """
    position = [0] * len(order)
    for place, task in enumerate(order):
        position[task] = place
    tasks, buffers = rank.tasks, rank.buffers
    group = list(range(len(buffers)))

    def root(buffer: int) -> int:
        while group[buffer] != buffer:
            group[buffer] = group[group[buffer]]
            buffer = group[buffer]
        return buffer

    writing, viewing = [], []
    for number, (source, overwrites) in tasks.shares.items():
        if overwrites:
            writing.append(number)
        else:
            viewing.append(tasks.first[number])
            group[root(viewing[-1])] = root(buffers.origin[source])
    views: dict[int, list[int]] = {}
    for view in viewing:
        source = root(view)
        views.setdefault(source, [source]).append(view)
    found = set()
    for number in sorted(writing, key=position.__getitem__):
        source = root(buffers.origin[tasks.shares[number][0]])
        seen = views.setdefault(source, [source])
        readers = {r for view in seen for r in buffers.readers[view]} - {number}
        elsewhere = [r for r in readers if chains[r] != chains[number]]
        late = any(position[r] > position[number] for r in readers)
        held = buffers.kind[source] in _VARIABLES
        if not (held or late) and _all_before(rank, elsewhere, number, position):
            found.add(number)
            written = tasks.first[number]
            group[written] = source
            seen += views.pop(written, [written])
    return frozenset(found)


def _all_before(
    rank: RankTasks, readers: Sequence[int], number: int, position: Sequence[int]
) -> bool:
    """Tell whether a task needs the results of all these computations, which run before it."""
    if any(rank.tasks.transfer[r] for r in readers):
        return False
    first = min((position[r] for r in readers), default=0)
    left, seen, stack = set(readers), {number}, [number]
    while stack and left:
        for before in rank.before[stack.pop()]:
            if before not in seen and position[before] >= first:
                seen.add(before)
                left.discard(before)
                stack.append(before)
    return not left


def _chain_block(
    rank: RankTasks,
    tasks: Sequence[int],
    results: Mapping[int, Sequence[int]],
    overwriting: frozenset[int],
    known: Packed,
) -> Block:
    """Return the block of a chain whose tasks run in this order.

    `results` are what tasks write that may be reused, `known` the blocks of equal chains.
    """
    position = {task: i for i, task in enumerate(tasks)}
    sizes, readers, firsts = rank.buffers.size, rank.buffers.readers, rank.tasks.first
    sharing, last = rank.tasks.shares, len(tasks) - 1
    lives: dict[int, tuple[int, int]] = {}
    home: dict[int, int] = {}
    for i, number in enumerate(tasks):
        for written in results.get(number, ()):
            end = max([position.get(reader, last) for reader in readers[written]], default=i)
            if number in sharing and written == firsts[number]:
                source, overwrites = sharing[number]
                fits = source in home and sizes[source] == sizes[written]
                if fits and (not overwrites or number in overwriting):
                    home[written] = holder = home[source]
                    begin, until = lives[holder]
                    lives[holder] = begin, max(until, end)
                    continue
            home[written] = written
            lives[written] = i, end
    numbers = list(lives)
    key = tuple([sizes[number] for number in numbers]), tuple(lives.values())
    if key not in known:
        known[key] = packed(*key)
    size, alive = known[key]
    return Block(size, tuple([numbers[i] for i in alive]))
