"""Where two assignments differ: connected components of the variables that do.

Components share no factor, so that each may be taken from either assignment, whatever the others are.

    a - b - c - d with (0, 0, 0, 0) and (1, 1, 0, 1): the components are {a, b}, {c} and {d}.

Source: Glover 1997 (path relinking, component by component).
"""

from __future__ import annotations

import numpy as np

from autoddl.search.network.cost_network import CostNetwork, Ints, as_ints
from autoddl.search.result import Point


def components(network: CostNetwork, assignment: Point, other: Point) -> Ints:
    """Return the component of every variable, then of every factor, in the order of their first ones.

    A factor is in that of its variables that differ; what does not differ is one of its own.
    """
    from scipy.sparse import coo_matrix  # only memory limits need it, and it takes time to load
    from scipy.sparse.csgraph import connected_components

    factors, count = network.factors, len(network)
    ends = np.flatnonzero((as_ints(assignment) != as_ints(other))[factors.variable])
    pairs = factors.variable[ends], count + factors.factor[ends]
    nodes = count + len(factors.table)
    tied = coo_matrix((np.ones(len(ends)), pairs), shape=(nodes, nodes))
    found: Ints = connected_components(tied, directed=False)[1].astype(np.int64)
    return found
