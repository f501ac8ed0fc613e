"""Rhino's critical nodes: the matrix products and convolutions on a longest path of a program.

Every op takes one unit of time, tensors take none. An op on the backbone can't be later than it is at the
earliest without making the whole program longer.

    a → b → d, a → c: a, b and d begin at 0, 1, 2 at the earliest and the latest, c at 1 and 2: all but c
    are on the backbone.

Source: Rhino §4.3.1.
"""

from __future__ import annotations

import numpy as np

from autoddl.sbp.layers import contractions
from autoddl.sbp.program import Program
from autoddl.search.network.cost_network import Ints, ints
from autoddl.search.reductions.objective import PRODUCTS

PHASES = ("forward", "backward")


def critical(program: Program) -> Ints:
    """Return the positions of the critical ops, in the order of their times."""
    earliest, latest = times(program)
    products = np.concatenate([contractions(program, phase, *PRODUCTS) for phase in PHASES])
    found = np.sort(products[earliest[products] == latest[products]])
    order: Ints = found[np.argsort(earliest[found], kind="stable")]
    return order


def times(program: Program) -> tuple[Ints, Ints]:
    """Return when every op can begin at the earliest, and when it has to begin at the latest."""
    reads, maker = program.columns.inputs, program.columns.maker
    pairs = [(maker[t], op) for t, op in zip(reads.tensor, reads.op, strict=True) if maker[t] >= 0]
    earliest = [0] * len(program.ops)
    for before, op in pairs:  # in the order of the program, whose ops come behind what they read
        earliest[op] = max(earliest[op], earliest[before] + 1)
    latest = [max(earliest, default=0)] * len(program.ops)
    for before, op in reversed(pairs):
        latest[before] = min(latest[before], latest[op] - 1)
    return ints(earliest), ints(latest)
