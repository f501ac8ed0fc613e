"""Which ops run when the loss is there."""

from __future__ import annotations

import numpy as np

from autoddl.sbp.program.columns import Flags
from autoddl.sbp.program.ir import Program


def waiting_for_loss(program: Program) -> Flags:
    """Tell of every op whether it runs when the loss is there: the backward pass, as far as it waits.

    What does not wait runs as soon as it can, whichever pass it belongs to; copies of forward ops do
    (`Program.waits`), though what they read is there before.
    """
    columns = program.columns
    behind = columns.phase != "forward"
    if program.loss is None:
        return np.asarray(behind)
    late, read = np.zeros(len(behind), dtype=np.bool_), columns.inputs
    late[read.op[read.tensor == columns.number.get(program.loss, -1)]] = True
    late &= behind
    found, mine = late.tolist(), behind.tolist()
    pairs = np.stack(columns.waits, axis=1).tolist()
    pairs += [[columns.place[copy], columns.place[op]] for copy, op in program.waits.items()]
    for op, maker in sorted(pairs):  # makers come before
        found[op] |= found[maker] and mine[op]
    return np.array(found, dtype=np.bool_)
