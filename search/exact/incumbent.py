"""What an exact search knows so far: the best assignment, a bound for all, and how long to go on."""

from __future__ import annotations

import numpy as np

from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.relaxation.dual import Dual
from autoddl.search.result import Assignment, Point, Progress, Trace

# Half and twice of these give the same plans and proofs of the frozen suite's 24 cases, in the same time.
PROVEN = 1e-7  # relative; a plan is the best one if no other is better by more
ASCENTS = 0.8  # so much of the budget may ascents take; the integer program has the rest
SLACK = 1e-9  # relative; by so much choices may seem too dear by rounding


class Incumbent:
    """The best assignment of a network, the bound, and how long to go on."""

    def __init__(
        self, network: CostNetwork, budget: float, stop_gap: float,
        memory_bytes: int | None, progress: Progress | None,
    ) -> None:  # fmt: skip
        self.network, self.budget, self.stop_gap = network, budget, stop_gap
        self.limit = memory_bytes
        self.trace = Trace(progress)
        self.best: Assignment | None = None
        self.best_s = np.inf
        self.bound_s = network.lower_bound_s()
        self.evaluations = 0

    def offer(
        self, assignment: Point, known: tuple[float, int] | None = None
    ) -> tuple[float, int, bool]:
        """Keep an assignment if it is the best so far; return its cost, bytes, whether it fits.

        The former two may be known.
        """
        self.evaluations += 1
        cost_s, held = known or self.network.costs(assignment)
        fits = self.limit is None or held <= self.limit
        if fits and (cost_s < self.best_s or self.best is None):
            self.best, self.best_s = Assignment.of(assignment), cost_s
            self.trace.improved(cost_s)
        return cost_s, held, fits

    def most_s(self) -> float:
        """Return more than what the best plan costs."""
        known = self.best_s if np.isfinite(self.best_s) else 1e6 * self.network.lower_bound_s()
        return 2 * max(known, 1e-9)

    def slack_s(self, dual: Dual) -> float:
        """Return by how much a better plan may be above the bound of a dual, both with memory's price."""
        best_s = min(self.best_s * (1 + SLACK), self.most_s())
        return best_s + dual.byte_s * (self.limit or 0) - dual.bound()

    def late(self) -> bool:
        """Tell whether the time for ascents is up."""
        return self.trace.elapsed_s() > ASCENTS * self.budget

    def raise_to(self, bound_s: float) -> None:
        """Keep a bound if it is higher."""
        self.bound_s = max(self.bound_s, bound_s)

    def closed(self) -> bool:
        """Tell whether the bound is as near to the best cost as is asked for."""
        return self.near(self.bound_s, self.best_s)

    def near(self, bound_s: float, best_s: float) -> bool:
        """Tell whether a bound is as near to a cost as is asked for."""
        return bound_s >= (1 - max(self.stop_gap, PROVEN)) * best_s
