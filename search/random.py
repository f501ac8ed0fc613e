"""Random assignments: as a solver (AutoDDL's figure 7), and for tests that any plan runs right."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from autoddl.search.descent import least_memory
from autoddl.search.moves import Move, price
from autoddl.search.problem import Problem
from autoddl.search.result import Assignment, Progress, SearchResult, Trace

BATCH = 32  # assignments that are priced together


def random_assignment(problem: Problem, seed: int) -> Assignment:
    """Return an assignment with a uniformly random choice for every node."""
    rng = np.random.default_rng(seed)
    return tuple(int(rng.integers(len(node.choices))) for node in problem.nodes)


def search(
    problem: Problem,
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
    best = min(given, key=lambda point: _key(problem, point, memory_bytes))
    key = _key(problem, best, memory_bytes)
    trace.improved(key[1])
    drawn, rng = 0, np.random.default_rng((seed, 1))
    sizes = [len(node.choices) for node in problem.nodes]
    while (
        trace.elapsed_s() < budget
        and (samples is None or drawn < samples)
        and not problem.near(key[1], stop_gap)
    ):
        count = BATCH if samples is None else min(BATCH, samples - drawn)
        drawn += count
        points = rng.integers(0, sizes, size=(count, len(sizes)))
        columns = tuple((node, points[:, node]) for node in range(len(sizes)))
        seconds, memory = price(problem, best, Move(columns))
        excess = np.maximum(0, memory - memory_bytes) if memory_bytes is not None else 0 * memory
        first = int(np.lexsort((seconds, excess))[0])
        found = int(excess[first]), float(seconds[first])
        if found < key:
            key, best = found, tuple(points[first].tolist())
            trace.improved(key[1])
    result = problem.result("random", best)
    return replace(result, trace=trace.ended(result.cost_s), evaluations=len(given) + drawn)


def _key(problem: Problem, point: Assignment, memory_bytes: int | None) -> tuple[int, float]:
    """Return what is minimised: bytes over the limit first, then seconds."""
    over = 0 if memory_bytes is None else max(0, problem.memory_bytes(point) - memory_bytes)
    return over, problem.cost_s(point)
