"""The longest chain of ops that read each other's results, and what runs behind a pivot on it.

Ops and boxings of the chain can't overlap, whatever the schedule: a step takes at least their sum. All
that depends on an op of the chain runs when the chain up to it is over. That op, the pivot, is here the
last one of the forward pass: the backward pass depends on it.

    forward a (2 ms), b (3 ms), backward of b (4 ms), of a (3 ms), b's weights' gradient (2 ms) beside
    them: the chain takes 12 ms; behind its 5 ms up to the pivot b there are 9 ms, so the step takes 14.

Source: Carlier 1982 (heads, and what one machine does behind them).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autoddl.perfmodel.event_simulation import longest_path
from autoddl.perfmodel.timeline import StepTimeline
from autoddl.sbp.program import Program
from autoddl.search.network.cost_network import Factors, Ints
from autoddl.search.network.evaluator import Flags

OFF, TAIL, HEAD = 0, 1, 2


@dataclass(frozen=True, eq=False)
class DependencyPath:
    """A chain of ops, in order; `slots` has the inputs by which each but the first reads the one before.

    Those up to position `pivot` are its head; `late` tells of every op whether it depends on that one.
    """

    program: Program
    ops: Ints
    slots: Ints
    pivot: int
    late: Flags

    @classmethod
    def longest(cls, timeline: StepTimeline) -> DependencyPath:
        """Return the path that takes longest in a step of a program that has ops."""
        program = timeline.program
        columns, inputs = program.columns, program.columns.inputs
        maker = columns.maker[inputs.tensor]
        ops, slots = longest_path(timeline.compute_s, inputs.begin, maker, timeline.slot_s)
        forward = np.flatnonzero(columns.phase[ops] == "forward")
        pivot = int(forward.max(initial=0))
        late = np.zeros(len(timeline.compute_s) + 1, dtype=np.bool_)
        late[ops[pivot]] = True
        for op, before in zip(*map(np.ndarray.tolist, columns.waits), strict=True):
            late[op] |= late[before]
        late[ops[pivot]] = False
        return cls(program, ops, slots, pivot, late[:-1])

    def head_s(self, timeline: StepTimeline) -> float:
        """Return what the path takes up to the pivot."""
        ops, slots = self.ops[: self.pivot + 1], self.slots[: self.pivot]
        return float(timeline.compute_s[ops].sum() + timeline.slot_s[slots].sum())

    def all_s(self, timeline: StepTimeline) -> float:
        """Return what all of it takes."""
        return float(timeline.compute_s[self.ops].sum() + timeline.slot_s[self.slots].sum())

    @property
    def starts_late(self) -> Flags:
        """Tell of every op, and of none at the end, whether boxings of its results are late, too."""
        found = np.append(self.late, False)
        found[self.ops[self.pivot]] = True
        return found

    @cached_property
    def places(self) -> Ints:
        """Return where each op is: OFF the path, in its TAIL or its HEAD, to which the pivot belongs."""
        found = np.full(len(self.late), OFF)
        found[self.ops] = TAIL
        found[self.ops[: self.pivot + 1]] = HEAD
        return found

    def places_of(self, factors: Factors, ops: Ints) -> tuple[Ints, Flags]:
        """Return where on the path each factor's tensor is, and of each end whether it reads it there.

        `ops` are those of the variables.
        """
        inputs, tensors = self.program.columns.inputs, len(self.program.tensors)
        reader, place = np.full(tensors, -1), np.full(tensors, OFF)
        reader[inputs.tensor[self.slots]] = inputs.op[self.slots]
        head = np.arange(len(self.slots)) < self.pivot
        place[inputs.tensor[self.slots]] = np.where(head, HEAD, TAIL)
        mine = factors.reads & (ops[factors.variable] == reader[factors.tensor][factors.factor])
        there = np.bincount(factors.factor, mine, len(factors.table)) > 0
        return np.where(there, place[factors.tensor], OFF), mine
