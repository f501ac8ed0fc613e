"""The states that an assignment of a problem gives to all ops, variables and inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from autoddl.ragged import distinct
from autoddl.sbp.layout import ByName, Layout
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.state import NdSbp
from autoddl.search.assigned.assigned_moves import moves_of
from autoddl.search.assigned.ownership import owners
from autoddl.search.network.cost_network import TENSOR, CostNetwork, Ints, ints, shared


def assigned_layout(problem: CostNetwork, assignment: Sequence[int]) -> Layout:
    """Return the states that an assignment gives to all ops, variables and inputs."""
    columns, own, point = problem.program.columns, problem.derived(owners), ints(assignment)
    which, given = _chosen(problem, point, own.inputs)
    inputs = ByName(columns.number, own.given, which, [choice[TENSOR] for choice in given])
    op, chosen = _chosen(problem, point, own.ops)
    made = ByName(columns.place, own.place[own.ops], op, chosen)
    state, states = _variables(problem, point, made)
    variables = ByName(columns.number, own.variable, state, states)
    update, updates = _updates(problem, variables)
    signatures = ByName(
        columns.place,
        np.concatenate((made.numbers, own.updates.op)),
        np.concatenate((op, len(chosen) + update)),
        [*chosen, *updates],
    )
    moves = moves_of(problem, assignment)
    return Layout(problem.program, signatures, variables, inputs, moves, problem.program.waits)


def _chosen(problem: CostNetwork, point: Ints, nodes: Ints) -> tuple[Ints, list[NdSignature]]:
    """Return which signature each of some nodes chooses, and these, each once."""
    columns, choice = problem.variables, point[nodes]
    first, which = distinct(columns.domain[nodes], choice)
    pairs = zip(columns.domain[nodes[first]].tolist(), choice[first].tolist(), strict=True)
    number, found = shared([columns.domains[form].choices[index] for form, index in pairs])
    return number[which], found


def _variables(
    problem: CostNetwork, point: Ints, made: Mapping[str, NdSignature]
) -> tuple[Ints, list[NdSbp]]:
    """Return which state each variable has, and these; what ops write has the state that is `made`."""
    own, known = problem.derived(owners), dict[NdSbp, int]()
    which, chosen = _chosen(problem, point, own.parameters)
    numbers = [known.setdefault(choice[TENSOR], len(known)) for choice in chosen]
    written = [made[op][operand] for op, operand in problem.written.values()]
    rest = [known.setdefault(state, len(known)) for state in written]
    return np.concatenate((ints(numbers)[which], ints(rest)))[own.owner], list(known)


def _updates(problem: CostNetwork, variables: ByName[NdSbp]) -> tuple[Ints, list[NdSignature]]:
    """Return which signature each parameter's update has, and these, each once."""
    updates, parameters = problem.derived(owners).updates, problem.program.parameters
    state = variables.column[updates.tensor]
    first, which = distinct(updates.pattern, state)
    pairs = zip(updates.parameter[first].tolist(), state[first].tolist(), strict=True)
    return which, [problem.update_signature(parameters[p], variables.distinct[s]) for p, s in pairs]
