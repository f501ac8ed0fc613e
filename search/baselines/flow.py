"""Where the features of tensors are cut: by which linear layers, and where they are made whole again.

Compiled, as it goes through all ops of the forward pass.

    x @ w1 (cut by columns) → gelu → @ w2 (cut by rows): the features between the two are cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from autoddl.compiled import compiled
from autoddl.sbp.layers import Layer
from autoddl.sbp.program import Program
from autoddl.search.network.cost_network import Ints

WHOLE, CUT = 1, 2  # features; 0 where no parameter is behind a tensor (masks, say)


class Features(NamedTuple):
    """The ops of the forward pass in their order, with what all ops read and make (sbp.columns.Operands).

    By op, `x` is the tensor whose features a linear layer takes, -1 for other ops. By tensor, `elements`
    is its size, and `parameter` 1 where it is one.
    """

    ops: Ints
    read_from: Ints
    read: Ints
    made_from: Ints
    made: Ints
    x: Ints
    elements: Ints
    parameter: Ints


def network(program: Program, layers: Sequence[Layer]) -> Features:
    """Return what `flow` goes along, for linear layers of a program."""
    columns = program.columns
    x = np.full(len(program.ops), -1)
    for layer in layers:
        x[columns.place[layer.op.name]] = columns.number[dict(layer.op.inputs)[layer.x]]
    elements = [prod(shape) for shape, _ in columns.forms]
    return Features(
        np.flatnonzero(columns.phase == "forward"),
        columns.inputs.begin, columns.inputs.tensor,
        columns.outputs.begin, columns.outputs.tensor,
        x, np.array(elements, dtype=np.int64)[columns.form],
        np.array([tensor.role == "parameter" for tensor in program.tensors], dtype=np.int64),
    )  # fmt: skip


@compiled
def flow(net: Features, columns: Ints) -> tuple[Ints, Ints]:
    """Return the layers with cut inputs, and the layers cut by columns whose outputs end there, by op.

    `columns` are the layers that are cut by columns: what they make has cut features.
    """
    rows, closed = np.zeros(len(net.x), dtype=np.int64), np.zeros(len(net.x), dtype=np.int64)
    state = np.zeros(len(net.elements), dtype=np.int64)
    for op in net.ops:
        after = _made(net, op, state)
        if after > 0 and net.x[op] >= 0:
            rows[op] = state[net.x[op]] == CUT
            after = CUT if columns[op] and not rows[op] else WHOLE
        for i in range(net.made_from[op], net.made_from[op + 1]):
            state[net.made[i]] = after
    wanted = np.zeros(len(state), dtype=np.int64)  # cut by layers whose outputs end behind
    for i in range(len(net.ops) - 1, -1, -1):
        op = net.ops[i]
        if rows[op]:
            wanted[net.x[op]] = 1
        passes = 0
        for j in range(net.made_from[op], net.made_from[op + 1]):
            passes |= wanted[net.made[j]]
        if passes and net.x[op] >= 0:
            closed[op] = 1
        elif passes:
            for j in range(net.read_from[op], net.read_from[op + 1]):
                wanted[net.read[j]] |= state[net.read[j]] == CUT
    return rows, closed


@compiled
def _made(net: Features, op: int, state: Ints) -> int:
    """Return what an op that is no layer makes of the features of its inputs.

    They are whole where they are added to, or multiplied with, as many whole ones.
    """
    known, cut, whole = 0, 0, 0
    for i in range(net.read_from[op], net.read_from[op + 1]):
        tensor = net.read[i]
        known |= state[tensor] > 0 or net.parameter[tensor] > 0
        cut |= state[tensor] == CUT
        if state[tensor] == WHOLE:
            for j in range(net.made_from[op], net.made_from[op + 1]):
                whole |= net.elements[tensor] == net.elements[net.made[j]]
    if not known:
        return 0
    return CUT if cut and not whole else WHOLE
