"""The tasks and buffers of chosen instances of templates, numbered in the order of the program.

Two instances of a template of 3 tasks and 1 buffer are tasks 0, 1, 2 and 3, 4, 5, and buffers 0 and 1;
where the second one reads INPUT, which is what the first one makes, it reads buffer 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoddl.perfmodel.oneflow.sizes import Dataflow
from autoddl.perfmodel.oneflow.task_graph import (
    BITS,
    MASK,
    NONE,
    Buffers,
    Ints,
    RankTasks,
    Table,
    Tasks,
)
from autoddl.perfmodel.oneflow.task_templates import GIVEN, INPUT, ROLE, Columns
from autoddl.ragged import Ragged


class Chosen(NamedTuple):
    """The instances of a rank by number: what is kept, the ops, then what was added.

    `kept` are the tensors of the first, `templates` those of the first and of the ops, `reads` which
    result each input of an op is. Rows of `added` tell of those the template, the tensor, what one reads,
    before which op it comes, and the order of its task, where the template gives none. `waits` are
    instances with the ops that they wait for without reading from them.
    """

    kept: Ints
    templates: Ints
    reads: Ints
    added: Table
    waits: Table
    compute_stream: bool


def order_of(group: int, number: int) -> int:
    """Return the place of a task among others: by group, then by number, then by step."""
    return (group << 60) + (number << BITS)


def numbered(flow: Dataflow, templates: Columns, chosen: Chosen) -> RankTasks:
    """Return the tasks and buffers of the chosen instances; an added one stands before its op."""
    return _Numbering(flow, templates, chosen).tasks()


class _Numbering:
    """Tasks and buffers of all instances, one behind the other; arrays are by place in this sequence."""

    def __init__(self, flow: Dataflow, templates: Columns, chosen: Chosen) -> None:
        self.flow, self.templates, self.chosen = flow, templates, chosen
        template, self.tensor, source, before, order = chosen.added
        counts = len(chosen.kept), len(flow.first_input), len(template)
        kept, numbers, more = (np.arange(count) for count in counts)
        end = np.full(len(kept), -1), numbers, before  # the op each stands before, or is
        is_op = np.repeat((0, 1, 0), counts)
        turn = np.lexsort((is_op, np.concatenate(end)))
        self.place = np.empty_like(turn)
        self.place[turn] = np.arange(len(turn))
        self.ops = self.place[len(kept) : len(kept) + len(numbers)]
        template = np.concatenate((chosen.templates, template))[turn]
        self.tasks_of, self.buffers_of = (
            Ragged(first, np.arange(first[-1])).take(template)
            for first in (self.templates.first_task, self.templates.first_buffer)
        )
        inputs = np.concatenate((chosen.reads, source))
        self.inputs = self.buffers_of.start[self.place[inputs >> BITS]] + (inputs & MASK)
        self.inputs[inputs == NONE] = NONE
        none = np.zeros(len(kept), dtype=np.int64)
        first_input = none, flow.first_input, len(chosen.reads) + more
        self.first_input = np.concatenate(first_input)[turn]
        self.order = np.concatenate((none, order_of(1, 0) + (numbers << BITS), order))[turn]
        self.updates = np.concatenate((none != 0, flow.updates[:-1], flow.updates[before]))[turn]
        names = kept, len(kept) + flow.first_held[:-1], len(kept) + len(flow.held) + more
        self.first_name = np.concatenate(names)[turn]

    def tasks(self) -> RankTasks:
        """Return the tasks and buffers."""
        rows, instance = self.tasks_of.items, self.tasks_of.row
        task, buffers, begin = self.templates.tasks[rows], self._buffers(), self.buffers_of.start
        given = self.templates.reads.take(rows)
        reads = self._resolved(instance[given.row], given.items, begin, self.inputs)
        made = reads != NONE
        merged = task["merged"].copy()
        merged[self.tasks_of.start[self.ops]] = self.flow.merged[self.chosen.compute_stream]
        own = (task["group"] << 60) + (np.arange(len(rows)) << BITS)
        shares = task["shared"].copy()
        sharing = shares != NONE
        shares[sharing] = reads[given.start[:-1][sharing] + shares[sharing]]
        return RankTasks(
            Tasks(
                np.where(task["group"] == GIVEN, self.order[instance], own),
                Ragged.sorted(given.row[made], reads[made], len(rows)),
                self._after(buffers.producer),
                merged,
                task["transfer"],
                self.updates[instance],
                np.append(task["first"] + begin[instance], begin[-1]),
                shares,
                task["writes"],
                task["inserted"],
            ),
            buffers,
            self.chosen.compute_stream,
        )

    def _resolved(self, instance: Ints, local: Ints, begin: Ints, inputs: Ints) -> Ints:
        """Return numbers of templates as those of instances, from INPUT down as what these read."""
        found, outside = begin[instance] + local, local <= INPUT
        found[outside] = inputs[self.first_input[instance[outside]] + INPUT - local[outside]]
        return found

    def _after(self, producer: Ints) -> Ragged:
        """Return which tasks each waits for without reading from them."""
        given, begin = self.templates.after.take(self.tasks_of.items), self.tasks_of.start
        others = self._resolved(
            self.tasks_of.row[given.row], given.items, begin, producer[self.inputs]
        )
        late = self.chosen.waits
        return Ragged.sorted(
            np.concatenate((given.row, begin[self.place[late[0]]])),
            np.concatenate((others, begin[self.ops[late[1]]])),
            len(self.tasks_of.items),
        )

    def _buffers(self) -> Buffers:
        flow, instance = self.flow, self.buffers_of.row
        buffer = self.templates.buffers[self.buffers_of.items]
        names = np.concatenate((self.chosen.kept, flow.held, self.tensor))
        name = names[self.first_name[instance] + buffer["name"]]
        return Buffers(
            name,
            np.where(buffer["kind"] == ROLE, flow.role[name], buffer["kind"]),
            buffer["size"],
            self.tasks_of.start[instance] + buffer["producer"],
            buffer["reused"],
            self._resolved(instance, buffer["origin"], self.buffers_of.start, self.inputs),
        )
