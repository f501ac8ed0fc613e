"""Which nodes of a problem decide on the states of what in its program, by number."""

from __future__ import annotations

from itertools import chain, count
from typing import NamedTuple

import numpy as np

from autoddl.ragged import Ragged
from autoddl.sbp.layout import NONE
from autoddl.sbp.program import Program
from autoddl.search.network.cost_network import CostNetwork, Ints, ints


class Updates(NamedTuple):
    """The ops that update parameters: `op[i]` that of number `parameter[i]`, whose tensor is `tensor[i]`.

    `pattern` is equal where the same operands have the state of the parameter.
    """

    parameter: Ints
    op: Ints
    tensor: Ints
    pattern: Ints


class Owners(NamedTuple):
    """The nodes of `ops`, `inputs` and `parameters`, and what each decides on.

    `place` is the op of every node, that of its update for a parameter, NONE for others. `given` are the
    tensors of the inputs. That numbered `variable[i]` has the state of `parameters[owner[i]]`, or, where
    there are no more parameters, of what an op writes (in the order of CostNetwork.written).
    """

    place: Ints
    ops: Ints
    inputs: Ints
    parameters: Ints
    given: Ints
    variable: Ints
    owner: Ints
    updates: Updates


def owners(problem: CostNetwork) -> Owners:
    """Return which nodes decide on what."""
    nodes, program, number = problem.variables, problem.program, problem.program.columns.number
    ops, inputs, parameters = (nodes.where(kind) for kind in ("op", "input", "parameter"))
    given, held = ([nodes.name[node] for node in of.tolist()] for of in (inputs, parameters))
    own = dict(zip(chain(held, problem.written), count(), strict=False))
    follow = [(own[p.tensor], p.states) for p in program.parameters]
    own |= {state: place for place, states in follow for state in states}
    variable, owner = ints([number[name] for name in own]), ints(list(own.values()))
    updates, place = _updates(program, variable, owner), problem.variables.op.copy()
    update = np.full(len(number), NONE)
    update[updates.tensor] = updates.op
    place[parameters] = update[variable[: len(held)]]
    return Owners(
        place, ops, inputs, parameters, ints([number[name] for name in given]), variable, owner,
        updates,
    )  # fmt: skip


def _updates(program: Program, variable: Ints, owner: Ints) -> Updates:
    columns, number = program.columns, program.columns.number
    found = [(n, p) for n, p in enumerate(program.parameters) if p.update is not None]
    op, tensor, gradient = (
        ints([numbers[name or ""] for name in names])
        for numbers, names in (
            (columns.place, [p.update for _, p in found]),
            (number, [p.tensor for _, p in found]),
            (number, [p.gradient for _, p in found]),
        )
    )
    owner_of = np.full(len(number), NONE)
    owner_of[variable] = owner
    reads = Ragged(columns.inputs.begin, np.arange(len(columns.inputs.tensor))).take(op)
    read = columns.inputs.tensor[reads.items]
    own = (owner_of[read] == owner_of[tensor][reads.row]) | (read == gradient[reads.row])
    pattern = Ragged(reads.start, 2 * columns.inputs.name[reads.items] + own).distinct()[1]
    return Updates(ints([n for n, _ in found]), op, tensor, pattern)
