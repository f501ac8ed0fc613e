"""What the ops and tensors of a program take on one device, in bytes; equal ones are computed once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from autoddl.perfmodel.inplace import shared_input
from autoddl.perfmodel.workspace import workspace_bytes
from autoddl.sbp.program import Op, Program, Tensor
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.shards import local_shape
from autoddl.sbp.state import NdSbp


class OpSizes(NamedTuple):
    """Bytes of an op's results and its workspace, and what it shares memory with (perfmodel.inplace)."""

    results: tuple[int, ...]
    workspace: int
    shared: tuple[str, bool] | None


class LocalSizes:
    """What the ops and tensors of one program take on one device of a mesh; equal ones once.

    Keep it where the memory of several layouts of one program is estimated.
    """

    def __init__(self, program: Program, mesh: Sequence[int]) -> None:
        self.program, self.mesh = program, tuple(mesh)
        self.kind = {op.name: n for op, n in zip(program.ops, program.kinds, strict=True)}
        self._tensors: dict[tuple[tuple[int, ...], str, NdSbp], int] = {}
        self._ops: dict[tuple[int, tuple[NdSbp, ...]], OpSizes] = {}
        self._last: dict[int, tuple[NdSignature, OpSizes]] = {}

    def tensor(self, tensor: Tensor, state: NdSbp) -> int:
        """Return the bytes of a tensor in a state."""
        key = tensor.shape, tensor.dtype, state
        size = self._tensors.get(key)
        if size is None:
            size = math.prod(self._shape(tensor, state)) * tensor.item_bytes
            self._tensors[key] = size
        return size

    def op(self, op: Op, signature: NdSignature) -> OpSizes:
        """Return the sizes of an op under a signature."""
        kind = self.kind[op.name]
        last = self._last.get(kind)  # ops of one kind often have one signature, one object even
        if last is not None and last[0] is signature:
            return last[1]
        key = kind, tuple([signature[operand] for operand, _ in op.operands])
        found = self._ops.get(key)
        if found is None:
            found = self._ops[key] = self._op(op, signature)
        self._last[kind] = signature, found
        return found

    def _op(self, op: Op, signature: NdSignature) -> OpSizes:
        tensors = {o: self.program.tensor[t] for o, t in op.operands}
        shapes = {o: self._shape(t, signature[o]) for o, t in tensors.items()}
        items = {o: t.item_bytes for o, t in tensors.items()}
        return OpSizes(
            tuple(math.prod(shapes[o]) * items[o] for o, _ in op.outputs),
            workspace_bytes(op, shapes, items),
            shared_input(op, shapes, {o: t.dtype for o, t in tensors.items()}),
        )

    def _shape(self, tensor: Tensor, state: NdSbp) -> tuple[int, ...]:
        return local_shape(tensor.shape, state, self.mesh) or tensor.shape
