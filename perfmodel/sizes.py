"""What the ops and tensors of a program take on one device, in bytes; equal ones are computed once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from autoddl.perfmodel.inplace import shared_input
from autoddl.perfmodel.parts import Parts
from autoddl.perfmodel.wiring import Wiring
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
        self._tensors: dict[tuple[int, NdSbp], int] = {}
        self._ops: dict[tuple[int, tuple[NdSbp, ...]], OpSizes] = {}
        self._parts: dict[tuple[tuple[int, ...], bool], Parts] = {}

    @cached_property
    def wiring(self) -> Wiring:
        """Return what the ops read and make."""
        return Wiring(self.program)

    def parts(self, coords: tuple[int, ...], *, compute_stream: bool) -> Parts:
        """Return the parts of the ranks at these coordinates, as far as they are known."""
        key = coords, compute_stream
        if key not in self._parts:
            self._parts[key] = Parts(self.mesh, coords, self.form, compute_stream=compute_stream)
        return self._parts[key]

    def form(self, form: int, state: NdSbp) -> int:
        """Return the bytes of a tensor of this form (see Wiring) in a state."""
        size = self._tensors.get((form, state))
        if size is None:
            tensor = self.program.tensors[int((self.wiring.form == form).argmax())]
            size = math.prod(self._shape(tensor, state)) * tensor.item_bytes
            self._tensors[form, state] = size
        return size

    def op(self, number: int, signature: NdSignature) -> OpSizes:
        """Return the sizes of an op under a signature."""
        op = self.program.ops[number]
        states = tuple([signature[operand] for operand, _ in op.operands])
        key = self.program.kinds[number], states
        found = self._ops.get(key)
        if found is None:
            found = self._ops[key] = self._op(op, signature)
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
