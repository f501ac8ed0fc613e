"""The scopes of the factors: who makes and who reads each tensor.

y = matmul(x, w); z = gelu(y)   the factor of y has the scope (matmul, gelu): its producer, its reader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from autoddl.perfmodel.redistribution import Redistributor
from autoddl.ragged import distinct
from autoddl.sbp.program import Program
from autoddl.sbp.state import OWN
from autoddl.search.network.cost_network import (
    GRADIENT,
    TENSOR,
    Factors,
    Ints,
    Variables,
    ints,
    shared,
)
from autoddl.search.network.strided import StridedCuts


def factors_of(
    program: Program, variables: Variables, written: Mapping[str, tuple[str, str]],
    redistributor: Redistributor, *, owned: bool, strided: StridedCuts,
) -> Factors:  # fmt: skip
    """Return a factor for each tensor that some variable makes and some variable reads.

    They come in the order in which variables first read them. `written` is as in CostNetwork. Prices
    have the state OWN where some choice has it, which is looked for where choices may be `owned`, and
    those with the cuts that are `strided`.
    Tensors that the runtime makes (the learning rate) are B everywhere and have no factor.
    """
    operands = (*program.columns.operands, TENSOR, GRADIENT)
    tensor, begin, variable, name = _scopes(program, variables, written)
    factor = np.repeat(np.arange(len(tensor)), np.diff(begin))
    chosen_by, every = shared([domain.choices for domain in variables.domains])
    chosen = chosen_by[variables.domain[variable]]
    first, kind = distinct(chosen, name)  # equal ends are looked at once
    kinds = [(every[chosen[end]], operands[name[end]]) for end in first.tolist()]
    by_choice = [[choice[operand] for choice in choices] for choices, operand in kinds]
    own = np.zeros(len(tensor), dtype=np.bool_)
    if owned:
        has_own = np.array([any(OWN in state for state in one) for one in by_choice])
        own[factor[has_own[kind]]] = True

    cuts = strided.of_tensor[tensor]
    first, form = distinct(program.columns.form[tensor], own, cuts)
    of = [(program.tensors[tensor[i]], bool(own[i]), strided.cuts[cuts[i]]) for i in first.tolist()]
    tables = [
        redistributor.table(one.shape, one.item_bytes, own=its, strided=some)
        for one, its, some in of
    ]
    first, states = distinct(kind, form[factor])
    which = zip(kind[first].tolist(), form[factor[first]].tolist(), strict=True)
    arrays = [ints([tables[t].index[state] for state in by_choice[k]]) for k, t in which]
    return Factors(tensor, tables, form, begin, variable, arrays, states, operands, name)


def _scopes(
    program: Program, nodes: Variables, written: Mapping[str, tuple[str, str]]
) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the tensor and the first end of each factor; of each end its variable and operand."""
    columns, number = program.columns, program.columns.number
    is_tensor, is_gradient = len(columns.operands), len(columns.operands) + 1
    of_ops, outputs = nodes.where("op"), nodes.where("output")
    parameters, given = nodes.where("parameter"), nodes.where("input", "parameter")
    variable_of = np.full(len(program.ops), -1)
    variable_of[nodes.op[of_ops]] = of_ops

    reads, made = columns.inputs, columns.outputs
    changed = np.zeros(len(reads.tensor), dtype=np.bool_)
    for name, operand in written.values():
        names = [read for read, _ in program.op[name].inputs]
        changed[reads.begin[columns.place[name]] + names.index(operand)] = True
    maker = np.full(len(columns.form), -1)
    output = np.full(len(columns.form), is_tensor)
    maker[ints([number[nodes.name[i]] for i in given.tolist()])] = given
    for operands, which in ((made, np.ones(len(made.op), np.bool_)), (reads, changed)):
        mine = which & (variable_of[operands.op] >= 0)
        maker[operands.tensor[mine]] = variable_of[operands.op[mine]]
        output[operands.tensor[mine]] = operands.name[mine]

    read = ~changed & (variable_of[reads.op] >= 0)
    holder = {nodes.name[i]: i for i in parameters.tolist()}
    gradients = [(number[p.gradient], holder[p.tensor]) for p in program.parameters if p.gradient]
    every = [
        np.stack([reads.tensor[read], variable_of[reads.op[read]], reads.name[read]]),
        _reads([(number[nodes.name[i]], i) for i in outputs.tolist()], is_tensor),
        _reads(gradients, is_gradient),
    ]
    tensor, node, name = np.concatenate(every, axis=1)
    there = maker[tensor] >= 0
    tensor, node, name = tensor[there], node[there], name[there]
    _, first, group = np.unique(tensor, return_index=True, return_inverse=True)
    order = first[group].argsort(kind="stable")
    tensor, node, name = tensor[order], node[order], name[order]
    starts = np.flatnonzero(np.diff(tensor, prepend=-1))
    moved = tensor[starts]
    begin = np.append(starts, len(tensor)) + np.arange(len(starts) + 1)
    node = np.insert(node, starts, maker[moved])
    return moved, begin, node, np.insert(name, starts, output[moved])


def _reads(pairs: Sequence[tuple[int, int]], name: int) -> Ints:
    """Return the columns of tensors and variables that call them by one name."""
    found = ints(pairs).reshape(-1, 2).T
    return np.concatenate([found, np.full((1, len(pairs)), name)])
