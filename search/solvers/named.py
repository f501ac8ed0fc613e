"""All solvers by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from autoddl.search.exact import primal_dual as exact
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.result import Assignment, Progress, SearchResult
from autoddl.search.solvers import coordinate, exhaustive, ilp, metropolis
from autoddl.search.solvers import random_sampling as random


class Solver(Protocol):
    """What every solver does: find a good assignment within `budget` seconds.

    `memory_bytes` limits `CostNetwork.memory_bytes`; `starts` are assignments to begin with, and the
    result is not worse than any of them; `progress` is called with (seconds since start, best cost
    so far in seconds). The same seed gives the same result unless the budget ends the search; one
    whose gap is at most `stop_gap` ends it, too.

    Raises:
        InfeasibleError: nothing fits into `memory_bytes`, or the problem is too large for the solver.
    """

    def __call__(
        self,
        problem: CostNetwork,
        *,
        budget: float,
        seed: int = 0,
        memory_bytes: int | None = None,
        stop_gap: float = 0.0,
        starts: Iterable[Assignment] = (),
        progress: Progress | None = None,
    ) -> SearchResult: ...


FAST_GAP = 0.01


def fast(problem: CostNetwork, *, stop_gap: float = 0.0, **options: Any) -> SearchResult:
    """Search as "exact" does, but only until the gap is 1 %; see Solver."""
    found = exact.search(problem, stop_gap=max(FAST_GAP, stop_gap), **options)
    return replace(found, solver="fast")


LEARNING = frozenset({"exact", "fast"})
"""Solvers that go on from what an earlier search of the same network has learnt (`after`)."""

SOLVERS: Mapping[str, Solver] = {
    "coordinate": coordinate.search,
    "exact": exact.search,
    "exhaustive": exhaustive.search,
    "fast": fast,
    "ilp": ilp.search,
    "metropolis": metropolis.search,
    "random": random.search,
}
