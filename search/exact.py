"""Exact search: a lower bound that rises, choices that drop out by it, and what is left solved.

In turn the dual relaxation (dual.py) raises the bound, every choice that can't be part of a plan
better than the best one known is dropped for good, and better plans are looked for among the choices
that look best (frontier.py). It ends when all plans that are left have been looked at.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np

from autoddl.search.coordinate import Descent, cheapest, replicated
from autoddl.search.dual import Dual
from autoddl.search.frontier import cheapest as cheapest_within
from autoddl.search.problem import Floats, Ints, Problem
from autoddl.search.restrict import restricted
from autoddl.search.result import Assignment, Progress, SearchResult, Trace

ROUNDS = 5  # of dual ascent between two looks at what can be dropped
FEW = 6  # choices of a node among which better plans are looked for
BEAM = 300  # partial plans that stay while looking for a better one
WIDE = 20_000  # and while proving that there is none
SHRUNK = 0.7  # so small a part of all choices left makes a smaller problem worth its time
SLACK = 1e-9  # relative; by so much choices may seem too dear by rounding
PATIENCE = 40  # turns in which the bound does not move that end a search
MOVED = 1e-6  # relative


def search(
    problem: Problem,
    *,
    budget: float = 20.0,
    seed: int = 0,
    memory_bytes: int | None = None,
    stop_gap: float = 0.0,
    starts: Iterable[Assignment] = (),
    progress: Progress | None = None,
) -> SearchResult:
    """Return the cheapest assignment and a bound that proves it, or the best within `budget` seconds.

    It stops earlier where (cost − bound) / cost is at most `stop_gap`. The same seed gives the same
    result unless the budget ends the search.
    """
    run = _Search(problem, budget, stop_gap, progress)
    run.offer(replicated(problem))
    run.offer(cheapest(problem))
    for start in starts:
        run.offer(start)
    run.solve()
    return SearchResult(
        "exact", run.best, run.best_s, min(run.bound_s, run.best_s),
        problem.memory_bytes(run.best), run.trace.ended(run.best_s),
    )  # fmt: skip


class _Search:
    """The best assignment and the bound so far, and what choices are left."""

    def __init__(
        self, problem: Problem, budget: float, stop_gap: float, progress: Progress | None
    ) -> None:
        self.problem, self.stop_gap = problem, stop_gap
        self.trace = Trace(progress)
        self.budget = budget
        self.best: Assignment = ()
        self.best_s = np.inf
        self.bound_s = problem.lower_bound_s()
        self.log = False

    def offer(self, assignment: Sequence[int]) -> None:
        """Keep an assignment if it is the best so far."""
        cost_s = self.problem.cost_s(assignment)
        if cost_s < self.best_s:
            self.best, self.best_s = tuple(assignment), cost_s
            self.trace.improved(cost_s)

    def solve(self) -> None:
        """Raise the bound and drop choices until nothing is left to prove or the time is up."""
        domains = [np.arange(len(node.choices)) for node in self.problem.nodes]
        dual = Dual(self.problem)
        left = [np.arange(len(d)) for d in domains]
        idle = 0
        while not self._done() and idle < PATIENCE:
            before = self.bound_s
            self.bound_s = max(self.bound_s, dual.ascend(ROUNDS))
            t0 = time.perf_counter()
            excess = dual.excess()
            self._look(dual, domains, excess, FEW, BEAM)
            t1 = time.perf_counter()
            left = self._kept(excess, dual.bound(), domains)
            dual.drop(left)
            size = sum(map(len, left))
            if size < SHRUNK * sum(map(len, domains)):
                domains = [d[k] for d, k in zip(domains, left, strict=True)]
                dual = Dual(restricted(dual.problem, left), before=dual)
                left = [np.arange(len(d)) for d in domains]
            t2 = time.perf_counter()
            proven = self._look(dual, domains, dual.excess(), None, WIDE) if idle % 4 == 3 or size < 1.5 * len(left) else False
            if self.log:
                print(
                    "%.2f bound %.6f best %.6f gap %.4f%% left %.2f free %d batches %d S %d look %.2f drop %.2f"
                    % (
                        self.trace.elapsed_s(), 1e3 * self.bound_s, 1e3 * self.best_s,
                        100 * (1 - self.bound_s / self.best_s), size / len(left),
                        sum(len(k) > 1 for k in left), len(dual.batches), dual.shares.shape[1],
                        t1 - t0, t2 - t1,
                    )
                )  # fmt: skip
            if proven:
                self.bound_s = self.best_s
            moved = self.bound_s > before + MOVED * self.best_s
            idle = 0 if moved else idle + 1

    def _done(self) -> bool:
        late = self.trace.elapsed_s() > self.budget
        return late or self.best_s - self.bound_s <= self.stop_gap * self.best_s

    def _kept(self, excess: Sequence[Floats], bound_s: float, domains: Sequence[Ints]) -> list[Ints]:
        """Return which choices may be part of a better plan; those of the best one stay at least."""
        most = self.best_s * (1 + SLACK) - bound_s
        return [np.flatnonzero(e <= max(most, float(e.min()))) for e in excess]

    def _look(
        self, dual: Dual, domains: Sequence[Ints], excess: Sequence[Floats], few: int | None, width: int
    ) -> bool:
        """Look for a better plan among the best choices of every node; tell whether there is none."""
        some = []
        for domain, values, mine in zip(domains, excess, self.best, strict=True):
            chosen = np.argsort(values, kind="stable")[: few or len(values)]
            chosen = chosen[np.isfinite(values[chosen])]
            some.append(np.union1d(chosen, np.flatnonzero((domain == mine) & np.isfinite(values))))
        slack = self.best_s * (1 + SLACK) - dual.bound()
        found = cheapest_within(dual, some, slack, width)
        if found.assignment is not None:
            self.offer([int(d[c]) for d, c in zip(domains, found.assignment, strict=True)])
        return found.proven and few is None


__all__ = ["search"]
