"""Walks over the ops of a program in their order: what comes before one of them, and what waits for it.

Compiled, as each op depends on those before it; it takes only some additions.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from autoddl.compiled import compiled
from autoddl.sbp.program import Program
from autoddl.sbp.program.columns import Flags

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
