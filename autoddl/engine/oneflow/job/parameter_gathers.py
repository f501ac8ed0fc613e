"""In which order a step gathers its parameters: as they are read, some at a time.

Parameters are in memory from the begin of a step on, so OneFlow could gather all of them at once, and the
first op would wait for nearly all. Of a, b, c and d of 1 MiB each c waits for a, and d for b.
"""

from __future__ import annotations

import numpy as np

from autoddl.sbp.layout import NONE, Layout
from autoddl.sbp.program.columns import Ints

# Bytes of parameters, whole, that may be gathered at once behind the next one: of long ones two, of short
# ones so many that their latencies overlap. A quarter makes steps as long, four times up to 10 % longer.
GATHERED_AT_ONCE = 2**20


def gathers_behind(layout: Layout) -> Ints:
    """Return by redistribution the one whose end it waits for, or NONE: of gathers of parameters.

    Each waits for the last one between which and itself there are GATHERED_AT_ONCE bytes. What waits for
    an op anyway has no turn.
    """
    moves, columns, variables = layout.moves, layout.program.columns, layout.variables
    cut = np.array([any(s.is_split for s in state) for state in variables.distinct], dtype=np.bool_)
    gathered = np.zeros(len(columns.form), dtype=np.bool_)
    gathered[variables.numbers[cut[variables.which]]] = True
    first, by_op = np.full(len(moves.tensor), len(columns.inputs.tensor)), moves.slot != NONE
    np.minimum.at(first, moves.item[by_op], moves.slot[by_op])
    turn = np.flatnonzero(gathered[moves.tensor] & (moves.after == NONE))
    turn = turn[first[turn].argsort(kind="stable")]
    size = columns.size_bytes[moves.tensor[turn]]
    end = size.cumsum()
    over = np.searchsorted(end, end - size - GATHERED_AT_ONCE, side="right")
    found = np.full(len(moves.tensor), NONE)
    found[turn] = np.append(NONE, turn)[over]
    return found
