"""The longest chain of ops that read each other's results, and what a pivot on it parts.

Ops and boxings of the chain can't overlap, whatever the schedule: a step takes at least their sum. All
that an op of the chain depends on is over when it ends, and all that depends on it runs behind. So such
an op, the pivot, parts a step into two windows, one behind the other, and what most works may run in is
one of them: their span. The pivot is here the last op of the forward pass.

    forward a (2 ms), b (3 ms), backward of b (4 ms), of a (3 ms), b's weights' gradient (2 ms) beside
    them: the chain takes 12 ms; b is the pivot. It ends after 5 ms at least, and in the late window the
    device is busy for 9 ms: the step takes 14.

Source: Carlier 1982 (heads, and what one machine does behind them).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autoddl.compiled import compiled
from autoddl.perfmodel.timeline import StepTimeline
from autoddl.sbp.program import Program
from autoddl.search.network.cost_network import Factors, Floats, Ints
from autoddl.search.network.evaluator import Flags

EARLY, LATE = 0, 1  # the windows
EITHER = OFF = 2  # the span of what may run in both; the place of what is not on the path


@dataclass(frozen=True, eq=False)
class DependencyPath:
    """A chain of ops, in order; `slots` has the inputs by which each but the first reads the one before.

    Arrays by op have an entry more, at the end: what no op makes, or none reads.
    """

    program: Program
    ops: Ints
    slots: Ints
    pivot: int

    @classmethod
    def longest(cls, timeline: StepTimeline) -> DependencyPath:
        """Return the path that takes longest in a step of a program that has ops."""
        program = timeline.program
        columns, inputs = program.columns, program.columns.inputs
        maker = columns.maker[inputs.tensor]
        ops, slots = longest_path(timeline.compute_s, inputs.begin, maker, timeline.slot_s)
        forward = np.flatnonzero(columns.phase[ops] == "forward")
        return cls(program, ops, slots, int(forward.max(initial=0)))

    @cached_property
    def places(self) -> Ints:
        """Return of every op whether it is in the EARLY part of the path, in the LATE one, or OFF it."""
        found = np.full(len(self.program.ops) + 1, OFF)
        found[self.ops] = np.where(np.arange(len(self.ops)) <= self.pivot, EARLY, LATE)
        return found

    @cached_property
    def spans(self) -> Ints:
        """Return of every op in which window it runs: EARLY, LATE, or EITHER."""
        pivot, pairs = self.ops[self.pivot], list(zip(*self.program.columns.waits, strict=True))
        found = np.full(len(self.program.ops) + 1, EITHER)
        found[pivot] = EARLY
        for op, before in reversed(pairs):  # sorted by the one that waits
            if found[op] == EARLY:
                found[before] = EARLY
        for op, before in pairs:
            if before == pivot or found[before] == LATE:
                found[op] = LATE
        return found

    @cached_property
    def is_made_late(self) -> Flags:
        """Tell of every op whether boxings of its results are LATE: where it is, or it is the pivot."""
        found: Flags = self.spans == LATE
        found[self.ops[self.pivot]] = True
        return found

    def paths_s(self, timeline: StepTimeline) -> Floats:
        """Return what the path takes in each window."""
        seconds = timeline.compute_s[self.ops]
        seconds[1:] += timeline.slot_s[self.slots]
        return np.array([seconds[: self.pivot + 1].sum(), seconds[self.pivot + 1 :].sum()])

    def places_of(self, factors: Factors, ops: Ints) -> tuple[Ints, Flags]:
        """Return in which part of the path each factor's tensor is read, and by which ends.

        `ops` are those of the variables.
        """
        inputs = self.program.columns.inputs
        reader = np.full(len(self.program.tensors), -1)
        reader[inputs.tensor[self.slots]] = inputs.op[self.slots]
        at = reader[factors.tensor]
        mine = factors.reads & (at[factors.factor] >= 0)
        mine &= ops[factors.variable] == at[factors.factor]
        there = np.bincount(factors.factor, mine, len(at)) > 0
        return np.where(there, self.places[at], OFF), mine


@compiled
def longest_path(seconds: Floats, begin: Ints, before: Ints, between: Floats) -> tuple[Ints, Ints]:
    """Return the works of the longest chain, and by which predecessor each but the first waits.

    Predecessors of work n are `before[begin[n] : begin[n + 1]]`, -1 where there is none, earlier numbers;
    the seconds `between` go on in the meantime. There has to be a work.
    """
    count = len(seconds)
    ends, by, length = np.zeros(count), np.full(count, -1), np.zeros(count, np.int64)
    last = 0
    for work in range(count):
        for k in range(begin[work], begin[work + 1]):
            if before[k] >= 0 and ends[before[k]] + between[k] > ends[work]:
                ends[work], by[work] = ends[before[k]] + between[k], k
        if by[work] >= 0:
            length[work] = 1 + length[before[by[work]]]
        ends[work] += seconds[work]
        if ends[work] > ends[last]:
            last = work
    works, waits = np.empty(length[last] + 1, np.int64), np.empty(length[last], np.int64)
    works[-1] = last
    for place in range(len(waits) - 1, -1, -1):
        waits[place] = by[works[place + 1]]
        works[place] = before[waits[place]]
    return works, waits
