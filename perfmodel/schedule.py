"""When OneFlow runs the tasks of a rank, and which of their buffers share memory.

OneFlow orders tasks so that those go first that free memory; it merges tasks that are connected
without a transfer into chains, and gives every chain one block of memory, in which buffers that do
not live at the same time overlap. A buffer that is read from outside its chain lives to the end of it.

Source: OneFlow 0.9, core/graph/straighten_nodes.cpp (with the tag kCompressMemory), task_graph.cpp
and core/job/intra_job_mem_sharing_util.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from autoddl.compiled import compiled
from autoddl.perfmodel.compute_stream import stream_order
from autoddl.perfmodel.packing import packed
from autoddl.perfmodel.rank import NONE, Flags, Ints, RankTasks

_VARIABLES = ("parameter", "state", "buffer")
_TRUNK = 4  # tasks in so many last layers (and the very last one) are never put off


class Block(NamedTuple):
    """Memory of one chain or of one buffer: bytes, and the buffers that are alive at its peak."""

    size: int
    alive: Sequence[int]


def blocks(rank: RankTasks) -> tuple[Block, ...]:
    """Return all blocks of memory that a rank allocates."""
    sizes, reused = rank.buffers.size, rank.buffers.reused
    own = [Block(size, (i,)) for i, size in enumerate(sizes) if size and not reused[i]]
    chains = merged_chains(rank)
    order = stream_order(rank) if rank.compute_stream else execution_order(rank)
    return (*own, *_shared(rank, order, chains))


def merged_chains(rank: RankTasks) -> Ints:
    """Return the chain of every task: those merged that a buffer connects, the others alone.

    The learning rate connects all updates of parameters, where these are merged at all.
    """
    tasks = rank.tasks
    updates = [phase == "optimizer" for phase in tasks.phase] if rank.compute_stream else []
    return _connected(
        np.array(rank.buffers.producer), *rank.readers, np.array(tasks.merged, dtype=np.bool_),
        np.array(updates, dtype=np.bool_).nonzero()[0],
    )  # fmt: skip


@compiled
def _connected(producer: Ints, start: Ints, readers: Ints, merged: Flags, updates: Ints) -> Ints:
    parent, update = np.arange(len(merged)), -1
    for buffer in range(len(producer)):
        for k in range(start[buffer], start[buffer + 1]):
            if merged[producer[buffer]] and merged[readers[k]]:
                parent[_root(parent, readers[k])] = _root(parent, producer[buffer])
    for task in updates:
        if merged[task]:
            update = task if update < 0 else update
            parent[_root(parent, task)] = _root(parent, update)
    for task in range(len(merged)):
        parent[task] = _root(parent, task)
    return parent


@compiled
def _root(parent: Ints, item: int) -> int:
    while parent[item] != item:
        parent[item] = parent[parent[item]]
        item = parent[item]
    return item


def execution_order(rank: RankTasks) -> Ints:
    """Return the tasks in the order in which OneFlow runs them.

    Transfers start as soon as they can; while one is under way, as many computations run as there are
    for each transfer. Of the computations that are ready the one that adds the least memory goes first.
    """
    before = rank.before.lists()
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
    return np.array(order, dtype=np.int64)


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
    counts, readers = np.diff(rank.readers.start), rank.readers.items
    added = np.zeros(len(rank.tasks), dtype=np.int64)
    np.add.at(added, buffers.producer, sizes)
    np.subtract.at(added, readers, (sizes // np.maximum(counts, 1)).repeat(counts))
    return added


def _shared(rank: RankTasks, order: Ints, chains: Ints) -> Iterator[Block]:
    """Yield the blocks of the chains whose tasks run in this order, as far as they take memory."""
    tasks, buffers = rank.tasks, rank.buffers
    sizes, first = (np.array(column, dtype=np.int64) for column in (buffers.size, tasks.first))
    producer = np.array(buffers.producer, dtype=np.int64)
    written = np.array(buffers.reused, dtype=np.bool_) & (sizes > 0)
    shares = np.full(len(tasks), NONE)
    shares[list(tasks.shares)] = [source for source, _ in tasks.shares.values()]
    overwrites = np.zeros(len(tasks), dtype=np.bool_)
    overwrites[[task for task, (_, writes) in tasks.shares.items() if writes]] = True
    held = np.array([kind in _VARIABLES for kind in buffers.kind], dtype=np.bool_)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    may = _overwriting(
        shares, overwrites, first, np.array(buffers.origin), *rank.readers, held,
        np.array(tasks.transfer, dtype=np.bool_), *rank.before, chains, place, order,
    )  # fmt: skip
    _, begins, labels = np.unique(chains[order], return_index=True, return_inverse=True)
    turn = begins.argsort().argsort()[labels]  # chains are numbered as they begin
    row, number = turn[place], np.empty_like(place)
    members = order[turn.argsort(kind="stable")]
    lengths = np.bincount(turn)
    start = lengths.cumsum() - lengths
    number[members] = np.arange(len(members)) - start.repeat(lengths)
    homes, begin, end = _lives(
        members, row, number, lengths, first, producer, sizes, written, *rank.readers, shares,
        ~overwrites | may,
    )  # fmt: skip
    known: dict[tuple[bytes, ...], tuple[int, Ints]] = {}
    ends = row[producer[homes]].searchsorted(np.arange(len(lengths)), side="right")
    for length, low, high in zip(
        lengths.tolist(), [0, *ends.tolist()], ends.tolist(), strict=False
    ):
        if low == high:
            continue
        mine = sizes[homes[low:high]]
        if length == 1:  # side by side
            yield Block(int(mine.sum()), homes[low:high].tolist())
            continue
        lives = mine, begin[low:high], end[low:high]
        key = tuple([column.tobytes() for column in lives])
        if key not in known:
            known[key] = packed(*lives)
        size, alive = known[key]
        yield Block(size, homes[low:high][alive].tolist())


@compiled
def _overwriting(
    shares: Ints, overwrites: Flags, first: Ints, origin: Ints, start: Ints, readers: Ints, held: Flags,
    transfer: Flags, start_before: Ints, before: Ints, chains: Ints, place: Ints, order: Ints,
) -> Flags:  # fmt: skip
    """Return the tasks that may write their result over an input.

    All that read the input have to run before: in the same chain, or because the task needs them. So
    have those that read what is a view of the input, or what it is a view of. Boxings are no views,
    but OneFlow takes what they move for the tensor itself, and never waits for them.
    """
    found = np.zeros(len(shares), np.bool_)
    group, view = np.arange(len(origin)), np.full(len(origin), -1)  # view: the next of the group
    for task in range(len(shares)):
        if shares[task] >= 0 and not overwrites[task]:
            group[_root(group, first[task])] = _root(group, origin[shares[task]])
    for task in range(len(shares)):
        if shares[task] >= 0 and not overwrites[task]:
            source = _root(group, first[task])
            view[first[task]], view[source] = view[source], first[task]
    left, seen = np.full(len(shares), -1), np.full(len(shares), -1)
    stack = np.empty(len(shares), np.int64)
    for task in order:
        if shares[task] < 0 or not overwrites[task]:
            continue
        source = _root(group, origin[shares[task]])
        apart, free, begin = 0, not held[source], len(order)
        buffer = source
        while buffer >= 0 and free:
            for k in range(start[buffer], start[buffer + 1]):
                reader = readers[k]
                if reader == task or left[reader] == task:
                    continue
                if place[reader] > place[task]:
                    free = False
                elif chains[reader] != chains[task]:
                    if transfer[reader]:
                        free = False
                    left[reader], apart, begin = task, apart + 1, min(begin, place[reader])
            buffer = view[buffer]
        if not free:
            continue
        stack[0], many, seen[task] = task, 1, task
        while many and apart:
            many -= 1
            number = stack[many]
            for k in range(start_before[number], start_before[number + 1]):
                other = before[k]
                if seen[other] != task and place[other] >= begin:
                    seen[other] = task
                    apart -= left[other] == task
                    stack[many] = other
                    many += 1
        if apart == 0:
            found[task] = True
            group[first[task]] = source
            end = first[task]
            while view[end] >= 0:
                end = view[end]
            view[end], view[source] = view[source], first[task]
    return found


@compiled
def _lives(
    members: Ints, row: Ints, number: Ints, lengths: Ints, first: Ints, producer: Ints, sizes: Ints,
    written: Flags, start: Ints, readers: Ints, shares: Ints, may_share: Flags,
) -> tuple[Ints, Ints, Ints]:  # fmt: skip
    """Return the buffers of all chains that have memory of their own, and when they begin and end.

    `members` are the tasks chain by chain, `row` is the chain of each task, `number` its place in it.
    What is read from outside its chain lives to the end of it.
    """
    homes = np.empty(len(sizes), np.int64)
    begins, ends = np.empty_like(homes), np.empty_like(homes)
    home, count = np.full(len(sizes), -1), 0
    for task in members:
        for buffer in range(first[task], first[task + 1]):
            if not written[buffer]:
                continue
            end = number[task] if start[buffer] == start[buffer + 1] else 0
            for k in range(start[buffer], start[buffer + 1]):
                inside = row[readers[k]] == row[task]
                end = max(end, number[readers[k]] if inside else lengths[row[task]] - 1)
            source = shares[task] if buffer == first[task] and may_share[task] else -1
            held = source >= 0 and home[source] >= 0 and row[producer[source]] == row[task]
            if held and sizes[source] == sizes[buffer]:
                home[buffer] = home[source]
                ends[home[source]] = max(ends[home[source]], end)
                continue
            home[buffer] = count
            homes[count], begins[count], ends[count] = buffer, number[task], end
            count += 1
    return homes[:count].copy(), begins[:count].copy(), ends[:count].copy()
