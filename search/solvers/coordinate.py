"""AutoDDL's coordinate descent: layer after layer takes what is cheapest, with restarts.

A coordinate is a layer with what follows it (cells.py), all equal layers together first, or one
variable. At a fixed point the search begins anew from another initial guess: the given ones, then the
best point with one layer, or all equal ones, changed at random. It proves nothing: the bound that
is returned is that of compute alone.

    cost (A, B): (0, 0) 5, (1, 0) 4, (1, 1) 2   from (0, 0): A moves, 4; then B moves, 2; then none.

Source: AutoDDL §4.4.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from autoddl.search.heuristics.descent import Descent, cheapest, least_memory, replicated
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.result import Assignment, Point, Progress, SearchResult, Trace
from autoddl.search.warm_up import prepare

RESTARTS = 256  # at most
STAGNATION = 24  # restarts in a row without improvement that end a search


def search(
    problem: CostNetwork,
    *,
    budget: float = 20.0,
    seed: int = 0,
    restarts: int | None = None,
    memory_bytes: int | None = None,
    stop_gap: float = 0.0,
    starts: Iterable[Assignment] = (),
    progress: Progress | None = None,
) -> SearchResult:
    """Return the best assignment of `restarts` descents, or of those that fit into `budget` seconds.

    By default it goes on until restarts no longer help. The result is never worse than any of
    `starts`, nor than no parallelism at all. `memory_bytes` limits the memory per device.
    `progress(elapsed_s, best_cost_s)` is called after improvements. The same seed gives the same
    result unless the budget ends the search.

    Raises:
        InfeasibleError: no assignment fits into `memory_bytes`.
    """
    problem.check_memory(memory_bytes)
    prepare()
    trace = Trace(progress)
    descent = Descent(problem, memory_bytes=memory_bytes, deadline=trace.begin + budget)
    rng = np.random.default_rng(seed)
    given = [*starts] or [cheapest(problem)]
    given += [replicated(problem), *([] if memory_bytes is None else [least_memory(problem)])]
    best: Point = min(given, key=descent.key)
    trace.improved(problem.cost_s(best))
    most, idle = len(given) + RESTARTS if restarts is None else max(restarts, len(given)), 0
    for number in range(most):
        stagnant = restarts is None and idle == STAGNATION
        if descent.late() or stagnant or problem.near(problem.cost_s(best), stop_gap):
            break
        start = given[number] if number < len(given) else descent.disturbed(best, rng)
        found = descent.run(start)
        idle += number >= len(given)
        if descent.key(found) < descent.key(best):
            best, idle = found, 0
            trace.improved(problem.cost_s(best))
    result = problem.result("coordinate", best)
    evaluations = len(given) + descent.evaluations
    return replace(result, trace=trace.ended(result.cost_s), evaluations=evaluations)
