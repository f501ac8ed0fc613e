"""Exact search: a lower bound that rises, choices that drop out by it, and what is left solved.

Of equal layers three are looked at first (ascent.py). That gives a plan, and messages that bound all
plans of the whole problem when every layer in the middle has those of the second (a fold): with it
most choices drop out, and all layers are looked at with the few that are left. What is not proven in
the end is the start of a coordinate descent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from autoddl.errors import InfeasibleError
from autoddl.search.ascent import (
    PATIENCE,
    PROVEN,
    SLACK,
    SOON,
    Ascent,
    Incumbent,
    everything,
    kept,
)
from autoddl.search.coordinate import cheapest, least_memory, replicated
from autoddl.search.coordinate import search as descended
from autoddl.search.dual import Dual
from autoddl.search.problem import Problem
from autoddl.search.restrict import restricted
from autoddl.search.result import Assignment, Progress, SearchResult
from autoddl.search.shorten import Shortened, shorten
from autoddl.search.terms import Fold

FOLDED = 30  # rounds of the fold
STEADY = 4e-5  # relative; where few layers' bound moves less in a turn its messages serve for all
FIRST = 0.5  # so much of the time for ascents may go to few layers


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

    It stops earlier where (cost − bound) / cost is at most `stop_gap`. Nothing in it is random, any
    `seed` gives the same result unless the budget ends the search.

    Raises:
        InfeasibleError: no assignment fits into `memory_bytes`.
    """
    del seed
    problem.check_memory(memory_bytes)
    run = Incumbent(problem, budget, stop_gap, memory_bytes, progress)
    given = tuple(starts)
    for start in (least_memory(problem), replicated(problem), cheapest(problem), *given):
        run.offer(start)
    if all(len(node.choices) == 1 for node in problem.nodes):
        run.bound_s = run.best_s
    else:
        _Stages(run).solve()
        _descend(run, given)
    if not np.isfinite(run.best_s):
        raise InfeasibleError(
            f"search='exact' on mesh {problem.mesh}: no assignment that is possible was found in "
            f"{budget:g} s; give more memory or time"
        )
    proven = run.best_s - run.bound_s <= PROVEN * run.best_s
    return SearchResult(
        "exact", run.best, run.best_s, run.best_s if proven else run.bound_s,
        problem.memory_bytes(run.best), run.trace.ended(run.best_s), run.evaluations,
    )  # fmt: skip


class _Stages:
    """From few layers to all of them."""

    def __init__(self, run: Incumbent) -> None:
        self.run, self.problem = run, run.problem

    def solve(self) -> None:
        """Raise the bound and look for plans until the best one is proven, or nothing moves."""
        some = shorten(self.problem, 3)
        if some.problem is self.problem:
            dual = Dual(self.problem, most_s=self.run.most_s())
            self._ascend(Ascent(dual, everything(self.problem), self.run.offer, self.run))
            return
        found = self._few(some)
        few, wide = found.early, found.dual.wide
        starts, domains = [few], everything(self.problem)
        if some.folds:
            folded = self._folded(some, few, wide=wide)
            left = kept(folded, self._slack(folded))
            starts, domains = [folded, few], [left[i] for i in some.place]
        byte_s = few.byte_s
        for before in starts:
            again = before is not starts[0]  # for what no figure shows it is not worth the time
            if self.run.late() or self.run.closed() or (again and self.run.fine()):
                return
            dual = Dual(
                restricted(self.problem, domains), byte_s=byte_s, most_s=self.run.most_s(),
                before=before, ends=some.ends, wide=wide,
            )  # fmt: skip
            patience = PATIENCE if before is few else SOON
            ascent = Ascent(dual, domains, self.run.offer, self.run, patience=patience)
            self._ascend(ascent)
            domains = ascent.choices()
            byte_s, wide = ascent.dual.byte_s, ascent.dual.wide

    def _few(self, some: Shortened) -> Ascent:
        """Solve the problem that lacks layers."""

        def offer(assignment: Sequence[int]) -> tuple[float, int, bool]:
            _, _, fits = self.run.offer(some.extended(assignment))
            return some.problem.cost_s(assignment), some.problem.memory_bytes(assignment), fits

        dual = Dual(some.problem, most_s=self.run.most_s())
        found = Ascent(
            dual, everything(some.problem), offer, self.run,
            limited=False, steady=STEADY, share=FIRST,
        )  # fmt: skip
        found.run()
        return found

    def _folded(self, some: Shortened, few: Dual, *, wide: bool) -> Dual:
        """Bound all layers by those of a fold, which begins with the messages of few layers."""
        fold = Fold(np.bincount(some.place), Counter(some.edges()))
        dual = Dual(
            some.problem, byte_s=few.byte_s, most_s=self.run.most_s(),
            fold=fold, before=few, wide=wide,
        )  # fmt: skip
        bound_s = dual.ascend(FOLDED)
        self.run.offer(some.extended(dual.rounded()))
        self.run.raise_to(bound_s - dual.byte_s * (self.run.limit or 0))
        return dual

    def _slack(self, dual: Dual) -> float:
        """Return by how much a better plan may be above the bound of a dual, both with memory's price."""
        best_s = min(self.run.best_s * (1 + SLACK), self.run.most_s())
        return best_s + dual.byte_s * (self.run.limit or 0) - dual.bound()

    def _ascend(self, ascent: Ascent) -> None:
        ascent.best_s = self.run.best_s
        ascent.run()
        self.run.raise_to(ascent.bound_s)


def _descend(run: Incumbent, starts: Sequence[Assignment]) -> None:
    """Look for a better plan near the best one where it is not proven."""
    left = run.budget - run.trace.elapsed_s()
    if left <= 0 or not run.best or run.fine() or run.closed():
        return
    found = descended(
        run.problem, budget=left, memory_bytes=run.limit,
        starts=[run.best, *starts], suggests=False, least_s=run.bound_s,
    )  # fmt: skip
    run.evaluations += found.evaluations
    run.offer(found.assignment)


__all__ = ["search"]
