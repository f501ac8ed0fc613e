"""All solvers by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from autoddl.search import coordinate, exact, exhaustive, ilp, metropolis, random
from autoddl.search.problem import Problem
from autoddl.search.result import Assignment, Progress, SearchResult


class Solver(Protocol):
    """What every solver does: find a good assignment within `budget` seconds.

    `memory_bytes` limits `Problem.memory_bytes`; `starts` are assignments to begin with, and the
    result is not worse than any of them; `progress` is called with (seconds since start, best cost
    so far in seconds). The same seed gives the same result unless the budget ends the search.

    Raises:
        InfeasibleError: nothing fits into `memory_bytes`, or the problem is too large for the solver.
    """

    def __call__(
        self,
        problem: Problem,
        *,
        budget: float,
        seed: int = 0,
        memory_bytes: int | None = None,
        starts: Iterable[Assignment] = (),
        progress: Progress | None = None,
    ) -> SearchResult: ...


SOLVERS: Mapping[str, Solver] = {
    "coordinate": coordinate.search,
    "exact": exact.search,
    "exhaustive": exhaustive.search,
    "ilp": ilp.search,
    "metropolis": metropolis.search,
    "random": random.search,
}
