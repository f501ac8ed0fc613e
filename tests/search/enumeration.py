"""All assignments of a small problem."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.result import Assignment


def enumerate_assignments(problem: CostNetwork) -> Iterator[Assignment]:
    """Return an iterator over all assignments, in lexicographic order."""
    return map(Assignment.of, itertools.product(*map(range, problem.variables.sizes.tolist())))
