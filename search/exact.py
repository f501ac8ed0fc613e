"""Exact search: a lower bound that rises, choices that drop out by it, and what is left solved.

In turn the dual relaxation (dual.py) raises the bound, suggests a plan, and every choice that can't
be part of a better one than the best known is dropped for good. It ends when the bound reaches the
best plan, or when all plans that are left have been looked at (frontier.py).

Of equal layers three are looked at first. That gives a plan, and messages that bound all plans of the
whole problem when every layer in the middle has those of the second (a fold): with it most choices
drop out, and all layers are looked at with the few that are left. A memory limit becomes a price of
bytes, which is bisected on the way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from copy import copy

import numpy as np

from autoddl.errors import InfeasibleError
from autoddl.search.coordinate import cheapest, least_memory, replicated
from autoddl.search.coordinate import search as descended
from autoddl.search.dual import Dual
from autoddl.search.frontier import cheapest as cheapest_within
from autoddl.search.problem import Ints, Problem
from autoddl.search.restrict import restricted
from autoddl.search.result import Assignment, Progress, SearchResult, Trace
from autoddl.search.shorten import Shortened, shorten
from autoddl.search.terms import Fold

ROUNDS = 5  # of dual ascent between two looks at what can be dropped
FOLDED = 30  # rounds of the fold
STEADY = 4e-5  # relative; where few layers' bound moves less in a turn its messages serve for all
NEAR = 0.05  # relative; above that gap nothing is dropped, it would be little
SHRUNK = 0.75  # so small a part of the choices left makes a smaller problem worth its time
SLACK = 1e-9  # relative; by so much choices may seem too dear by rounding
PROVEN = 1e-7  # relative; a plan is the best one if no other is better by more
FEW = 2  # choices of a node on average that are left when all plans are looked at,
SOME, SMALL = 4, 2000  # and where the bound stands still: on average, and of all nodes together
WIDE = 4000  # partial plans that stay while looking at all that are left
FINE = 1e-5  # relative; below that gap only a proof is of use, a better plan is not
AT_LEAST_S = 1.0  # for a look; beyond that it may take a part of what the search took before
LOOKS = {True: 1.0, False: 0.2}  # that part, by whether a better plan is of use
PATIENCE = 8  # turns in which the bound does not move that end an ascent
SOON = 2  # so many end one that is not the last, or has a FINE gap
# A turn brings nothing if it moves the bound by less than CREEP of its distance from the best plan, or
# by less than STRIDE of that and MOVED of the bound. Where it moves by less than SLOW of the distance
# terms get more readers.
CREEP, SLOW, STRIDE = 1e-3, 6e-3, 0.05
MOVED = 1e-6
# So much of the budget may go to few layers, to ascents, and of the rest of a slow ascent's to a descent.
FIRST, ASCENTS, DESCENT = 0.4, 0.8, 0.25
PRICES = 14  # of memory that are tried
RESTARTS = 4  # of coordinate descent from a plan that is not proven

Offer = Callable[[Sequence[int]], tuple[float, int, bool]]


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
    run = _Search(problem, budget, stop_gap, memory_bytes, progress)
    run.starts = tuple(starts)
    for start in (least_memory(problem), replicated(problem), cheapest(problem), *run.starts):
        run.offer(start)
    run.solve()
    run.descend()
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


class _Search:
    """The best assignment and the bound so far."""

    def __init__(
        self, problem: Problem, budget: float, stop_gap: float,
        memory_bytes: int | None, progress: Progress | None,
    ) -> None:  # fmt: skip
        self.problem, self.budget, self.stop_gap = problem, budget, stop_gap
        self.limit = memory_bytes
        self.starts: tuple[Assignment, ...] = ()
        self.trace = Trace(progress)
        self.best: Assignment = ()
        self.best_s = np.inf
        self.bound_s = problem.lower_bound_s()
        self.evaluations = 0

    def offer(self, assignment: Sequence[int]) -> tuple[float, int, bool]:
        """Keep an assignment if it is the best so far; return its cost, bytes, whether it fits."""
        self.evaluations += 1
        cost_s, held = self.problem.cost_s(assignment), self.problem.memory_bytes(assignment)
        fits = self.limit is None or held <= self.limit
        if fits and (cost_s < self.best_s or not self.best):
            self.best, self.best_s = tuple(assignment), cost_s
            self.trace.improved(cost_s)
        return cost_s, held, fits

    def late(self) -> bool:
        """Tell whether the time for ascents is up."""
        return self.trace.elapsed_s() > ASCENTS * self.budget

    def closed(self, bound_s: float, best_s: float) -> bool:
        """Tell whether a bound is as near to a cost as is asked for."""
        return bound_s >= (1 - max(self.stop_gap, PROVEN)) * best_s

    def solve(self) -> None:
        """Go from few layers to all of them."""
        some = shorten(self.problem, 3)
        everything = _all(self.problem)
        if some.problem is self.problem:
            dual = Dual(self.problem, most_s=self._most())
            self._ascend(_Ascent(dual, everything, self.offer, self, self.limit))
            return
        found = self._few(some)
        few, wide = found.early, found.dual.wide
        if self.late():
            return
        domains, starts = everything, [few]
        if some.folds:
            folded = self._folded(some, few, wide=wide)
            if self.late() or self.closed(self.bound_s, self.best_s):
                return
            kept = _kept(folded, self._slack(folded))
            domains, starts = [kept[i] for i in some.place], [folded, few]
        byte_s = few.byte_s
        for before in starts:
            whole = restricted(self.problem, domains)
            dual = Dual(
                whole, byte_s=byte_s, most_s=self._most(), before=before, ends=some.ends,
                wide=wide,
            )  # fmt: skip
            patience = SOON if before is not few else PATIENCE
            ascent = _Ascent(dual, domains, self.offer, self, self.limit, patience=patience)
            self._ascend(ascent)
            if self.late() or self.closed(self.bound_s, self.best_s):
                return
            pairs = zip(ascent.domains, ascent.left, strict=True)
            domains = [domain[left] for domain, left in pairs]
            byte_s, wide = ascent.dual.byte_s, ascent.dual.wide

    def descend(self) -> None:
        """Look for a better plan near the best one where it is not proven."""
        left = self.budget - self.trace.elapsed_s()
        fine = self.best_s - self.bound_s <= FINE * self.best_s
        if left <= 0 or not self.best or fine or self.closed(self.bound_s, self.best_s):
            return
        found = descended(
            self.problem,
            budget=left,
            memory_bytes=self.limit,
            starts=[self.best, *self.starts],
            restarts=RESTARTS,
        )
        self.evaluations += found.evaluations
        self.offer(found.assignment)

    def _folded(self, some: Shortened, few: Dual, *, wide: bool) -> Dual:
        """Bound all layers by those of a fold, which begins with the messages of few layers."""
        fold = Fold(np.bincount(some.place), Counter(some.edges()))
        dual = Dual(
            some.problem,
            byte_s=few.byte_s,
            most_s=self._most(),
            fold=fold,
            before=few,
            wide=few.wide,
        )
        bound_s = dual.ascend(FOLDED)
        self.offer(some.extended(dual.rounded()))
        self.bound_s = max(self.bound_s, bound_s - dual.byte_s * (self.limit or 0))
        return dual

    def _slack(self, dual: Dual) -> float:
        """Return by how much a better plan may be above the bound of a dual, both with memory's price."""
        slack = self._most() if not np.isfinite(self.best_s) else self.best_s * (1 + SLACK)
        return slack + dual.byte_s * (self.limit or 0) - dual.bound()

    def _few(self, some: Shortened) -> _Ascent:
        """Solve the problem that lacks layers."""

        def offer(assignment: Sequence[int]) -> tuple[float, int, bool]:
            _, _, fits = self.offer(some.extended(assignment))
            return some.problem.cost_s(assignment), some.problem.memory_bytes(assignment), fits

        dual = Dual(some.problem, most_s=self._most())
        found = _Ascent(dual, _all(some.problem), offer, self, None, steady=STEADY, share=FIRST)
        found.run()
        return found

    def _most(self) -> float:
        """Return more than what the best plan costs."""
        known = self.best_s if np.isfinite(self.best_s) else 1e6 * self.problem.lower_bound_s()
        return 2 * max(known, 1e-9)

    def _ascend(self, ascent: _Ascent) -> None:
        ascent.best_s = self.best_s
        ascent.run()
        self.bound_s = max(self.bound_s, ascent.bound_s)


class _Ascent:
    """Raise the bound of one problem and drop choices until it is solved or nothing moves.

    `domains` has for each node of the dual's problem which choices of the original one are left
    there, `left` those of them that are left for this node. `offer` takes an assignment of the
    original one and returns its cost, bytes, and whether it fits. `limit` are the bytes that are
    allowed, those of the best plan if not given. Nothing is dropped as long as the bound moves by
    more than `steady` in a turn; `patience` are the turns in which it does not move that end it.
    """

    def __init__(
        self, dual: Dual, domains: Sequence[Ints], offer: Offer, search: _Search,
        limit: int | None, steady: float = np.inf, patience: int = PATIENCE, share: float = 1.0,
    ) -> None:  # fmt: skip
        self.dual, self.domains, self.offer, self.search = dual, list(domains), offer, search
        self.limit, self.steady, self.patience = limit, steady, patience
        self.end_s = share * ASCENTS * search.budget
        self.left = _all(dual.problem)
        self.early = dual  # the last one that has all choices
        self.best_s, self.best_bytes = np.inf, 0
        self.bound_s, self.raised = -np.inf, -np.inf  # the latter with the price of all memory
        self.price = _Price(dual.byte_s, search)

    def run(self) -> None:
        """Ascend; `bound_s` is that of the dual's problem at the end."""
        idle, slow, slack, drops = 0, 0, np.inf, self.steady == np.inf
        while self.search.trace.elapsed_s() < self.end_s and idle < self.patience:
            self.raised = self.dual.ascend(ROUNDS)
            fits = self._offer(self.dual.rounded())
            before, now = self.bound_s, self._bound()
            self.bound_s = max(before, now)
            if self.search.closed(self.bound_s, self.best_s):
                return
            if not self.price.settled(fits):
                self.dual.price_memory(self.price.byte_s)
                self.bound_s = -np.inf if self.limit is None else self.bound_s
                continue
            gap_s = self.best_s - now
            least = max(CREEP * gap_s, min(MOVED * abs(now), STRIDE * gap_s))
            idle = idle + 1 if now <= before + least else 0
            slow = slow + 1 if now <= before + SLOW * gap_s else 0
            if slow == SOON and not self.dual.wide:
                self._descend()
                self._widen()
                idle = 0
                continue
            drops = drops or now <= before + self.steady * abs(now)
            room = self._slack()
            near = room < NEAR * self.best_s and room < (0.95 if idle else SHRUNK) * slack
            if drops and near:
                slack = room
                self.left = _kept(self.dual, slack)
            if room < FINE * self.best_s:
                self.patience = min(self.patience, SOON + 1)
            if self._worth_a_look(idle, dropped=slack == room) and self._look():
                self.bound_s = self.best_s
                return
            if slack == room:
                self._drop()

    def _bound(self) -> float:
        """Return the bound in seconds, without the price of the memory that is allowed."""
        allowed = self.best_bytes if self.limit is None else self.limit
        return self.raised - self.dual.byte_s * allowed

    def _slack(self) -> float:
        """Return by how much a better plan may be above the dual's bound."""
        return min(self.best_s, self.dual.most_s) * (1 + SLACK) - self._bound()

    def _offer(self, assignment: Sequence[int]) -> bool:
        pairs = zip(self.domains, assignment, strict=True)
        cost_s, held, fits = self.offer([int(domain[choice]) for domain, choice in pairs])
        if fits and cost_s < self.best_s:
            self.best_s, self.best_bytes = cost_s, held
        return fits

    def _drop(self) -> None:
        """Drop the choices that are not left; a problem without them where that is worth its time."""
        if self.early is self.dual:
            self.early = copy(self.dual)  # whose messages will stay as they are
            self.early.messages = self.dual.messages.copy()
        some = self.dual.drop(self.left)
        if sum(map(len, some)) > SHRUNK * sum(map(len, self.domains)):
            return
        self.domains = [d[k] for d, k in zip(self.domains, some, strict=True)]
        self.left = [np.searchsorted(s, k) for s, k in zip(some, self.left, strict=True)]
        old = self.dual
        smaller = restricted(old.problem, some)
        self.dual = Dual(smaller, byte_s=old.byte_s, most_s=old.most_s, before=old, wide=old.wide)
        self.dual.drop(self.left)

    def _descend(self) -> None:
        """Look for a better plan near the one that the messages suggest."""
        left = self.end_s - self.search.trace.elapsed_s()
        found = descended(
            self.dual.problem, budget=max(0.0, DESCENT * left), memory_bytes=self.limit,
            starts=[tuple(self.dual.rounded())], restarts=RESTARTS, suggests=False,
        )  # fmt: skip
        self.search.evaluations += found.evaluations
        self._offer(found.assignment)

    def _widen(self) -> None:
        """Go on with terms of more readers."""
        old = self.dual
        self.dual = Dual(old.problem, byte_s=old.byte_s, most_s=old.most_s, before=old, wide=True)
        self.dual.drop(self.left)
        if self.early is old:
            self.early = self.dual

    def _worth_a_look(self, idle: int, *, dropped: bool) -> bool:
        """Tell whether few choices are left, or some more and nothing else helps."""
        left, nodes = sum(map(len, self.left)), len(self.left)
        stands = idle == SOON < self.patience and left < max(SOME * nodes, SMALL)
        return stands or (dropped and left < FEW * nodes)

    def _look(self) -> bool:
        """Look at all plans that are left; tell whether none can be better than the best now."""
        beam = self._slack() > FINE * self.best_s
        trace = self.search.trace
        end_s = min((1 + LOOKS[beam]) * trace.elapsed_s() + AT_LEAST_S, self.search.budget)
        found = cheapest_within(
            self.dual, self.left, self._slack(), WIDE, self.limit,
            lambda: trace.elapsed_s() > end_s, beam=beam,
        )  # fmt: skip
        if found.assignment is not None:
            self._offer(found.assignment)
        return found.proven


class _Price:
    """The price of memory (s/B) at which the plan that the dual suggests just fits: bisection."""

    def __init__(self, byte_s: float, search: _Search) -> None:
        self.byte_s, self.low, self.high = byte_s, 0.0, np.inf
        self.limit, self.best_s = search.limit, search.best_s
        self.tries = 0 if byte_s == 0 and self.limit is not None else PRICES

    def settled(self, fits: bool) -> bool:
        """Take note whether the plan at this price fits; tell whether to stay with the price."""
        if self.tries == PRICES or (fits and self.byte_s == 0):
            self.tries = PRICES
            return True
        self.tries += 1
        if fits:
            self.high = self.byte_s
        else:
            self.low = self.byte_s
        if np.isfinite(self.high):
            self.byte_s = (self.low + self.high) / 2
        else:
            assert self.limit is not None
            scale = self.best_s if np.isfinite(self.best_s) else 1e-3
            self.byte_s = max(4 * self.low, 1e-2 * scale / max(1, self.limit))
        return False


def _kept(dual: Dual, slack_s: float) -> list[Ints]:
    """Return which choices of each node may be part of a plan within the slack; one at least."""
    return [np.flatnonzero(e <= max(slack_s, float(e.min()))) for e in dual.excess()]


def _all(problem: Problem) -> list[Ints]:
    return [np.arange(len(node.choices)) for node in problem.nodes]


__all__ = ["search"]
