"""Tensors of the forward pass that the backward pass reads: the state in which they wait for it.

A tensor may wait as it was made, and then be redistributed for either pass, or as some reader wanted
it, so that the backward pass need not pay again; or as a smaller part of it. Which is best depends on
what memory is worth. So each such tensor gets a node, which reads it in the forward pass, holds it,
and is what the backward pass reads from.

Of the memory then counts what is there between the two passes, whatever else a plan does: parameters
with their optimizer's states, and the tensors that wait. What a plan takes is more than that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoddl.search.columns import ints
from autoddl.search.problem import KEPT, Ints, Problem
from autoddl.search.result import Assignment


def as_read(problem: Problem, others: Sequence[int]) -> Assignment:
    """Return an assignment whose tensors wait as their first late reader wants them.

    `others` are the choices of all other nodes, in their order.
    """
    kept, _, second = _pairs(problem)
    found = np.zeros(len(problem.nodes), dtype=np.int64)
    rest = np.ones(len(found), dtype=np.bool_)
    rest[kept] = False
    found[rest] = others
    flat = problem.flat
    readers = np.array(flat.first_reader[:-1])[second]
    return _waiting(problem, found, kept, second, flat.states(found)[1][readers])


def made_again(problem: Problem, assignment: Sequence[int]) -> Assignment:
    """Return an assignment whose tensors wait in the states in which they were made."""
    kept, first, second = _pairs(problem)
    return _waiting(
        problem, ints(assignment), kept, second, problem.flat.states(assignment)[0][first]
    )


def _pairs(problem: Problem) -> tuple[Ints, Ints, Ints]:
    """Return all kept tensors' nodes, the edges from their makers, and, behind these, from the nodes."""
    edges, kept = problem.edge_columns, np.zeros(len(problem.nodes), dtype=np.bool_)
    kept[problem.node_columns.where(KEPT)] = True
    producer = edges.node[edges.begin[:-1]]
    second = np.flatnonzero(kept[producer])
    return producer[second], second - 1, second


def _waiting(
    problem: Problem, assignment: Ints, kept: Ints, edges: Ints, goals: Ints
) -> Assignment:
    """Return an assignment with other states of kept tensors, given their nodes' edges and the states."""
    columns, found = problem.edge_columns, assignment.copy()
    source = columns.states[columns.begin[edges]]
    for number in np.unique(source).tolist():
        mine = np.flatnonzero(source == number)
        here, choice = np.nonzero(goals[mine][:, None] == columns.arrays[number])
        _, first = np.unique(here, return_index=True)
        found[kept[mine]] = choice[first]
    return tuple(found.tolist())
