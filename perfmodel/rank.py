"""The tasks of one rank and their buffers, column by column (tasks.py makes them).

There are tens of thousands of them, and each part of the memory model reads one or two fields of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autoddl.compiled import compiled
from autoddl.sbp.program import ROLES

Ints = npt.NDArray[np.int64]
Table = Ints  # with two axes
Flags = npt.NDArray[np.bool_]
NONE = -1  # where there is no task or buffer
KINDS = (*ROLES, "boxing", "workspace", "output")
"""The kinds of buffers: the roles of tensors, and what is no tensor of the program."""
BOXING, WORKSPACE, OUTPUT = range(len(ROLES), len(KINDS))
PARAMETER = KINDS.index("parameter")
VARIABLE = np.array([kind in ("parameter", "state", "buffer") for kind in KINDS])


class Rows(NamedTuple):
    """Rows of numbers of different lengths, one behind the other: row n begins at `start[n]`."""

    start: Ints
    items: Ints

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Rows:
        """Return these rows."""
        counts = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        items = np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=counts.sum())
        return cls(_starts(counts), items)

    @classmethod
    def sorted(cls, rows: Ints, items: Ints, count: int) -> Rows:
        """Return so many rows, given the row of each item; items keep their order."""
        order = rows.argsort(kind="stable")
        return cls(_starts(np.bincount(rows, minlength=count)), items[order])

    def take(self, numbers: Ints) -> Rows:
        """Return the rows of these numbers."""
        first = self.start[numbers]
        start = _starts(self.start[numbers + 1] - first)
        return Rows(start, self.items[(first - start[:-1]).repeat(np.diff(start)) + _range(start)])

    @property
    def row(self) -> Ints:
        """Return the row of each item."""
        return np.arange(len(self.start) - 1).repeat(np.diff(self.start))

    def lists(self) -> list[list[int]]:
        """Return the rows as lists."""
        start, items = self.start.tolist(), self.items.tolist()
        return [items[begin:end] for begin, end in pairwise(start)]


def _starts(counts: Ints) -> Ints:
    return np.concatenate((np.zeros(1, dtype=np.int64), counts.cumsum()))


def _range(start: Ints) -> Ints:
    return np.arange(start[-1])


@dataclass
class Buffers:
    """The results of tasks: bytes (aligned), and whether their memory may be reused.

    `name` is the number (among tensors, then ops) of the tensor that one holds, whole, in part or as a
    partial sum; `kind` is the place of its role in KINDS, or that of a boxing or a workspace. `origin`
    is the buffer of which a boxing made this one; others are their own.
    """

    name: Ints
    kind: Ints
    size: Ints
    producer: Ints
    reused: Flags
    origin: Ints

    def __len__(self) -> int:
        return len(self.size)


@dataclass
class Tasks:
    """The actors of OneFlow. Tasks that can be `merged` share memory with their neighbours.

    `order` breaks ties between tasks that are ready at the same time; `reads` are buffers, `after`
    tasks that one waits for without reading from them. The results of a task are the buffers from its
    `first` to that of the next; the last `first` is that of none. `shares` is the buffer that one reads
    whose memory its result may be, or NONE, and `writes` tells whether it writes there. `inserted` are
    the ops that replace boxings, `updates` the parts of the optimizer.
    """

    order: Ints
    reads: Rows
    after: Rows
    merged: Flags
    transfer: Flags
    updates: Flags
    first: Ints
    shares: Ints
    writes: Flags
    inserted: Flags

    def __len__(self) -> int:
        return len(self.order)


@dataclass
class RankTasks:
    """All tasks of one rank, and their buffers, by index; `compute_stream` as in `rank_tasks`.

    Tasks come after those that they wait for.
    """

    tasks: Tasks
    buffers: Buffers
    compute_stream: bool = False

    @property
    def reads(self) -> Rows:
        """Return for every task the buffers that it reads."""
        return self.tasks.reads

    @cached_property
    def readers(self) -> Rows:
        """Return for every buffer the tasks that read it, once each."""
        reads = self.reads
        found = Rows.sorted(reads.items, reads.row, len(self.buffers))
        row, task = found.row, found.items
        once = np.ones(len(task), dtype=np.bool_)
        once[1:] = (row[1:] != row[:-1]) | (task[1:] != task[:-1])
        return Rows.sorted(row[once], task[once], len(self.buffers))

    @cached_property
    def before(self) -> Rows:
        """Return for every task those that it waits for, once each."""
        return Rows(*_before(*self.reads, self.buffers.producer, *self.tasks.after))


@compiled
def _before(
    start: Ints, reads: Ints, producer: Ints, start_after: Ints, after: Ints
) -> tuple[Ints, Ints]:
    """Return the rows of the producers of what each task reads, and those that it runs after."""
    last = np.full(len(start), -1)
    begins, found, count = np.zeros_like(start), np.empty(len(reads) + len(after), np.int64), 0
    for task in range(len(start) - 1):
        others, late = start[task + 1] - start[task], start_after[task + 1] - start_after[task]
        for n in range(others + late):
            is_read = n < others
            k = start[task] + n if is_read else start_after[task] + n - others
            other = producer[reads[k]] if is_read else after[k]
            if last[other] != task:
                last[other] = task
                found[count] = other
                count += 1
        begins[task + 1] = count
    return begins, found[:count].copy()
