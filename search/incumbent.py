"""What a search knows so far: the best assignment, a bound for all, and how long to go on."""

from __future__ import annotations

import numpy as np

from autoddl.errors import InfeasibleError
from autoddl.search.budget import Allowance
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.result import Assignment, Point, SearchOptions, SearchResult

PROVEN = 1e-7  # relative; a plan is the best one if no other is better by more
ASCENTS = 0.8  # so much of the budget may ascents take; the integer program has the rest
PROGRESS_EVERY_S = 0.1


class Incumbent:
    """The best assignment of a network, the bound, and how long to go on.

    Raises:
        InfeasibleError: no assignment fits into the memory that is allowed.
    """

    def __init__(self, network: CostNetwork, options: SearchOptions) -> None:
        network.check_memory(options.memory_bytes)
        self.network, self.options, self.limit = network, options, options.memory_bytes
        self.stop_gap = options.stop_gap
        self.allowance = Allowance.of(options.clock, options.budget)
        self.best: Assignment | None = None
        self.best_s = np.inf
        self.bound_s = network.lower_bound_s()
        self.evaluations = 0
        self.trace: list[tuple[float, float]] = []
        self.told = 0.0

    def offer(
        self, assignment: Point, known: tuple[float, int] | None = None
    ) -> tuple[float, int, bool]:
        """Keep an assignment if it is the best so far; return its cost, bytes, whether it fits.

        The former two may be known.
        """
        self.evaluations += 1
        self.allowance.clock.count(1)
        cost_s, held = known or self.network.costs(assignment)
        fits = self.limit is None or held <= self.limit
        if fits and (cost_s < self.best_s or self.best is None):
            self.best, self.best_s = Assignment.of(assignment), cost_s
            self.trace.append((self.elapsed_s(), cost_s))
            if self.trace[-1][0] >= self.told:
                self._tell()
        return cost_s, held, fits

    def _tell(self) -> None:
        """Call `progress`, which is done now and then."""
        self.told = self.trace[-1][0] + PROGRESS_EVERY_S
        if self.options.progress is not None:
            self.options.progress(*self.trace[-1])

    def elapsed_s(self) -> float:
        """Return the seconds since the start."""
        return self.allowance.spent_s()

    def left_s(self) -> float:
        """Return the seconds that are left of the budget."""
        return self.options.budget - self.elapsed_s()

    def late(self) -> bool:
        """Tell whether the time for ascents is up."""
        return self.elapsed_s() > ASCENTS * self.options.budget

    def most_s(self) -> float:
        """Return more than what the best plan costs."""
        known = self.best_s if np.isfinite(self.best_s) else 1e6 * self.network.lower_bound_s()
        return 2 * max(known, 1e-9)

    def over(self) -> bool:
        """Tell whether the time is up, or the gap small enough."""
        return self.left_s() <= 0 or self.closed()

    def raise_to(self, bound_s: float) -> None:
        """Keep a bound if it is higher."""
        self.bound_s = max(self.bound_s, bound_s)

    def closed(self) -> bool:
        """Tell whether the bound is as near to the best cost as is asked for."""
        return self.near(self.bound_s, self.best_s)

    def near(self, bound_s: float, best_s: float) -> bool:
        """Tell whether a bound is as near to a cost as is asked for."""
        return bound_s >= (1 - max(self.stop_gap, PROVEN)) * best_s

    def result(self, solver: str) -> SearchResult:
        """Return what solvers return.

        Raises:
            InfeasibleError: no assignment of finite cost was found.
        """
        if self.best is None or not np.isfinite(self.best_s):
            raise InfeasibleError(
                f"search={solver!r} on mesh {self.network.mesh}: no assignment that is possible was "
                f"found in {self.options.budget:g} s; give more memory or time"
            )
        cost_s, held = self.network.costs(self.best)
        self.trace.append((self.elapsed_s(), cost_s))
        self._tell()
        return SearchResult(
            solver, self.best, cost_s, min(self.bound_s, cost_s), held, tuple(self.trace),
            self.evaluations,
        )  # fmt: skip
