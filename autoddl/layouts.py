"""The states that an assignment of a problem gives to all ops, variables and inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from autoddl.owners import owners_of
from autoddl.perfmodel.by_name import ByName
from autoddl.perfmodel.memory import Layout
from autoddl.plan import Redistribution
from autoddl.redistributions import redistributions_of
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.state import NdSbp
from autoddl.search.columns import ints, shared
from autoddl.search.problem import TENSOR, Ints, Problem


def assigned_layout(
    problem: Problem,
    assignment: Sequence[int],
    redistributions: Sequence[Redistribution] | None = None,
) -> Layout:
    """Return the states that an assignment gives to all ops, variables and inputs.

    `redistributions` are those of the assignment, where they are known.
    """
    columns, owners, point = problem.program.columns, owners_of(problem), ints(assignment)
    which, given = _chosen(problem, point, owners.inputs)
    inputs = ByName(columns.number, owners.given, which, [choice[TENSOR] for choice in given])
    op, chosen = _chosen(problem, point, owners.ops)
    made = ByName(columns.place, owners.place[owners.ops], op, chosen)
    state, states = _variables(problem, point, made)
    variables = ByName(columns.number, owners.variable, state, states)
    update, updates = _updates(problem, variables)
    signatures = ByName(
        columns.place,
        np.concatenate((made.numbers, owners.updates.op)),
        np.concatenate((op, len(chosen) + update)),
        [*chosen, *updates],
    )
    if redistributions is None:
        redistributions = redistributions_of(problem, assignment)
    return Layout(signatures, variables, inputs, redistributions)


def _chosen(problem: Problem, point: Ints, nodes: Ints) -> tuple[Ints, list[NdSignature]]:
    """Return which signature each of some nodes chooses, and these, each once."""
    columns, choice = problem.node_columns, point[nodes]
    keys = columns.form[nodes] * (int(point.max(initial=0)) + 1) + choice
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    pairs = zip(columns.form[nodes[first]].tolist(), choice[first].tolist(), strict=True)
    number, found = shared([columns.forms[form].choices[index] for form, index in pairs])
    return number[which], found


def _variables(
    problem: Problem, point: Ints, made: Mapping[str, NdSignature]
) -> tuple[Ints, list[NdSbp]]:
    """Return which state each variable has, and these; what ops write has the state that is `made`."""
    owners, known = owners_of(problem), dict[NdSbp, int]()
    which, chosen = _chosen(problem, point, owners.parameters)
    numbers = [known.setdefault(choice[TENSOR], len(known)) for choice in chosen]
    written = [made[op][operand] for op, operand in problem.written.values()]
    rest = [known.setdefault(state, len(known)) for state in written]
    return np.concatenate((ints(numbers)[which], ints(rest)))[owners.owner], list(known)


def _updates(problem: Problem, variables: ByName[NdSbp]) -> tuple[Ints, list[NdSignature]]:
    """Return which signature each parameter's update has, and these, each once."""
    updates, parameters = owners_of(problem).updates, problem.program.parameters
    state = variables.every[updates.tensor]
    keys = updates.pattern * (len(variables.distinct) + 1) + state
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    pairs = zip(updates.parameter[first].tolist(), state[first].tolist(), strict=True)
    return which, [problem.update_signature(parameters[p], variables.distinct[s]) for p, s in pairs]
