"""Tensors that live across a step: what the backward pass reads of the forward pass, and gradients.

Of x → a → y → b, where the backward pass reads x and y, y is one of them; x is an input.
"""

from __future__ import annotations

import numpy as np

from autoddl.sbp.program.columns import Flags
from autoddl.sbp.program.ir import Program


def kept_tensors(program: Program) -> frozenset[str]:
    """Return the tensors that live across the step: what backward reads, parameter gradients."""
    kept = np.flatnonzero(kept_flags(program))
    return frozenset([program.tensors[i].name for i in kept.tolist()])


def kept_flags(program: Program) -> Flags:
    """Tell the same of every tensor."""
    columns, phase = program.columns, program.columns.phase
    read = columns.inputs.tensor[(phase == "backward")[columns.inputs.op]]
    made = columns.maker[read]
    found = np.zeros(len(columns.form), dtype=np.bool_)
    found[read[(made >= 0) & (phase == "forward")[made]]] = True
    found[[columns.number[p.gradient] for p in program.parameters if p.gradient]] = True
    return found
