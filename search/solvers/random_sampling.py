"""Random assignments: as a solver (AutoDDL's figure 7), and for tests that any plan runs right."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from autoddl.search.heuristics.descent import least_memory
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.result import Assignment, Point, Progress, SearchResult, Trace


def random_assignment(problem: CostNetwork, seed: int) -> Assignment:
    """Return an assignment with a uniformly random choice for every node."""
    rng = np.random.default_rng(seed)
    return Assignment(np.array([rng.integers(n) for n in problem.variables.sizes.tolist()]))


def search(
    problem: CostNetwork,
    *,
    budget: float = 20.0,
    seed: int = 0,
    memory_bytes: int | None = None,
    stop_gap: float = 0.0,
    starts: Iterable[Assignment] = (),
    progress: Progress | None = None,
    samples: int | None = None,
) -> SearchResult:
    """Return the best of `samples` uniformly random assignments, or of those within `budget` seconds.

    The result is never worse than any of `starts`. Under `memory_bytes` the assignment with the
    least memory is looked at as well, since random ones rarely fit. The same seed gives the same
    result unless the budget ends the search.

    Raises:
        InfeasibleError: no assignment fits into `memory_bytes`.
    """
    problem.check_memory(memory_bytes)
    trace = Trace(progress)
    given = [random_assignment(problem, seed), *starts]
    if memory_bytes is not None:
        given.append(least_memory(problem))
    best: Point = min(given, key=lambda point: _key(problem, point, memory_bytes))
    key = _key(problem, best, memory_bytes)
    trace.improved(key[1])
    drawn, rng = 0, np.random.default_rng((seed, 1))
    sizes = problem.variables.sizes
    while (
        trace.elapsed_s() < budget
        and (samples is None or drawn < samples)
        and not problem.near(key[1], stop_gap)
    ):
        drawn += 1
        point = rng.integers(0, sizes)
        found = _key(problem, point, memory_bytes)
        if found < key:
            key, best = found, point
            trace.improved(key[1])
    result = problem.result("random", best)
    return replace(result, trace=trace.ended(result.cost_s), evaluations=len(given) + drawn)


def _key(problem: CostNetwork, point: Point, memory_bytes: int | None) -> tuple[int, float]:
    """Return what is minimised: bytes over the limit first, then seconds."""
    seconds, held = problem.costs(point)
    return 0 if memory_bytes is None else max(0, held - memory_bytes), seconds
