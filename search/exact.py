"""Exact search: a lower bound that rises, choices that drop out by it, and elimination of the rest.

In turn the dual relaxation (dual.py) raises the bound, every choice that can't be part of a plan
better than the best one known is dropped for good, and better plans are looked for among the choices
that look best (eliminate.py). It ends when variable elimination can solve what is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from autoddl.search.coordinate import Descent, cheapest, replicated
from autoddl.search.dual import Dual
from autoddl.search.eliminate import TooWide, minimum
from autoddl.search.problem import Floats, Ints, Problem
from autoddl.search.restrict import restricted
from autoddl.search.result import Assignment, SearchResult

ROUNDS = 5  # of dual ascent between two looks at what can be dropped
FEW = (4, 3, 2)  # choices of a node among which better plans are looked for, tried in turn
FEW_ENTRIES = 1 << 17  # of a product then
SLACK = 1e-9  # relative; by so much choices may seem too dear by rounding
PATIENCE = 40  # turns in which the bound does not move that end a search
MOVED = 1e-6  # relative

Progress = Callable[[float, float], None]


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
    run.polish(np.random.default_rng(seed))
    run.solve()
    return SearchResult(
        "exact", run.best, run.best_s, min(run.bound_s, run.best_s),
        problem.memory_bytes(run.best), tuple(run.trace),
    )  # fmt: skip


class _Search:
    """The best assignment and the bound so far, and what choices are left."""

    def __init__(
        self, problem: Problem, budget: float, stop_gap: float, progress: Progress | None
    ) -> None:
        self.problem, self.stop_gap, self.progress = problem, stop_gap, progress
        self.begin = time.perf_counter()
        self.deadline = self.begin + budget
        self.best: Assignment = ()
        self.best_s = np.inf
        self.bound_s = problem.lower_bound_s()
        self.trace: list[tuple[float, float]] = []

    def offer(self, assignment: Sequence[int]) -> None:
        """Keep an assignment if it is the best so far."""
        cost_s = self.problem.cost_s(assignment)
        if cost_s < self.best_s:
            self.best, self.best_s = tuple(assignment), cost_s
            self.trace.append((time.perf_counter() - self.begin, cost_s))
            if self.progress is not None:
                self.progress(*self.trace[-1])

    def polish(self, rng: np.random.Generator) -> None:
        """Improve the best assignment node by node and by random forests."""
        descent = Descent(self.problem, deadline=self.deadline)
        self.offer(descent.settle(list(self.best), rng))

    def solve(self) -> None:
        """Raise the bound and drop choices until nothing is left to prove or the time is up."""
        domains = [np.arange(len(node.choices)) for node in self.problem.nodes]
        smaller, dual = self.problem, Dual(self.problem)
        idle = 0
        while not self._done() and idle < PATIENCE:
            before = self.bound_s
            bound_s = dual.ascend(ROUNDS)
            self.bound_s = max(self.bound_s, bound_s)
            excess = dual.excess()
            self._look(smaller, domains, excess)
            kept = self._kept(excess, bound_s)
            if sum(map(len, kept)) < sum(map(len, domains)):
                domains = [d[k] for d, k in zip(domains, kept, strict=True)]
                smaller = restricted(smaller, kept)
                dual = Dual(smaller, before=dual)
                self._finish(smaller, domains)
            moved = self.bound_s > before + MOVED * self.best_s
            idle = 0 if moved else idle + 1

    def _done(self) -> bool:
        late = time.perf_counter() > self.deadline
        return late or self.best_s - self.bound_s <= self.stop_gap * self.best_s

    def _kept(self, excess: Sequence[Floats], bound_s: float) -> list[Ints]:
        """Return which choices may be part of a better plan; those of the best one stay at least."""
        most = self.best_s * (1 + SLACK) - bound_s
        return [np.flatnonzero(e <= max(most, float(e.min()))) for e in excess]

    def _look(self, smaller: Problem, domains: Sequence[Ints], excess: Sequence[Floats]) -> None:
        """Look for a better plan among the few best choices of every node and those of the best."""
        for few in FEW:
            some = []
            for domain, values, mine in zip(domains, excess, self.best, strict=True):
                chosen = np.argsort(values, kind="stable")[:few]
                some.append(np.union1d(chosen, np.flatnonzero(domain == mine)))
            try:
                found = minimum(smaller, some, most_entries=FEW_ENTRIES)
            except TooWide:
                continue
            self.offer([int(d[c]) for d, c in zip(domains, found, strict=True)])
            return

    def _finish(self, smaller: Problem, domains: Sequence[Ints]) -> None:
        """Solve what is left if it is narrow enough; that is the optimum."""
        try:
            found = minimum(smaller, [np.arange(len(node.choices)) for node in smaller.nodes])
        except TooWide:
            return
        self.offer([int(d[c]) for d, c in zip(domains, found, strict=True)])
        self.bound_s = self.best_s


__all__ = ["search"]
