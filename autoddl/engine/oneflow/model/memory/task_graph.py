"""The tasks of one rank and their buffers, column by column (lowering.py makes them).

There are tens of thousands of them, and each part of the memory model reads one or two fields of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autoddl.compiled import compiled
from autoddl.ragged import Ragged
from autoddl.sbp.program import ROLES

Ints = npt.NDArray[np.int64]
Table = Ints  # with two axes
Flags = npt.NDArray[np.bool_]
NONE = -1  # where there is no task or buffer
BITS = 20
MASK = (1 << BITS) - 1
"""A result is one number: who makes it, and in so many bits which of its results."""
KINDS = (*ROLES, "boxing", "workspace", "output")
"""The kinds of buffers: the roles of tensors, and what is no tensor of the program."""
BOXING, WORKSPACE, OUTPUT = range(len(ROLES), len(KINDS))
PARAMETER = KINDS.index("parameter")
VARIABLE = np.array([kind in ("parameter", "state", "buffer") for kind in KINDS])


class CollectiveRequest(NamedTuple):
    """A collective that goes through NCCL beside the computation: its type, the bytes that OneFlow counts
    for it (the whole tensor of a group of devices), and the axes of the mesh along which groups lie.
    """

    collective: str
    size_bytes: int
    axes: tuple[int, ...]


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
    the ops that replace boxings, `updates` the parts of the optimizer, `soon` sums of gradients, which
    run as soon as they can. `request` is the place among a rank's requests, or NONE.
    """

    order: Ints
    reads: Ragged
    after: Ragged
    merged: Flags
    transfer: Flags
    updates: Flags
    first: Ints
    shares: Ints
    writes: Flags
    inserted: Flags
    soon: Flags
    request: Ints

    def __len__(self) -> int:
        return len(self.order)


@dataclass
class RankTasks:
    """All tasks of one rank, and their buffers, by index; tasks come after those that they wait for.

    `compute_stream` and `logical_chains` are as in `rank_tasks`, `accumulates` tells whether gradients of
    micro-batches are summed up, `in_turn` whether ops run in the order of OneFlow's op graph: it orders
    those of logical chains, and those of a compute stream where several devices have to agree.
    `requests` are the kinds of collectives that go through NCCL beside the computation.
    """

    tasks: Tasks
    buffers: Buffers
    compute_stream: bool = False
    logical_chains: bool = False
    accumulates: bool = False
    in_turn: bool = False
    requests: Sequence[CollectiveRequest] = ()

    @cached_property
    def readers(self) -> Ragged:
        """Return for every buffer the tasks that read it, once each."""
        reads = self.tasks.reads
        found = Ragged.sorted(reads.items, reads.row, len(self.buffers))
        row, task = found.row, found.items
        once = np.ones(len(task), dtype=np.bool_)
        once[1:] = (row[1:] != row[:-1]) | (task[1:] != task[:-1])
        return Ragged.sorted(row[once], task[once], len(self.buffers))

    @cached_property
    def before(self) -> Ragged:
        """Return for every task those that it waits for, once each."""
        return Ragged(*_before(*self.tasks.reads, self.buffers.producer, *self.tasks.after))


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
