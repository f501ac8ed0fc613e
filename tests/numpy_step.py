"""Run a captured step with the NumPy references of the rules."""

from __future__ import annotations

import numpy as np

from autoddl.sbp.numeric import run_op
from autoddl.sbp.program import Program
from autoddl.sbp.rules import registry
from autoddl.sbp.rules.registry import OpView
from autoddl.sbp.state import broadcast

Arrays = dict[str, np.ndarray]


def in_numpy(program: Program, known: Arrays) -> tuple[Arrays, set[str]]:
    """Run what has rules before the optimizer; return all tensors and the op types run."""
    shapes = {tensor.name: tensor.shape for tensor in program.tensors}
    known, types = dict(known), set()
    for op in program.ops:
        if op.phase == "optimizer" or registry.find(op.type) is None:
            continue
        if all(tensor in known for _, tensor in op.inputs):
            operands = dict(op.inputs + op.outputs)
            view = OpView.of(op, {name: shapes[tensor] for name, tensor in operands.items()})
            whole = dict.fromkeys(operands, broadcast(1))
            results = run_op(view, whole, (1,), {n: [known[t]] for n, t in op.inputs})
            known |= {operands[name]: array for name, (array,) in results.items()}
            types.add(op.type)
    return known, types
