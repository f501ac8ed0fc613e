"""The columns of a rank's tasks and buffers, from the parts that were chosen for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from autoddl.perfmodel.parts import GIVEN, INPUT, ROLE, Columns
from autoddl.perfmodel.rank import NONE, Buffers, Flags, Ints, RankTasks, Rows, Table, Tasks
from autoddl.perfmodel.wiring import BITS, MASK, Wiring

Item = TypeVar("Item", bound=np.generic)


@dataclass(frozen=True)
class Chosen:
    """The parts of a rank by number: what is kept, the ops, then what was added.

    `kept` are the tensors of the first, `parts` the kinds of those and of the ops, `results` what each
    input of an op reads. Rows of `added` tell of those the kind, the tensor, what it reads, before which
    op it comes, and the order of its task, where that is given; they come in ascending order of ops.
    `after` are parts with the ops that they wait for without reading from them.
    """

    kept: Ints
    parts: Ints
    results: Ints
    added: Table
    after: Table
    compute_stream: bool


def order_of(group: int, number: int, step: int = 0) -> int:
    """Return the place of a task among others: by group, number, step."""
    return (group << 60) + (number << BITS) + step


def assembled(wiring: Wiring, columns: Columns, chosen: Chosen) -> RankTasks:
    """Return the tasks and buffers of chosen parts, numbered in the order of the program."""
    return _Assembly(wiring, columns, chosen).make()


class _Assembly:
    """Puts parts one behind another; all arrays are by their place in this sequence."""

    def __init__(self, wiring: Wiring, columns: Columns, chosen: Chosen) -> None:
        self.wiring, self.columns, self.chosen = wiring, columns, chosen
        self.added, self.tensors, self.sources, self.before, self.orders = chosen.added
        kept, ops = len(chosen.kept), len(wiring.first_read) - 1
        count = len(chosen.parts) + len(self.added)
        self.place = np.arange(count)
        self.ops = self.place[kept : kept + ops]
        self.ops += self.before.searchsorted(np.arange(ops), side="right")
        self.place[kept + ops :] = kept + self.before + np.arange(len(self.added))
        self.turn = np.empty(count, dtype=np.int64)
        self.turn[self.place] = np.arange(count)
        part = np.concatenate((chosen.parts, self.added))[self.turn]
        self.tasks, self.buffers = (
            Rows(first, np.arange(first[-1])).take(part)
            for first in (columns.first_task, columns.first_buffer)
        )

        inputs = np.concatenate((chosen.results, self.sources))
        self.inputs = self.buffers.start[self.place[inputs >> BITS]] + (inputs & MASK)
        self.inputs[inputs == NONE] = NONE
        self.first_input = self._ordered(
            np.zeros(kept, dtype=np.int64), wiring.first_read[:-1],
            len(wiring.read) + np.arange(len(self.added)),
        )  # fmt: skip

    def make(self) -> RankTasks:
        """Return the tasks and buffers."""
        columns, part, row = self.columns, self.tasks.row, self.tasks.items
        given = columns.reads.take(row)
        place = part[given.row]
        reads, outside = self.buffers.start[place] + given.items, given.items <= INPUT
        slots = self.first_input[place[outside]] + INPUT - given.items[outside]
        reads[outside] = self.inputs[slots]
        made = reads != NONE
        buffers = self._buffers()
        merged = columns.merged[row]
        merged[self.tasks.start[self.ops]] = self.wiring.merged[self.chosen.compute_stream]
        tasks = Tasks(
            self._order(),
            Rows.sorted(given.row[made], reads[made], len(row)),
            self._after(buffers.producer),
            merged,
            columns.transfer[row],
            self._updates()[part],
            np.append(columns.first[row] + self.buffers.start[part], self.buffers.start[-1]),
            self._shares(given.start, reads),
            columns.writes[row],
            columns.inserted[row],
        )
        return RankTasks(tasks, buffers, self.chosen.compute_stream)

    def _ordered(self, *columns: npt.NDArray[Item]) -> npt.NDArray[Item]:
        """Return what is told of variables and inputs, of ops, and of what was added, by place."""
        return np.concatenate(columns)[self.turn]

    def _order(self) -> Ints:
        ops = np.arange(len(self.ops))
        kept = np.zeros(len(self.chosen.kept), dtype=np.int64)
        given = self._ordered(kept, order_of(1, 0) + (ops << BITS), self.orders)
        group, numbers = self.columns.group[self.tasks.items], np.arange(len(self.tasks.items))
        own = (group << 60) + (numbers << BITS)
        return np.where(group == GIVEN, given[self.tasks.row], own)

    def _updates(self) -> Flags:
        """Tell of each part whether it is of the optimizer; boxings are what their first reader is."""
        updates = self.wiring.updates  # the last is that of outputs
        kept = np.zeros(len(self.chosen.kept), dtype=np.bool_)
        return self._ordered(kept, updates[:-1], updates[self.before])

    def _after(self, producer: Ints) -> Rows:
        """Return which tasks each waits for without reading from them."""
        given, begin = self.columns.after.take(self.tasks.items), self.tasks.start
        place = self.tasks.row[given.row]
        others, outside = begin[place] + given.items, given.items == INPUT
        others[outside] = producer[self.inputs[self.first_input[place[outside]]]]
        late = self.chosen.after
        return Rows.sorted(
            np.concatenate((given.row, begin[self.place[late[0]]])),
            np.concatenate((others, begin[self.ops[late[1]]])),
            len(self.tasks.items),
        )

    def _shares(self, first: Ints, reads: Ints) -> Ints:
        """Return which of its reads may be a task's result."""
        found = self.columns.shared[self.tasks.items]
        tasks = (found != NONE).nonzero()[0]
        found[tasks] = reads[first[tasks] + found[tasks]]
        return found

    def _buffers(self) -> Buffers:
        columns, wiring, part, row = self.columns, self.wiring, self.buffers.row, self.buffers.items
        held = (self.chosen.kept, wiring.held, self.tensors)
        sizes = [len(names) for names in held]
        first_name = self._ordered(
            np.arange(sizes[0]),
            sizes[0] + wiring.first_held[:-1],
            sum(sizes[:2]) + np.arange(sizes[2]),
        )
        name = np.concatenate(held)[first_name[part] + columns.name[row]]
        kind, origin = columns.kind[row], self.buffers.start[part] + columns.origin[row]
        moved = columns.origin[row] == INPUT
        origin[moved] = self.inputs[self.first_input[part[moved]]]
        return Buffers(
            name,
            np.where(kind == ROLE, wiring.role[name], kind),
            columns.size[row],
            self.tasks.start[part] + columns.producer[row],
            columns.reused[row],
            origin,
        )
