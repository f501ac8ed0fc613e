"""Who reads what in a program, by number: what the tasks of all its layouts have in common."""

from __future__ import annotations

import numpy as np

from autoddl.perfmodel.rank import NONE
from autoddl.sbp.program import PHASES, ROLES, Program

BITS = 20
MASK = (1 << BITS) - 1
"""A result is one number: who makes it, and in so many bits which of its results."""
ARRIVAL, BUFFER, SUM = "arrival", "identity_buffer", "acc"
"""The types of ops for what comes from another stage, micro-batches in flight, sums of gradients."""
_UPDATE = PHASES[-1]


class Wiring:
    """What the ops of a program read and make.

    The inputs of all ops stand one behind the other, from the `first_read` of each op: `reader` is the
    op, `read` the tensor, `made` the result of an op that it is, or NONE; `result` is that of each
    tensor. What each op holds does so from `first_held`: its results, and itself (a workspace), by
    their numbers among tensors, then ops. `role` has the place in ROLES of each tensor, `form` is equal
    for equal shapes and dtypes. `updates` tells which ops are of the optimizer, and, last, whether what
    follows them is, `merged` (with and without the compute stream) which can be merged with neighbours.
    """

    def __init__(self, program: Program) -> None:
        columns, ops = program.columns, program.ops
        self.program, self.op, self.tensor = program, columns.place, columns.number
        self.form, self.kind = columns.form, columns.kind
        role = np.array([ROLES.index(name) for name in columns.roles], dtype=np.int64)
        self.role = np.concatenate((role[columns.role], np.full(len(ops), NONE)))
        updates = columns.phase == _UPDATE
        self.updates = np.append(updates, updates[-1:] if len(ops) else False)
        outside, sums = (
            np.array([name in types for name in columns.types], dtype=np.bool_)[columns.type]
            for types in ((ARRIVAL, BUFFER), (SUM,))
        )
        self.merged = {False: ~(outside | updates), True: ~(outside | sums)}
        self.first_read, self.read = columns.inputs.begin, columns.inputs.tensor
        self.reader = columns.inputs.op
        self.result = np.where(columns.maker < 0, NONE, (columns.maker << BITS) + columns.output)
        made = self.result[self.read]
        self.made = np.where(made >> BITS < self.reader, made, NONE)
        results, held = columns.outputs, np.arange(len(ops))
        self.first_held = results.begin + np.arange(len(ops) + 1)
        self.held = np.empty(self.first_held[-1], dtype=np.int64)
        self.held[self.first_held[1:] - 1] = len(columns.form) + held
        self.held[np.arange(len(results.tensor)) + results.op] = results.tensor

    def slot(self, tensor: str, op: int, operand: str) -> int:
        """Return where among all inputs an operand of an op is; NONE if it does not read the tensor."""
        pair, inputs = (operand, tensor), self.program.ops[op].inputs
        return int(self.first_read[op]) + inputs.index(pair) if pair in inputs else NONE
