"""Liveness: from which task to which each buffer of a rank is needed, and so which share memory.

OneFlow merges tasks that are connected without a transfer into chains, and gives every chain one block
of memory, in which buffers that do not live at the same time overlap. A buffer that is read from
outside its chain lives to the end of it.

Where gradients of micro-batches are summed up, what is done once per step is a chain of its own. By
default sums are no part of any chain, so that all gradients live to the end of the backward pass's. With
*logical chains*, which OneFlow joins in the op graph (its own method for gradient accumulation), sums
are part of it, and the chain of the updates gets the memory of the chain before.

Ops a → b → c of one chain, each with a result of 4 bytes: a's lives during steps 0 and 1, b's during 1
and 2, c's during 2. The first and the last may share memory: the chain takes 8 bytes, not 12.

Source: OneFlow 0.9, core/graph/task_graph.cpp, core/job/intra_job_mem_sharing_util.cpp and
core/job_rewriter/logical_chain_pass.cpp.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from autoddl.compiled import compiled
from autoddl.engine.oneflow.model.memory.allocation import packed
from autoddl.engine.oneflow.model.memory.compute_stream import stream_order
from autoddl.engine.oneflow.model.memory.execution_order import execution_order
from autoddl.engine.oneflow.model.memory.task_graph import (
    NONE,
    PARAMETER,
    VARIABLE,
    Flags,
    Ints,
    RankTasks,
    Table,
)
from autoddl.ragged import Ragged


class MemoryBlocks(NamedTuple):
    """Memory of chains and of single buffers: bytes, and the buffers that are alive at its peak."""

    size: Ints
    alive: Ragged


class Lives(NamedTuple):
    """The buffers that have memory of their own, chain by chain, and the task in which each is made.

    They begin and end at places in their chain. `start` tells where those of each chain begin, and
    where the last ones end, `lengths` of how many tasks each chain is.
    """

    homes: Ints
    begin: Ints
    end: Ints
    start: Ints
    lengths: Ints


class Course(NamedTuple):
    """The tasks of a rank as they run, and from which place in that order to which a buffer is alive."""

    order: Ints
    buffer: Ints
    begin: Ints
    end: Ints


def course(rank: RankTasks) -> Course:
    """Return when each buffer is alive; those whose memory is never reused are so all the time."""
    own, order, chains = _apart(rank), _order(rank), merged_chains(rank)
    row, number, _ = _rows(chains, order)
    lives = _lives_of(rank, order, chains)
    at = np.lexsort((number[order], row[order]))  # places of the tasks, chain by chain
    offset = (lives.lengths.cumsum() - lives.lengths).repeat(np.diff(lives.start))
    always = np.zeros(len(own), dtype=np.int64)
    return Course(
        order, np.concatenate((own, lives.homes)),
        np.concatenate((always, at[offset + lives.begin])),
        np.concatenate((always + len(order) - 1, at[offset + lives.end])),
    )  # fmt: skip


def blocks(rank: RankTasks) -> MemoryBlocks:
    """Return all blocks of memory that a rank allocates."""
    sizes, own = rank.buffers.size, _apart(rank)
    shared, alive = _shared(rank, _order(rank), merged_chains(rank))
    start = np.concatenate((np.arange(len(own)), len(own) + alive.start))
    items = np.concatenate((own, alive.items))
    return MemoryBlocks(np.concatenate((sizes[own], shared)), Ragged(start, items))


def _apart(rank: RankTasks) -> Ints:
    """Return the buffers whose memory no other one has."""
    return ((rank.buffers.size > 0) & ~rank.buffers.reused).nonzero()[0]


def _order(rank: RankTasks) -> Ints:
    return stream_order(rank) if rank.in_turn else execution_order(rank)


def merged_chains(rank: RankTasks) -> Ints:
    """Return the chain of every task: those merged that a buffer connects, the others alone.

    The learning rate connects all updates of parameters, where these are merged at all; what goes before
    an update is connected with it by what they read alone.
    """
    tasks, readers = rank.tasks, rank.readers
    makers = rank.buffers.producer[readers.row]
    of_variable = readers.items[rank.buffers.kind[readers.row] == PARAMETER]
    learn = tasks.updates & tasks.merged
    learn &= np.bincount(of_variable, minlength=len(tasks)) > 0
    updates = learn.nonzero()[0][: None if rank.compute_stream else 0]
    first, second = np.append(makers, updates[:-1]), np.append(readers.items, updates[1:])
    merged = tasks.merged[first] & tasks.merged[second]
    if rank.accumulates:  # what happens once per step is a chain of its own
        merged &= tasks.updates[first] == tasks.updates[second]
    ends, shape = (first[merged], second[merged]), (len(tasks), len(tasks))
    graph = coo_array((np.ones(len(ends[0]), dtype=np.bool_), ends), shape)
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)


@compiled
def _root(parent: Ints, item: int) -> int:
    while parent[item] != item:
        parent[item] = parent[parent[item]]
        item = parent[item]
    return item


def _lives_of(rank: RankTasks, order: Ints, chains: Ints) -> Lives:
    """Return when the buffers of the chains are alive whose tasks run in this order."""
    tasks, buffers = rank.tasks, rank.buffers
    sizes, first, shares = buffers.size, tasks.first, tasks.shares
    written, overwrites = buffers.reused & (sizes > 0), tasks.writes & (shares != NONE)
    lives, start, lengths = _lives(
        order, chains, shares, overwrites, first, sizes, written, buffers.origin, *rank.readers,
        VARIABLE[buffers.kind], tasks.transfer, *rank.before,
    )  # fmt: skip
    homes, begin, end = lives[:, : start[-1]]
    return Lives(homes, begin, end, start, lengths)


def _shared(rank: RankTasks, order: Ints, chains: Ints) -> MemoryBlocks:
    """Return the blocks of the chains whose tasks run in this order, as they begin."""
    sizes, first = rank.buffers.size, rank.tasks.first
    homes, begin, end, start, lengths = _lives_of(rank, order, chains)
    joined = _joined(rank, order, chains)
    if joined is not None:  # OneFlow lets the updates wait for the first task, and holds its result
        end[homes == first[joined.begin]] = lengths[joined.row] - 1
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
    if joined is not None:
        lesser = min(joined.row, joined.updates, key=lambda row: block[row])
        block[lesser], alive[start[lesser] : start[lesser + 1]] = 0, False
    ends = np.concatenate(((0,), alive.cumsum()))[start]
    return MemoryBlocks(block, Ragged(ends, homes[alive]))


class _Joined(NamedTuple):
    """The logical chain of the last passes, its first task, and the chain of the updates."""

    row: int
    begin: int
    updates: int


def _joined(rank: RankTasks, order: Ints, chains: Ints) -> _Joined | None:
    """Return the chains of which the second has the memory of the first, counted as they begin.

    The first one is that of all backward passes, or, where nothing is buffered, of all passes.
    """
    _, first, size = np.unique(chains[order], return_index=True, return_counts=True)
    begun = first.argsort()
    begin, several = order[first[begun]], size[begun] > 1
    late = rank.tasks.updates[begin]
    rows, updates = (np.flatnonzero(side & several) for side in (~late, late))
    if not rank.logical_chains or not len(rows) or not len(updates):
        return None
    return _Joined(int(rows[-1]), int(begin[rows[-1]]), int(updates[-1]))


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
    row, number = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    turn, lengths, count = np.full(len(order), -1), np.zeros(len(order), np.int64), 0
    for task in order:
        if turn[chains[task]] < 0:
            turn[chains[task]] = count
            count += 1
        row[task] = turn[chains[task]]
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
