"""The tasks and buffers of chosen instances of templates, numbered in the order of the program.

Two instances of a template of 3 tasks and 1 buffer are tasks 0, 1, 2 and 3, 4, 5, and buffers 0 and 1;
where the second one reads INPUT, which is what the first one makes, it reads buffer 0.
"""

from __future__ import annotations

import math

import numpy as np

from autoddl.engine.oneflow.model.memory.sizes import Dataflow
from autoddl.engine.oneflow.model.memory.task_graph import (
    BITS,
    MASK,
    NONE,
    Buffers,
    Ints,
    RankTasks,
    Table,
    Tasks,
)
from autoddl.engine.oneflow.model.memory.task_templates import GIVEN, INPUT, ROLE, Templates
from autoddl.ragged import Ragged, inverse


def order_of(group: int, number: int) -> int:
    """Return the place of a task among others: by group, then by number, then by step."""
    return (group << 60) + (number << BITS)


class Instances:
    """Chosen instances of templates by number: what is kept, the ops, then what was added.

    `kept` are the tensors of the first, `chosen` the templates of the first and of the ops, `reads`
    which result each input of an op is. Rows of `added` tell of those the template, the tensor, what one
    reads, before which op it comes, and the order of its task, where the template gives none. `waits`
    are instances with those that they wait for without reading from them. The other arrays are by
    place in the sequence of all, in which an added one stands before its op.
    """

    def __init__(
        self, flow: Dataflow, templates: Templates, *,
        kept: Ints, chosen: Ints, reads: Ints, added: Table, waits: Table,
        logical_chains: bool = False,
    ) -> None:  # fmt: skip
        self.flow, self.kept, self.waits = flow, kept, waits
        self.templates, self.compute_stream = templates.columns, templates.compute_stream
        self.logical_chains, self.devices = logical_chains, math.prod(templates.mesh)
        self.requests = templates.requests
        template, self.tensor, source, before, order = added
        counts = len(kept), len(flow.first_input), len(template)
        first, numbers, more = (np.arange(count) for count in counts)
        end = np.full(len(kept), -1), numbers, before  # the op each stands before, or is
        is_op = np.repeat((0, 1, 0), counts)
        turn = np.lexsort((is_op, np.concatenate(end)))
        self.place = inverse(turn)
        self.ops = self.place[len(kept) : len(kept) + len(numbers)]
        template = np.concatenate((chosen, template))[turn]
        self.tasks_of, self.buffers_of = (
            Ragged(begin, np.arange(begin[-1])).take(template)
            for begin in (self.templates.first_task, self.templates.first_buffer)
        )
        inputs = np.concatenate((reads, source))
        self.inputs = self.buffers_of.start[self.place[inputs >> BITS]] + (inputs & MASK)
        self.inputs[inputs == NONE] = NONE
        none = np.zeros_like(first)
        first_input = none, flow.first_input, len(reads) + more
        self.first_input = np.concatenate(first_input)[turn]
        self.order = np.concatenate((none, order_of(1, 0) + (numbers << BITS), order))[turn]
        self.updates = np.concatenate((none != 0, flow.updates[:-1], flow.updates[before]))[turn]
        names = first, len(kept) + flow.first_held[:-1], len(kept) + len(flow.held) + more
        self.first_name = np.concatenate(names)[turn]

    def tasks(self) -> RankTasks:
        rows, instance = self.tasks_of.items, self.tasks_of.row
        task, buffers, begin = self.templates.tasks[rows], self._buffers(), self.buffers_of.start
        given = self.templates.reads.take(rows)
        reads = self._resolved(instance[given.row], given.items, begin, self.inputs)
        made = reads != NONE
        merged = task["merged"].copy()
        merged[self.tasks_of.start[self.ops]] = self.flow.merged[
            self.compute_stream, self.logical_chains
        ]
        soon = np.zeros_like(merged)
        soon[self.tasks_of.start[self.ops]] = self.flow.sums
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
                soon,
                task["request"],
            ),
            buffers,
            self.compute_stream,
            self.logical_chains,
            bool(self.flow.sums.any()),
            self.logical_chains or (self.compute_stream and self.devices > 1),
            self.requests,
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
        return Ragged.sorted(
            np.concatenate((given.row, begin[self.place[self.waits[0]]])),
            np.concatenate((others, begin[self.place[self.waits[1]]])),
            len(self.tasks_of.items),
        )

    def _buffers(self) -> Buffers:
        flow, instance = self.flow, self.buffers_of.row
        buffer = self.templates.buffers[self.buffers_of.items]
        names = np.concatenate((self.kept, flow.held, self.tensor))
        name = names[self.first_name[instance] + buffer["name"]]
        return Buffers(
            name,
            np.where(buffer["kind"] == ROLE, flow.role[name], buffer["kind"]),
            buffer["size"],
            self.tasks_of.start[instance] + buffer["producer"],
            buffer["reused"],
            self._resolved(instance, buffer["origin"], self.buffers_of.start, self.inputs),
        )
