"""The tasks of one rank and their buffers, column by column (tasks.py makes them).

There are tens of thousands of them, and each part of the memory model reads one or two fields of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autoddl.compiled import compiled

Ints = npt.NDArray[np.int64]
Table = Ints  # with two axes
Flags = npt.NDArray[np.bool_]
NONE = -1  # where there is no task or buffer


class Rows(NamedTuple):
    """Rows of numbers of different lengths, one behind the other: row n begins at `start[n]`."""

    start: Ints
    items: Ints

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Rows:
        """Return these rows."""
        start = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)), out=start[1:])
        return cls(start, np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=start[-1]))

    def lists(self) -> list[list[int]]:
        """Return the rows as lists."""
        start, items = self.start.tolist(), self.items.tolist()
        return [items[begin:end] for begin, end in pairwise(start)]


@dataclass
class Buffers:
    """The results of tasks: bytes (aligned), who reads them, whether their memory may be reused.

    `tensor` is the program's tensor that one holds, whole, in part or as a partial sum; `kind` is the
    tensor's role, or "boxing" or "workspace". `origin` is the buffer of which a boxing made this one;
    others are their own.
    """

    tensor: list[str] = field(default_factory=list)
    kind: list[str] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    producer: list[int] = field(default_factory=list)
    reused: list[bool] = field(default_factory=list)
    origin: list[int] = field(default_factory=list)
    readers: list[list[int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.size)


@dataclass
class Tasks:
    """The actors of OneFlow. Tasks that can be `merged` share memory with their neighbours.

    `name` is that of the op, or of the tensor that a boxing moves. `order` breaks ties between tasks
    that are ready at the same time. The results of a task are the buffers from its `first` to that of
    the next; the last `first` is that of none. Only some tasks have the others: `after` are tasks that
    one waits for without reading from them; `shares` tells which of the buffers it reads may be its
    result's memory, and whether it writes there; `inserted` are the ops that replace boxings.
    """

    name: list[str] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    reads: list[tuple[int, ...]] = field(default_factory=list)
    merged: list[bool] = field(default_factory=list)
    transfer: list[bool] = field(default_factory=list)
    phase: list[str] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    after: dict[int, tuple[int, ...]] = field(default_factory=dict)
    shares: dict[int, tuple[int, bool]] = field(default_factory=dict)
    inserted: set[int] = field(default_factory=set)

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

    @cached_property
    def readers(self) -> Rows:
        """Return for every buffer the tasks that read it, once each."""
        return Rows.of(self.buffers.readers)

    @cached_property
    def reads(self) -> Rows:
        """Return for every task the buffers that it reads."""
        return Rows.of(self.tasks.reads)

    @cached_property
    def before(self) -> Rows:
        """Return for every task those that it waits for, once each."""
        after = Rows.of([self.tasks.after.get(number, ()) for number in range(len(self.tasks))])
        return Rows(*_before(*self.reads, np.array(self.buffers.producer, dtype=np.int64), *after))


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
