"""Walks over the ops of a program in their order: what comes before one of them, and what waits for it.

Compiled, as each op depends on those before it; it takes only some additions.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from autoddl.compiled import compiled
from autoddl.sbp.columns import Flags
from autoddl.sbp.program import Program

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def waiting_for_loss(program: Program) -> Flags:
    """Tell of every op whether it runs when the loss is there: the backward pass, as far as it waits.

    What does not wait runs as soon as it can, whichever pass it belongs to.
    """
    columns = program.columns
    behind = columns.phase != "forward"
    if program.loss is None:
        return np.asarray(behind)
    late, read = behind.astype(np.int64), columns.inputs
    reads = np.zeros(len(late), dtype=np.int64)
    reads[read.op[read.tensor == columns.number.get(program.loss, -1)]] = 1
    leave_waiting(*sources(program), reads, late)
    return np.asarray(late > 0)


def sooner(program: Program, begin: int, steps: int) -> Flags:
    """Tell of every op whether it runs before one of them, whatever the states, or is that.

    Those are what it comes from, and what needs only that, if so many ops follow each other in between.
    """
    found = np.full(len(program.ops), -1.0)
    count_before(*sources(program), begin, steps, found)
    return found >= 0


def later(program: Program, begin: int, steps: int) -> Flags:
    """Tell of every op whether more than so many follow each other from one of them up to it."""
    found = np.full(len(program.ops), -1.0)
    count_behind(*sources(program), begin, found)
    return found > steps


def sources(program: Program) -> tuple[Ints, Ints]:
    """Return the ops that each op waits for: those of op i begin at the i-th place of the first array."""
    waits, makers = program.columns.waits
    counts = np.bincount(waits, minlength=len(program.ops))
    return np.concatenate(([0], counts.cumsum())), makers


@compiled
def leave_waiting(first: Ints, source: Ints, reads: Ints, late: Ints) -> None:
    """Leave only those `late` that read the loss, or wait for such."""
    for op in range(len(late)):
        if late[op] and not reads[op]:
            waits = 0
            for place in range(first[op], first[op + 1]):
                if late[source[place]]:
                    waits = 1
            late[op] = waits


@compiled
def count_before(first: Ints, source: Ints, begin: int, least: int, steps: Floats) -> None:
    """Put in `steps` how many ops follow each other from an op to `begin`, at least; -1 is unknown."""
    steps[begin] = 0.0
    for op in range(begin, -1, -1):
        if steps[op] >= 0:
            for place in range(first[op], first[op + 1]):
                steps[source[place]] = max(steps[source[place]], steps[op] + 1)
    for op in range(len(steps)):
        if steps[op] < 0:
            left = np.inf
            for place in range(first[op], first[op + 1]):
                left = min(left, max(0.0, steps[source[place]]))
            if left > least:
                steps[op] = left - least


@compiled
def count_behind(first: Ints, source: Ints, begin: int, steps: Floats) -> None:
    """Put in `steps` how many ops follow each other from `begin` to an op, at most; -1 is unknown."""
    steps[begin] = 0.0
    for op in range(begin + 1, len(steps)):
        for place in range(first[op], first[op + 1]):
            if steps[source[place]] >= 0:
                steps[op] = max(steps[op], steps[source[place]] + 1)
