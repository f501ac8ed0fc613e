"""Coordinate descent with restarts (AutoDDL §4.4), on four scales.

A coordinate is a move: all cells of one kind together, one cell, one node, or a forest of nodes at
once; in turn each takes its best alternative with everything else fixed. At a fixed point the search
starts again: from the given starts and what a lower bound suggests (suggest.py), the best first, then
from the best point with one cell changed at random. Each connected part of what a new fixed point has
in another way than the best one is a coordinate, too.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from autoddl.search.descent import (
    REFINE_WITHIN,
    Descent,
    cheapest,
    least_memory,
    replicated,
)
from autoddl.search.prepare import prepare
from autoddl.search.problem import Problem
from autoddl.search.result import Assignment, Progress, SearchResult

RESTARTS = 256  # at most
# Restarts in a row without improvement that end a search: one for so many nodes, within these limits.
STAGNATION, STAGNATION_MOST, NODES_EACH = 24, 64, 32
SUGGESTING = 0.5  # so much of the budget may it take to suggest starts


def search(
    problem: Problem,
    *,
    budget: float = 20.0,
    seed: int = 0,
    restarts: int | None = None,
    memory_bytes: int | None = None,
    stop_gap: float = 0.0,
    starts: Iterable[Assignment] = (),
    progress: Progress | None = None,
    suggests: bool = True,
    least_s: float = 0.0,
) -> SearchResult:
    """Return the best assignment of `restarts` descents, or of those that fit into `budget` seconds.

    By default it goes on until restarts no longer help. The result is never worse than any of
    `starts`, nor than no parallelism at all. A lower bound `suggests` other starts, if it may;
    `least_s` is one that is known. `memory_bytes` limits the memory per device.
    `progress(elapsed_s, best_cost_s)` is called after every descent. The same seed gives the same
    result unless the budget ends the search, or a part of it (SUGGESTING) the suggestions.

    Raises:
        InfeasibleError: no assignment fits into `memory_bytes`.
    """
    problem.check_memory(memory_bytes)
    prepare()
    begin = time.perf_counter()
    descent = Descent(problem, memory_bytes=memory_bytes, deadline=begin + budget)
    descent.least_s = max(descent.least_s, least_s)
    rng = np.random.default_rng(seed)
    first: list[Sequence[int]] = [*starts] or [cheapest(problem)]
    first += [replicated(problem), *([] if memory_bytes is None else [least_memory(problem)])]
    if suggests:
        first += descent.suggested(begin + SUGGESTING * budget)
    first.sort(key=descent.key)
    best = ideal = list(first[0])
    first = sorted(map(descent.without_limit().swept, first), key=descent.key)
    trace = [(time.perf_counter() - begin, problem.cost_s(best))]
    most = len(first) + RESTARTS if restarts is None else max(restarts, len(first))
    patience = min(STAGNATION_MOST, max(STAGNATION, len(problem.nodes) // NODES_EACH))
    idle = 0
    for number in range(most):
        stagnant = restarts is None and idle == patience
        if descent.late() or stagnant or problem.near(problem.cost_s(best), stop_gap):
            break
        if number < len(first):
            found, ideal = _descended(descent, first[number], best, ideal, rng)
        else:
            found = _restarted(descent, best, ideal, number, rng)
        found = descent.crossed(found, best, rng)
        idle += number >= len(first)
        if descent.key(found) < descent.key(best):
            best, idle = found, 0
        trace.append((time.perf_counter() - begin, problem.cost_s(best)))
        if progress is not None:
            progress(*trace[-1])
    return replace(
        problem.result("coordinate", best),
        trace=tuple(trace),
        evaluations=len(first) + descent.evaluations,
    )


def _descended(
    descent: Descent,
    start: Sequence[int],
    best: list[int],
    ideal: list[int],
    rng: np.random.Generator,
) -> tuple[list[int], list[int]]:
    """Return the fixed point below a start, and the best one so far for any amount of memory.

    Where memory binds the way leads through the latter: a start that is made to fit at once loses
    what made it good.
    """
    loose = descent.without_limit()
    found = loose.run(start, rng, ideal)
    ideal = found if loose.key(found) < loose.key(ideal) else ideal
    if descent.key(found)[0] > 0 and not loose.hopeless(found, best, REFINE_WITHIN):
        found = descent.run(descent.grow(found, rng), rng, best)
    return found, ideal


def _restarted(
    descent: Descent, best: list[int], ideal: list[int], number: int, rng: np.random.Generator
) -> list[int]:
    """Return another fixed point: near the best one, or in turn from the ideal one made to fit."""
    if number % 2 and descent.key(ideal)[0] > 0:
        return descent.settle(descent.grow(ideal, rng), rng)
    start, near = descent.disturbed(best, rng)
    return descent.settle(start, rng, near)
