"""A captured training step, run in NumPy with the rules' references on one device."""

from __future__ import annotations

from autoddl.sbp.program import Program
from autoddl.sbp.rules import registry
from autoddl.sbp.rules.registry import Array, LocalOp, OpView


def interpret(program: Program, values: dict[str, Array]) -> dict[str, Array]:
    """Run forward and backward of a captured step with the NumPy references, in place of an engine.

    `values` has whole inputs and variables by tensor name; all tensors are returned.
    """
    known = dict(values)
    for op in program.ops:
        if op.phase == "optimizer":
            continue
        view = OpView.of(op, {name: program.tensor[t].shape for name, t in op.operands})
        rule = registry.find(op.type)
        assert rule is not None, op.type
        inputs = {name: known[tensor] for name, tensor in op.inputs}
        start = {name: (0,) * len(shape) for name, shape in view.shape.items()}
        results = rule.reference(LocalOp(view, inputs, start))
        known |= {tensor: results[name] for name, tensor in op.operands if name in results}
    return known
