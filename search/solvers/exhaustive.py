"""Exhaustive search: every assignment of a small problem, for holding other solvers against it."""

from __future__ import annotations

import math

import numpy as np

from autoddl.errors import InfeasibleError
from autoddl.search.incumbent import Incumbent
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.network.evaluator import one_factor
from autoddl.search.result import DEFAULTS, SearchOptions, SearchResult

LIMIT = 2_000_000


def search(
    problem: CostNetwork, options: SearchOptions = DEFAULTS, *, limit: int = LIMIT
) -> SearchResult:
    """Return the optimal assignment by trying all of them (depth first, cut where already dearer).

    `limit` bounds the number of partial assignments that are looked at, which are the result's
    `evaluations`; the best of the starts is what partial ones are cut against from the beginning.
    Budget, seed and gap have no effect here.

    Raises:
        InfeasibleError: more than `limit` partial assignments, or nothing fits into the memory.
    """
    run = Incumbent(problem, options)
    for start in options.starts:
        run.offer(start)
    run.evaluations = _visited(run, limit)
    run.bound_s = math.inf  # nothing is left out
    return run.result("exhaustive")


def _visited(run: Incumbent, limit: int) -> int:
    """Offer all assignments that may be the best; return how many partial ones were looked at.

    A factor is charged once the last of its variables has a choice.
    """
    problem, net = run.network, run.network.arrays
    last = np.maximum.reduceat(problem.factors.variable, problem.factors.begin[:-1])
    closing = [np.flatnonzero(last == v).tolist() for v in range(len(problem))]
    domains = [problem.variables.of(v) for v in range(len(problem))]
    least = [int(domain.memory_bytes.min()) for domain in domains]
    rest = [sum(least[v + 1 :]) for v in range(len(least))]
    most, point, visited = run.limit, np.zeros(len(problem), dtype=np.int64), 0

    def choices(variable: int, seconds: float, held: int) -> list[tuple[int, int, float, int]]:
        count = len(domains[variable].choices)
        return [(variable, choice, seconds, held) for choice in reversed(range(count))]

    pending = choices(0, 0.0, 0)  # a stack: problems are too deep for recursion
    while pending:
        variable, choice, seconds, held = pending.pop()
        visited += 1
        if visited > limit:
            raise InfeasibleError(
                f"exhaustive search: more than {limit:,} partial assignments of the "
                f"{len(point)} nodes on mesh {problem.mesh}; use search='coordinate'"
            )
        point[variable] = choice
        seconds += float(domains[variable].compute_s[choice])
        seconds += sum(one_factor(net, factor, point) for factor in closing[variable])
        held += int(domains[variable].memory_bytes[choice])
        if seconds >= run.best_s or (most is not None and held + rest[variable] > most):
            continue
        if variable + 1 == len(point):
            run.offer(point, (seconds, held))
        else:
            pending += choices(variable + 1, seconds, held)
    return visited
