"""Tensors of the forward pass that the backward pass reads: the state in which they wait for it.

A tensor may wait as it was made, and then be redistributed for either pass, or as some reader wanted
it, so that the backward pass need not pay again; or as a smaller part of it. Which is best depends on
what memory is worth. So each such tensor gets a node, which reads it in the forward pass, holds it,
and is what the backward pass reads from.

Of the memory then counts what is there between the two passes, whatever else a plan does: parameters
with their optimizer's states, and the tensors that wait. What a plan takes is more than that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoddl.search.network.cost_network import SAVED, CostNetwork, Factors, Ints, as_ints
from autoddl.search.result import Assignment, Point


def as_read(network: CostNetwork, others: Point) -> Assignment:
    """Return an assignment whose tensors wait as their first late reader wants them.

    `others` are the choices of all other nodes, in their order.
    """
    waiting = network.derived(_found)
    found = np.zeros(len(waiting.others), dtype=np.int64)
    found[waiting.others] = as_ints(others)
    return waiting.as_at(waiting.readers, found)


def made_again(network: CostNetwork, assignment: Point) -> Assignment:
    """Return an assignment whose tensors wait in the states in which they were made."""
    waiting = network.derived(_found)
    return waiting.as_at(waiting.makers, np.array(assignment, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class _Waiting:
    """The kept tensors' `nodes`, and where the choices of others tell states of these tensors.

    By tensor `makers` are the ends (see Factors) of who makes it, `readers` those of who is the
    first to read it later. `others` tells of every node of the problem whether it is of another kind.
    The states of array a of the edges begin at `first[a]` in `states`; `choice[row, s]` is the choice
    of a kept tensor's node with state s, with its entry of `rows`.
    """

    nodes: Ints
    others: npt.NDArray[np.bool_]
    columns: Factors
    makers: Ints
    readers: Ints
    states: Ints
    first: Ints
    rows: Ints
    choice: Ints

    def as_at(self, ends: Ints, assignment: Ints) -> Assignment:
        """Return an assignment in which tensors wait in their states at some ends; it is changed."""
        chosen = assignment[self.columns.variable[ends]]
        states = self.states[self.first[self.columns.states[ends]] + chosen]
        assignment[self.nodes] = self.choice[self.rows, states]
        return Assignment(assignment)


def _found(network: CostNetwork) -> _Waiting:
    """Return what is the same for all assignments."""
    edges, kept = network.factors, network.variables.of_kind(SAVED)
    producer = edges.producer
    second = np.flatnonzero(kept[producer])  # edges from the nodes; before each that from its maker
    source = edges.begin[second]
    used, which = np.unique(edges.states[source], return_inverse=True)
    size = 1 + max([int(array.max()) for array in edges.arrays], default=0)
    choice = np.full((len(used), size), -1)
    for row, number in enumerate(used.tolist()):
        states = edges.arrays[number]
        turns = np.arange(len(states))
        choice[row, states[::-1]] = turns[::-1]  # the first one where some are equal
    lengths = np.cumsum([0, *map(len, edges.arrays)])
    return _Waiting(
        producer[second],
        ~kept,
        edges,
        edges.begin[second - 1],
        source + 1,
        np.concatenate(edges.arrays) if edges.arrays else np.zeros(0, dtype=np.int64),
        lengths[:-1],
        which,
        choice,
    )
