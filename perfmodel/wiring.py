"""Who reads what in a program, by number: what the tasks of all its layouts have in common."""

from __future__ import annotations

import numpy as np

from autoddl.perfmodel.rank import NONE, Rows
from autoddl.sbp.program import PHASES, ROLES, Program

BITS = 20
MASK = (1 << BITS) - 1
"""A result is one number: who makes it, and in so many bits which of its results."""
ARRIVAL, BUFFER, SUM = "arrival", "identity_buffer", "acc"
"""The types of ops for what comes from another stage, micro-batches in flight, sums of gradients."""


class Wiring:
    """What the ops of a program read and make.

    The inputs of all ops stand one behind the other, from the `first_read` of each op: `reader` is the
    op, `read` the tensor, `made` the result of an op that it is, or NONE. So do the names of what each
    op holds, from `first_held`: its results, and itself (a workspace). `names` are tensors, then ops;
    `role` has the place in ROLES of each tensor, `form` is equal for equal shapes and dtypes. `phase`
    is that of each op and of what follows the last, `merged` tells (with and without the compute stream)
    which ops can be merged with their neighbours.
    """

    def __init__(self, program: Program) -> None:
        ops, tensors = program.ops, program.tensors
        self.op = {op.name: number for number, op in enumerate(ops)}
        self.tensor = {tensor.name: number for number, tensor in enumerate(tensors)}
        forms: dict[object, int] = {}
        self.form = [forms.setdefault((t.shape, t.dtype), len(forms)) for t in tensors]
        self.kind = np.array(program.kinds, dtype=np.int64)
        self.names = np.array([*self.tensor, *self.op], dtype=object)
        self.role = np.array([ROLES.index(t.role) for t in tensors] + [NONE] * len(ops))
        phases = [op.phase for op in ops]
        self.phase = np.array([*phases, *(phases[-1:] or PHASES[:1])], dtype=object)
        others = [op.type in (ARRIVAL, BUFFER) for op in ops]
        alone = others, [op.phase == "optimizer" for op in ops], [op.type == SUM for op in ops]
        outside, updates, sums = (np.array(flags, dtype=np.bool_) for flags in alone)
        self.merged = {False: ~(outside | updates), True: ~(outside | sums)}
        self.results: dict[int, int] = {}
        self._read(program)

    def _read(self, program: Program) -> None:
        number, results = self.tensor, self.results
        first_read, first_held = [0], [0]
        read, made, held = list[int](), list[int](), list[int]()
        for index, op in enumerate(program.ops):
            for _, name in op.inputs:
                tensor = number[name]
                read.append(tensor)
                made.append(results.get(tensor, NONE))
            first_read.append(len(read))
            for output, (_, name) in enumerate(op.outputs):
                tensor = number[name]
                results[tensor] = (index << BITS) + output
                held.append(tensor)
            held.append(len(number) + index)
            first_held.append(len(held))
        self.first_read, self.read, self.made, self.first_held, self.held = (
            np.array(column, dtype=np.int64)
            for column in (first_read, read, made, first_held, held)
        )
        self._first_read, self._inputs = first_read, [op.inputs for op in program.ops]
        self.reader = Rows(self.first_read, self.read).row

    def slot(self, tensor: str, op: int, operand: str) -> int:
        """Return where among all inputs an operand of an op is; NONE if it does not read the tensor."""
        pair = operand, tensor
        inputs = self._inputs[op]
        return self._first_read[op] + inputs.index(pair) if pair in inputs else NONE
