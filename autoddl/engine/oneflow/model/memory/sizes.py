"""What of a program is the same for all its layouts: bytes of ops and tensors, and who reads what."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from autoddl.engine.oneflow.model.memory.kernel_memory import shared_input, workspace_bytes
from autoddl.engine.oneflow.model.memory.task_graph import BITS, NONE, Flags
from autoddl.engine.oneflow.model.memory.task_templates import OpSizes, Templates
from autoddl.engine.oneflow.model.rewrites.gradient_accumulation import BUFFER, SUM
from autoddl.sbp.program import PHASES, ROLES, Op, Program, Tensor
from autoddl.sbp.program.columns import ProgramColumns
from autoddl.sbp.rewrites.stage_program import ARRIVAL, DEPARTURE
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.shards import local_shape
from autoddl.sbp.shares import Cuts, places
from autoddl.sbp.state import NdSbp

_BEHIND_CASTS = ("add_n", "scalar_mul_by_tensor")  # of gradients: each at most once


class Dataflow:
    """What the ops of a program read and make, as numbers.

    By tensor, `role` is its place in ROLES and `result` which result of which op it is (see BITS), or
    NONE; by input of all ops, those of each from `first_input`, `made` is the result that it is.
    `updates` tells which ops are of the optimizer's pass, and, last, whether what follows them is, `sums`
    which sum up gradients, `merged` (by compute stream and logical chains) which can be merged with
    neighbours. What each op holds does so from `first_held`: its results, and itself (a workspace), by
    their numbers among tensors, then ops.
    """

    def __init__(self, program: Program) -> None:
        columns, ops = program.columns, program.ops
        role = np.array([ROLES.index(name) for name in columns.roles], dtype=np.int64)
        self.role = np.concatenate((role[columns.role], np.full(len(ops), NONE)))
        updates = _optimizer_pass(columns)
        self.updates = np.append(updates, updates[-1:] if len(ops) else False)
        outside, sums = (
            np.array([name in types for name in columns.types], dtype=np.bool_)[columns.type]
            for types in ((ARRIVAL, DEPARTURE, BUFFER), (SUM,))
        )
        self.sums = sums
        self.merged = {
            (False, False): ~(outside | updates),
            (True, False): ~(outside | sums),
            (True, True): ~outside,
        }
        self.result = np.where(columns.maker < 0, NONE, (columns.maker << BITS) + columns.output)
        made = self.result[columns.inputs.tensor]
        self.made = np.where(made >> BITS < columns.inputs.op, made, NONE)
        self.first_input = columns.inputs.begin[:-1]
        results, held = columns.outputs, np.arange(len(ops))
        self.first_held = results.begin + np.arange(len(ops) + 1)
        self.held = np.empty(self.first_held[-1], dtype=np.int64)
        self.held[self.first_held[1:] - 1] = len(columns.form) + held
        self.held[np.arange(len(results.tensor)) + results.op] = results.tensor


def _optimizer_pass(columns: ProgramColumns) -> Flags:
    """Return which ops OneFlow counts to the optimizer's pass: updates, and what casts for them.

    Mixed precision makes gradients in float16; what scales them, sums over two halves, and updates
    read float32.
    """
    found: Flags = columns.phase == PHASES[-1]
    inputs, outputs = columns.inputs, columns.outputs
    cast, other = (
        np.array([name in wanted for name in columns.types], dtype=np.bool_)[columns.type]
        for wanted in (("cast",), _BEHIND_CASTS)
    )
    result = np.zeros(len(found), dtype=np.int64)  # of each op the first
    result[outputs.op[::-1]] = outputs.tensor[::-1]
    casted = cast
    for _ in _BEHIND_CASTS:
        reads = np.zeros(len(found), dtype=np.bool_)
        reads[inputs.op[np.append(casted, False)[columns.maker[inputs.tensor]]]] = True
        casted = cast | (other & reads)
    for _ in (*_BEHIND_CASTS, cast):
        read = np.zeros(len(columns.form), dtype=np.bool_)
        read[inputs.tensor[found[inputs.op]]] = True
        read[inputs.tensor[~found[inputs.op]]] = False
        found = found | (casted & read[result])
    return found


class LocalSizes:
    """What the ops and tensors of one program take on one device of a mesh; equal ones once.

    Keep it where the memory of several layouts of one program is estimated.
    """

    def __init__(self, program: Program, mesh: Cuts) -> None:
        self.program, self.cuts = program, tuple(mesh)
        self.mesh = tuple(map(places, mesh))
        self._kinds = program.columns.kind.tolist()
        self._tensors: dict[tuple[int, NdSbp], int] = {}
        self._ops: dict[tuple[int, tuple[NdSbp, ...]], OpSizes] = {}
        self._templates: dict[tuple[tuple[int, ...], bool], Templates] = {}

    @cached_property
    def dataflow(self) -> Dataflow:
        return Dataflow(self.program)

    def templates(self, coords: tuple[int, ...], *, compute_stream: bool) -> Templates:
        """Return the task templates of the ranks at these coordinates, as far as they are known."""
        key = coords, compute_stream
        if key not in self._templates:
            found = Templates(self.mesh, coords, self.form, compute_stream=compute_stream)
            self._templates[key] = found
        return self._templates[key]

    def form(self, form: int, state: NdSbp) -> int:
        """Return the bytes of a tensor of this form (see sbp's Columns) in a state."""
        size = self._tensors.get((form, state))
        if size is None:
            tensor = self.program.tensors[int((self.program.columns.form == form).argmax())]
            size = math.prod(self._shape(tensor, state)) * tensor.item_bytes
            self._tensors[form, state] = size
        return size

    def op(self, number: int, signature: NdSignature) -> OpSizes:
        op = self.program.ops[number]
        states = tuple([signature[operand] for operand, _ in op.operands])
        key = self._kinds[number], states
        found = self._ops.get(key)
        if found is None:
            found = self._ops[key] = self._op(op, signature)
        return found

    def _op(self, op: Op, signature: NdSignature) -> OpSizes:
        tensors = {o: self.program.tensor[t] for o, t in op.operands}
        shapes = {o: self._shape(t, signature[o]) for o, t in tensors.items()}
        items = {o: t.item_bytes for o, t in tensors.items()}
        dtypes = {o: t.dtype for o, t in tensors.items()}
        return OpSizes(
            tuple(math.prod(shapes[o]) * items[o] for o, _ in op.outputs),
            workspace_bytes(op, shapes, items, dtypes),
            shared_input(op, shapes, dtypes),
        )

    def _shape(self, tensor: Tensor, state: NdSbp) -> tuple[int, ...]:
        return local_shape(tensor.shape, state, self.cuts) or tensor.shape
