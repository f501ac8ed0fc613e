"""AutoDDL's coordinate descent: layer after layer takes what is cheapest, with restarts.

A coordinate is a layer with what follows it (cells.py), or one variable. At a fixed point the search
begins anew from another initial guess: the given ones, then the best point with one layer changed at
random. It proves nothing: the bound that is returned is that of compute alone.

    cost (A, B): (0, 0) 5, (1, 0) 4, (1, 1) 2   from (0, 0): A moves, 4; then B moves, 2; then none.

Source: AutoDDL §4.4.
"""

from __future__ import annotations

import numpy as np

from autoddl.search.heuristics.descent import Descent, first_points
from autoddl.search.incumbent import Incumbent
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.result import DEFAULTS, SearchOptions, SearchResult

RESTARTS = 256  # at most
STAGNATION = 24  # restarts in a row without improvement that end a search


def search(
    problem: CostNetwork, options: SearchOptions = DEFAULTS, *, restarts: int | None = None
) -> SearchResult:
    """Return the best assignment of `restarts` descents, or of those that fit into the budget.

    By default it goes on until restarts no longer help. The result is never worse than no parallelism
    at all.

    Raises:
        InfeasibleError: no assignment fits into the memory.
    """
    run = Incumbent(problem, options)
    descent = Descent(problem, memory_bytes=run.limit, allowance=run.allowance)
    rng = np.random.default_rng(options.seed)
    given = first_points(problem, options)
    for start in given:
        run.offer(start)
    most, idle = len(given) + RESTARTS if restarts is None else max(restarts, len(given)), 0
    for number in range(most):
        if run.over() or run.best is None or (restarts is None and idle == STAGNATION):
            break
        again, before_s = number >= len(given), run.best_s
        run.offer(descent.run(descent.disturbed(run.best, rng) if again else given[number]))
        idle = 0 if run.best_s < before_s else idle + again
    run.evaluations = len(given) + descent.evaluations
    return run.result("coordinate")
