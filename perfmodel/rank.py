"""The tasks of one rank and their buffers, column by column (tasks.py makes them).

There are tens of thousands of them, and each part of the memory model reads one or two fields of all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property


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
    def before(self) -> list[tuple[int, ...]]:
        """Return for every task those that it waits for, once each."""
        producer, after = self.buffers.producer, self.tasks.after
        found: list[tuple[int, ...]] = []
        for number, reads in enumerate(self.tasks.reads):
            if len(reads) == 1 and number not in after:
                found.append((producer[reads[0]],))
            elif reads or number in after:
                others = dict.fromkeys([producer[b] for b in reads])
                found.append((*(others | dict.fromkeys(after.get(number, ()))),))
            else:
                found.append(())
        return found
