"""Which buffers of a rank share memory.

OneFlow merges tasks that are connected without a transfer into chains, and gives every chain one block
of memory, in which buffers that do not live at the same time overlap. A buffer that is read from
outside its chain lives to the end of it.

Source: OneFlow 0.9, core/graph/task_graph.cpp and core/job/intra_job_mem_sharing_util.cpp.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoddl.compiled import compiled
from autoddl.perfmodel.compute_stream import stream_order
from autoddl.perfmodel.order import execution_order
from autoddl.perfmodel.packing import packed
from autoddl.perfmodel.rank import NONE, VARIABLE, Flags, Ints, RankTasks, Rows, Table


class Blocks(NamedTuple):
    """Memory of chains and of single buffers: bytes, and the buffers that are alive at its peak."""

    size: Ints
    alive: Rows


def blocks(rank: RankTasks) -> Blocks:
    """Return all blocks of memory that a rank allocates."""
    sizes, reused = rank.buffers.size, rank.buffers.reused
    own = ((sizes > 0) & ~reused).nonzero()[0]
    chains = merged_chains(rank)
    order = stream_order(rank) if rank.compute_stream else execution_order(rank)
    shared, alive = _shared(rank, order, chains)
    start = np.concatenate((np.arange(len(own)), len(own) + alive.start))
    items = np.concatenate((own, alive.items))
    return Blocks(np.concatenate((sizes[own], shared)), Rows(start, items))


def merged_chains(rank: RankTasks) -> Ints:
    """Return the chain of every task: those merged that a buffer connects, the others alone.

    The learning rate connects all updates of parameters, where these are merged at all.
    """
    tasks = rank.tasks
    updates = tasks.updates.nonzero()[0][: None if rank.compute_stream else 0]
    return _connected(rank.buffers.producer, *rank.readers, tasks.merged, updates)


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


def _shared(rank: RankTasks, order: Ints, chains: Ints) -> Blocks:
    """Return the blocks of the chains whose tasks run in this order, as they begin."""
    tasks, buffers = rank.tasks, rank.buffers
    sizes, first, shares = buffers.size, tasks.first, tasks.shares
    written, overwrites = buffers.reused & (sizes > 0), tasks.writes & (shares != NONE)
    lives, start, lengths = _lives(
        order, chains, shares, overwrites, first, sizes, written, buffers.origin, *rank.readers,
        VARIABLE[buffers.kind], tasks.transfer, *rank.before,
    )  # fmt: skip
    homes, begin, end = lives[:, : start[-1]]
    mine, alive = sizes[homes], np.ones(len(homes), dtype=np.bool_)
    sums = np.concatenate(((0,), mine.cumsum()))  # side by side
    block = sums[start[1:]] - sums[start[:-1]]
    known: dict[tuple[bytes, ...], tuple[int, Flags]] = {}
    for number in (lengths > 1).nonzero()[0].tolist():
        part = slice(start[number], start[number + 1])
        columns = mine[part], begin[part], end[part]
        key = tuple([column.tobytes() for column in columns])
        if key not in known:
            known[key] = packed(*columns)
        block[number], alive[part] = known[key]
    ends = np.concatenate(((0,), alive.cumsum()))[start]
    return Blocks(block, Rows(ends, homes[alive]))


@compiled
def _overwriting(
    shares: Ints, overwrites: Flags, first: Ints, origin: Ints, start: Ints, readers: Ints, held: Flags,
    transfer: Flags, start_before: Ints, before: Ints, chains: Ints, order: Ints,
) -> Flags:  # fmt: skip
    """Return the tasks that may write their result over an input.

    All that read the input have to run before: in the same chain, or because the task needs them. So
    have those that read what is a view of the input, or what it is a view of. Boxings are no views,
    but OneFlow takes what they move for the tensor itself, and never waits for them.
    """
    found, place = np.zeros(len(shares), np.bool_), np.empty(len(order), np.int64)
    for n in range(len(order)):
        place[order[n]] = n
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
def _rows(chains: Ints, order: Ints) -> tuple[Ints, Ints, Ints]:
    """Return of every task its chain, counted as they begin, and its place there; and their lengths."""
    row, number = np.full(len(order), -1), np.empty(len(order), np.int64)
    lengths, count = np.zeros(len(order), np.int64), 0
    for task in order:
        if row[chains[task]] < 0:  # a chain has the number of one of its tasks
            row[chains[task]] = count
            count += 1
        row[task] = row[chains[task]]
        number[task] = lengths[row[task]]
        lengths[row[task]] += 1
    return row, number, lengths[:count].copy()


@compiled
def _lives(
    order: Ints, chains: Ints, shares: Ints, overwrites: Flags, first: Ints, sizes: Ints, written: Flags,
    origin: Ints, start: Ints, readers: Ints, held: Flags, transfer: Flags, start_before: Ints,
    before: Ints,
) -> tuple[Table, Ints, Ints]:  # fmt: skip
    """Return the buffers of all chains that have memory of their own, and when they begin and end.

    Those are columns of a table; besides, where the first of each chain is, and where the last one ends,
    and of how many tasks each chain is. What is read from outside its chain lives to the end of it.
    """
    may = _overwriting(
        shares, overwrites, first, origin, start, readers, held, transfer, start_before, before, chains,
        order,
    )  # fmt: skip
    row, number, lengths = _rows(chains, order)
    members, offset = np.empty(len(order), np.int64), lengths.cumsum() - lengths
    for task in range(len(order)):
        members[offset[row[task]] + number[task]] = task
    lives, home = np.empty((3, len(sizes)), np.int64), np.full(len(sizes), -1)
    starts, count = np.empty(len(lengths) + 1, np.int64), 0
    for task in members:
        if number[task] == 0:
            starts[row[task]] = count
        for buffer in range(first[task], first[task + 1]):
            if not written[buffer]:
                continue
            end = number[task] if start[buffer] == start[buffer + 1] else 0
            for k in range(start[buffer], start[buffer + 1]):
                inside = row[readers[k]] == row[task]
                end = max(end, number[readers[k]] if inside else lengths[row[task]] - 1)
            shared = buffer == first[task] and (may[task] or not overwrites[task])
            source = shares[task] if shared else -1
            held_here = source >= 0 and home[source] >= starts[row[task]]
            if held_here and sizes[source] == sizes[buffer]:
                home[buffer] = home[source]
                lives[2, home[source]] = max(lives[2, home[source]], end)
                continue
            home[buffer] = count
            lives[0, count], lives[1, count], lives[2, count] = buffer, number[task], end
            count += 1
    starts[len(lengths)] = count
    return lives, starts, lengths
