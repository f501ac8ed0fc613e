"""Which nodes of a problem decide on the states of what in its program, by number."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from autoddl.perfmodel.rank import NONE, Rows
from autoddl.sbp.program import Program
from autoddl.search.columns import ints
from autoddl.search.problem import Ints, Problem


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
    there are no more parameters, of what an op writes (in the order of Problem.written).
    """

    place: Ints
    ops: Ints
    inputs: Ints
    parameters: Ints
    given: Ints
    variable: Ints
    owner: Ints
    updates: Updates


def owners_of(problem: Problem) -> Owners:
    """Return which nodes decide on what."""
    return problem.once("owners", lambda: _owners(problem))


def _owners(problem: Problem) -> Owners:
    nodes, program, number = problem.node_columns, problem.program, problem.program.columns.number
    ops, inputs, parameters = (nodes.where(kind) for kind in ("op", "input", "parameter"))
    given, held = ([nodes.name[node] for node in of.tolist()] for of in (inputs, parameters))
    owner = {name: place for place, name in enumerate(chain(held, problem.written))}
    for parameter in program.parameters:
        for state in parameter.states:
            owner[state] = owner[parameter.tensor]
    variable = ints([number[name] for name in owner])
    updates, place = _updates(program), problem.ops.copy()
    update = np.full(len(number), NONE)
    update[updates.tensor] = updates.op
    place[parameters] = update[variable[: len(held)]]
    return Owners(
        place, ops, inputs, parameters, ints([number[name] for name in given]), variable,
        ints(list(owner.values())), updates,
    )  # fmt: skip


def _updates(program: Program) -> Updates:
    columns, number = program.columns, program.columns.number
    found = [(n, p) for n, p in enumerate(program.parameters) if p.update is not None]
    op = ints([columns.place[p.update or ""] for _, p in found])
    follows = Rows.of(
        [[number[name] for name in (p.tensor, p.gradient or p.tensor, *p.states)] for _, p in found]
    )
    count, inputs = len(number), columns.inputs
    reads = Rows(inputs.begin, np.arange(len(inputs.tensor))).take(op)
    is_own = np.isin(
        reads.row * count + inputs.tensor[reads.items], follows.row * count + follows.items
    )
    looks = np.stack((inputs.name[reads.items], is_own), axis=1)
    data, width = looks.tobytes(), looks.itemsize * looks.shape[1]
    known: dict[bytes, int] = {}
    pattern = [
        known.setdefault(data[width * a : width * b], len(known))
        for a, b in pairwise(reads.start.tolist())
    ]
    tensor = follows.items[follows.start[:-1]]
    return Updates(ints([n for n, _ in found]), op, tensor, ints(pattern))
