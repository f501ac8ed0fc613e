"""Exact search: a lower bound that rises, choices that drop out by it, and what is left solved.

In turn the dual relaxation (dual.py) raises the bound, suggests a plan, and every choice that can't
be part of a better one than the best known is dropped for good. It ends when the bound reaches the
best plan, or when all plans that are left have been looked at (frontier.py).

Of equal layers few are looked at: two of them give the plan; then the bound is raised for the whole
problem with the messages of all layers in the middle equal; what is left after that is little.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from copy import copy

import numpy as np

from autoddl.search.coordinate import cheapest, replicated
from autoddl.search.dual import Dual, Fold
from autoddl.search.frontier import cheapest as cheapest_within
from autoddl.search.problem import Ints, Problem
from autoddl.search.restrict import restricted
from autoddl.search.result import Assignment, Progress, SearchResult, Trace
from autoddl.search.shorten import Shortened, shorten

ROUNDS = 5  # of dual ascent between two looks at what can be dropped
NEAR = 0.05  # relative; above that gap nothing is dropped, it would be little
SHRUNK = 0.75  # so small a part of the choices left makes a smaller problem worth its time
SLACK = 1e-9  # relative; by so much choices may seem too dear by rounding
WIDE = 20_000  # partial plans that stay while looking at all that are left
PATIENCE = 8  # turns in which the bound does not move that end an ascent
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
    del seed  # nothing is random
    run = _Search(problem, budget, stop_gap, progress)
    for start in (replicated(problem), cheapest(problem), *starts):
        run.offer(start)
    run.solve()
    return SearchResult(
        "exact", run.best, run.best_s, min(run.bound_s, run.best_s),
        problem.memory_bytes(run.best), run.trace.ended(run.best_s), run.evaluations,
    )  # fmt: skip


class _Search:
    """The best assignment and the bound so far."""

    def __init__(
        self, problem: Problem, budget: float, stop_gap: float, progress: Progress | None
    ) -> None:
        self.problem, self.budget, self.stop_gap = problem, budget, stop_gap
        self.trace = Trace(progress)
        self.best: Assignment = ()
        self.best_s = np.inf
        self.bound_s = problem.lower_bound_s()
        self.evaluations = 0

    def offer(self, assignment: Sequence[int]) -> float:
        """Keep an assignment if it is the best so far; return its cost."""
        self.evaluations += 1
        cost_s = self.problem.cost_s(assignment)
        if cost_s < self.best_s:
            self.best, self.best_s = tuple(assignment), cost_s
            self.trace.improved(cost_s)
        return cost_s

    def late(self) -> bool:
        """Tell whether the time is up."""
        return self.trace.elapsed_s() > self.budget

    def solve(self) -> None:
        """Go from few layers to all of them."""
        some = shorten(self.problem, 3)
        if some.ends is None or some.problem is self.problem:
            self._whole(Dual(self.problem, most_s=2 * self.best_s), _all(self.problem))
            return
        copies, edges = np.bincount(some.place), Counter(some.ends)
        early = self._ascend(
            Dual(some.problem, most_s=2 * self.best_s, fold=Fold(copies, edges, tied=True)), some
        ).early
        same = [(i,) * (len(e.readers) + 1) for i, e in enumerate(some.problem.edges)]
        fold = Fold(copies, edges, tied=False)
        middle = self._ascend(
            Dual(some.problem, most_s=2 * self.best_s, fold=fold, before=early, ends=same), some
        )
        self.bound_s = middle.bound_s
        if self.late() or self.gap() <= self.stop_gap:
            return
        domains = [middle.domains[i][middle.left[i]] for i in some.place]
        whole = restricted(self.problem, domains)
        self._whole(Dual(whole, most_s=2 * self.best_s, before=early, ends=some.ends), domains)

    def _ascend(self, dual: Dual, some: Shortened) -> _Ascent:
        """Ascend with a problem that lacks layers."""
        found = _Ascent(dual, _all(some.problem), lambda a: self.offer(some.extended(a)), self)
        found.run(self.best_s)
        return found

    def gap(self) -> float:
        """Return how far the bound is below the best cost, relative."""
        return 1.0 - self.bound_s / self.best_s

    def _whole(self, dual: Dual, domains: Sequence[Ints]) -> None:
        last = _Ascent(dual, domains, self.offer, self)
        last.run(self.best_s)
        self.bound_s = max(self.bound_s, last.bound_s)


class _Ascent:
    """Raise the bound of one problem and drop choices until it is solved or nothing moves.

    `domains` has for each node of the dual's problem which choices of the original one it has left;
    `offer` takes an assignment of that and returns its cost.
    """

    def __init__(
        self,
        dual: Dual,
        domains: Sequence[Ints],
        offer: Callable[[Sequence[int]], float],
        search: _Search,
    ) -> None:
        self.dual, self.domains, self.offer, self.search = dual, list(domains), offer, search
        self.left = _all(dual.problem)
        self.early = dual  # the last one that has all choices
        self.bound_s = -np.inf
        self.log = LOG

    def run(self, best_s: float) -> None:
        """Ascend; `best_s` is what the best plan that is known costs."""
        idle, slack = 0, NEAR * best_s
        proven = False
        while not (proven or self.search.late() or idle == PATIENCE):
            before, self.bound_s = self.bound_s, max(self.bound_s, self.dual.ascend(ROUNDS))
            best_s = min(best_s, self._offer(self.dual.rounded()))
            if self._closed(best_s):
                break
            now = best_s * (1 + SLACK) - self.dual.bound()
            if now < SHRUNK * slack or (idle == 2 and now < slack):
                slack = now
                self._drop(slack)
            idle = idle + 1 if self.bound_s <= before + MOVED * best_s else 0
            if self.log:
                print(
                    "%.2f bound %.6f best %.6f gap %.5f%% left %.2f batches %d S %d"
                    % (
                        self.search.trace.elapsed_s(), 1e3 * self.bound_s, 1e3 * best_s,
                        100 * (1 - self.bound_s / best_s),
                        sum(map(len, self.left)) / len(self.left), len(self.dual.batches),
                        self.dual.messages.shape[1],
                    )
                )  # fmt: skip
            if idle >= 2 and self.dual.fold is None:
                proven, best_s = self._look(best_s)
        if proven:
            self.bound_s = best_s

    def _closed(self, best_s: float) -> bool:
        most = max(self.search.stop_gap, SLACK)
        return best_s - self.bound_s <= most * best_s

    def _offer(self, assignment: Sequence[int]) -> float:
        return self.offer([int(d[c]) for d, c in zip(self.domains, assignment, strict=True)])

    def _drop(self, slack_s: float) -> None:
        """Drop the choices that cost more than the slack at least."""
        kept = [np.flatnonzero(e <= max(slack_s, float(e.min()))) for e in self.dual.excess()]
        if self.early is self.dual:
            self.early = copy(self.dual)  # drop() takes choices away, messages stay
            self.early.messages = self.dual.messages.copy()
        some = self.dual.drop(kept)
        self.left = kept
        if sum(map(len, some)) > SHRUNK * sum(map(len, self.domains)):
            return
        self.domains = [d[k] for d, k in zip(self.domains, some, strict=True)]
        old = self.dual
        self.dual = Dual(
            restricted(old.problem, some), most_s=old.most_s, fold=old.fold, before=old
        )
        self.left = [np.searchsorted(s, k) for s, k in zip(some, kept, strict=True)]
        self.dual.drop(self.left)

    def _look(self, best_s: float) -> tuple[bool, float]:
        """Look at all plans that are left; tell whether none can be better than the best."""
        slack = best_s * (1 + SLACK) - self.dual.bound()
        found = cheapest_within(self.dual, self.left, slack, WIDE)
        if found.assignment is not None:
            best_s = min(best_s, self._offer(found.assignment))
        return found.proven, best_s


def _all(problem: Problem) -> list[Ints]:
    return [np.arange(len(node.choices)) for node in problem.nodes]


LOG = False

__all__ = ["search"]
