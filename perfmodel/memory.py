"""Memory of one device: a sum over tensors, in bytes.

Counted are parameters with their optimizer states, parameter gradients, inputs, and every forward
result that the backward pass reads. Buffers of redistributions and short-lived tensors are not.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoddl.sbp.program import Program, Tensor
from autoddl.sbp.shards import local_shape
from autoddl.sbp.state import Sbp


def local_bytes(tensor: Tensor, state: Sequence[Sbp], mesh: Sequence[int]) -> int:
    """Return the bytes of `tensor` on each device of a mesh with these axis sizes."""
    shape = local_shape(tensor.shape, state, mesh)
    total = tensor.item_bytes
    for dim in shape if shape is not None else tensor.shape:
        total *= dim
    return total


def kept_tensors(program: Program) -> frozenset[str]:
    """Return the tensors that live across the step: what backward reads, parameter gradients."""
    gradients = {p.gradient for p in program.parameters if p.gradient}
    saved = {
        name
        for op in program.ops
        if op.phase == "backward"
        for _, name in op.inputs
        if name in program.producer and program.producer[name].phase == "forward"
    }
    return frozenset(gradients | saved)
