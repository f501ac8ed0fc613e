"""Where two assignments differ: connected components of the variables that do.

Components share no factor, so that each may be taken from either assignment, whatever the others are.

    a - b - c - d with (0, 0, 0, 0) and (1, 1, 0, 1): the components are {a, b} and {d}.

Source: Glover 1997 (path relinking, component by component).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoddl.search.network.cost_network import CostNetwork, Floats, Ints, as_ints
from autoddl.search.result import Point


@dataclass(frozen=True, eq=False)
class Components:
    """Where two assignments differ: `variables` that do, and the `factors` that any of these touch.

    `component` and `factor_component` number the components, in the order of their first variables.
    """

    variables: Ints
    component: Ints
    factors: Ints
    factor_component: Ints

    @property
    def count(self) -> int:
        """Return how many there are."""
        return int(self.component.max(initial=-1)) + 1

    def sums(self, by_variable: Floats | Ints, by_factor: Floats | None = None) -> Floats:
        """Return the sum of what variables, and factors, have in each component."""
        found = np.bincount(self.component, by_variable[self.variables], minlength=self.count)
        if by_factor is not None:
            weights = by_factor[self.factors]
            found += np.bincount(self.factor_component, weights, minlength=self.count)
        return np.asarray(found, dtype=np.float64)


def components(network: CostNetwork, assignment: Point, other: Point) -> Components:
    """Return the components in which two assignments differ."""
    from scipy.sparse import coo_matrix  # only memory limits need it, and it takes time to load
    from scipy.sparse.csgraph import connected_components

    scopes = network.factors
    differ = as_ints(assignment) != as_ints(other)
    variables, ends = np.flatnonzero(differ), np.flatnonzero(differ[scopes.variable])
    factor, variable = scopes.factor[ends], scopes.variable[ends]
    factors, first = np.unique(factor, return_index=True)
    hub = variable[first][np.searchsorted(factors, factor)]  # each factor ties its variables to one
    tied = coo_matrix((np.ones(len(ends)), (hub, variable)), shape=(len(differ), len(differ)))
    _, label = connected_components(tied, directed=False)
    _, where, component = np.unique(label[variables], return_index=True, return_inverse=True)
    component = where.argsort().argsort()[component]
    number = np.full(len(differ), -1)
    number[variables] = component
    return Components(variables, component, factors, number[variable[first]])
