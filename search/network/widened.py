"""Assignments of a network in one of the same problem that has more choices, and none less."""

from __future__ import annotations

import numpy as np

from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.state import NdSbp
from autoddl.search.network.cost_network import SAVED, CostNetwork, as_ints, ints
from autoddl.search.result import Assignment, Point


def widened(assignment: Point, network: CostNetwork, wide: CostNetwork) -> Assignment:
    """Return an assignment of a network in that of the same problem with more choices.

    Tensors that are saved have no variables there.
    """
    kept = ~network.variables.of_kind(SAVED)
    choice, domain = as_ints(assignment)[kept], network.variables.domain[kept]
    pairs = np.stack([domain, wide.variables.domain], axis=1)
    every, which = np.unique(pairs, axis=0, return_inverse=True)
    found = np.zeros_like(choice)
    for number, (one, other) in enumerate(every.tolist()):
        place = {_states(c): i for i, c in enumerate(wide.variables.domains[other].choices)}
        there = ints([place[_states(c)] for c in network.variables.domains[one].choices])
        mine = which == number
        found[mine] = there[choice[mine]]
    return Assignment(found)


def _states(choice: NdSignature) -> tuple[NdSbp, ...]:
    return tuple(choice.values())
