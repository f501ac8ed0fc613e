"""One ascent: the bound rises, choices drop out, until one plan is proven or nothing moves.

In turn the dual relaxation (dual.py) raises the bound and suggests a plan, and every choice that can't
be part of a better one than the best known is dropped for good. It ends when the bound reaches the
best plan, or when all plans that are left have been looked at (frontier.py). Where it gets slow, terms
of more readers and a descent help.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

import numpy as np

from autoddl.search.coordinate import search as descended
from autoddl.search.dual import Dual
from autoddl.search.frontier import cheapest as cheapest_within
from autoddl.search.incumbent import ASCENTS, FINE, SLACK, Incumbent
from autoddl.search.problem import Ints, Problem
from autoddl.search.restrict import restricted

ROUNDS = 5  # of dual ascent between two looks at what can be dropped
NEAR = 0.05  # relative; above that gap nothing is dropped, it would be little
SHRUNK = 0.75  # so small a part of the choices left makes a smaller problem worth its time
FEW = 2  # choices of a node on average that are left when all plans are looked at,
SOME, SMALL = 4, 2000  # and where the bound stands still: on average, and of all nodes together
WIDE = 4000  # partial plans that stay while looking at all that are left
AT_LEAST_S = 1.0  # for a look; beyond that it may take a part of what the search took before
LOOKS = {True: 1.0, False: 0.2}  # that part, by whether a better plan is of use
PATIENCE = 8  # turns in which the bound does not move that end an ascent
HELPS = (2, 8, 24)  # slow turns in a row after which an ascent gets help
GLANCE = 32.0  # by what the slack is divided for a look at the choices that seem best
SOON = 2  # so many end one that is not the last, or has a FINE gap
# A turn brings nothing if it moves the bound by less than CREEP of its distance from the best plan, or
# by less than STRIDE of that and MOVED of the bound. It is slow below SLOW of the distance and SLOWER of
# the bound: messages that have settled suggest better plans.
CREEP, SLOW, STRIDE = 5e-3, 6e-3, 0.05
MOVED, SLOWER = 1e-6, 4e-5
DESCENT = 0.25  # so much of what is left of the time of a slow one may a descent take
RESTARTS = 4  # of coordinate descent from a plan that is not proven

Offer = Callable[[Sequence[int]], tuple[float, int, bool]]


class Ascent:
    """Raise the bound of one problem and drop choices until it is solved or nothing moves.

    `domains` has for each node of the dual's problem which choices of the original one are left
    there, `left` those of them that are left for this node. `offer` takes an assignment of the
    original one and returns its cost, bytes, and whether it fits. A bound that is not `limited` holds
    for plans with the memory of the best one, not with that of the search. Nothing is dropped as long
    as the bound moves by more than `steady` in a turn; `patience` are the turns in which it does not
    move that end it. Where memory has no price yet, and what the messages suggest first does not fit,
    it ends as `binding`.
    """

    def __init__(
        self, dual: Dual, domains: Sequence[Ints], offer: Offer, search: Incumbent, *,
        limited: bool = True, steady: float = np.inf, patience: int = PATIENCE, share: float = 1.0,
        priced: bool = False,
    ) -> None:  # fmt: skip
        self.dual, self.domains, self.offer, self.search = dual, list(domains), offer, search
        self.limit = search.limit if limited else None
        self.steady, self.patience = steady, patience
        self.end_s = share * ASCENTS * search.budget
        self.left = everything(dual.problem)
        self.early = dual  # the last one that has all choices
        self.best_s, self.best_bytes = np.inf, 0
        self.bound_s, self.raised = -np.inf, -np.inf  # the latter with the price of all memory
        self.priced, self.binding = priced or search.limit is None, False

    def run(self) -> None:
        """Ascend; `bound_s` is that of the dual's problem at the end."""
        idle, slow, slack = 0, 0, np.inf
        drops = self.steady == np.inf
        while self.search.trace.elapsed_s() < self.end_s and idle < self.patience:
            self.raised = self.dual.ascend(ROUNDS)
            if not self._offer(self.dual.rounded()) and not self.priced:
                self.binding = True
                return
            self.priced = True
            before, now = self.bound_s, self._bound()
            self.bound_s = max(before, now)
            if self.search.near(self.bound_s, self.best_s):
                return
            gap_s = self.best_s - now
            least = min(max(CREEP * gap_s, MOVED * abs(now)), STRIDE * gap_s, SLOWER * abs(now))
            idle = idle + 1 if now <= before + least else 0
            slow = slow + 1 if now <= before + min(SLOW * gap_s, SLOWER * abs(now)) else 0
            if slow in HELPS:
                idle = 0 if slow == HELPS[0] else idle
                self._help(first=slow == HELPS[0])
                if self.search.near(self.bound_s, self.best_s):
                    return
                continue
            drops = drops or now <= before + self.steady * abs(now)
            room = self._slack()
            near = room < NEAR * self.best_s and room < (0.95 if idle else SHRUNK) * slack
            if drops and near:
                slack = room
                self.left = self.dual.kept(slack)
            if self._fine():
                self.patience = min(self.patience, SOON + 1)
            if self._worth_a_look(idle, dropped=slack == room) and self._look(self.left):
                self.bound_s = self.best_s
                return
            if slack == room:
                self._drop()

    def choices(self) -> list[Ints]:
        """Return which choices of the original problem's nodes are left."""
        return [domain[left] for domain, left in zip(self.domains, self.left, strict=True)]

    def _bound(self) -> float:
        """Return the bound in seconds, without the price of the memory that is allowed."""
        allowed = self.best_bytes if self.limit is None else self.limit
        return self.raised - self.dual.byte_s * allowed

    def _slack(self) -> float:
        """Return by how much a better plan may be above the dual's bound."""
        return min(self.best_s, self.dual.most_s) * (1 + SLACK) - self._bound()

    def _fine(self) -> bool:
        """Tell whether a better plan would be of no use; where none is known any would."""
        return bool(np.isfinite(self.best_s)) and self._slack() <= FINE * self.best_s

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
        self.dual.drop(self.left)
        if sum(map(len, self.left)) > SHRUNK * sum(map(len, self.domains)):
            return
        self.domains = [d[k] for d, k in zip(self.domains, self.left, strict=True)]
        old = self.dual
        smaller = restricted(old.problem, self.left)
        self.left = everything(smaller)
        self.dual = Dual(smaller, byte_s=old.byte_s, most_s=old.most_s, before=old, wide=old.wide)

    def _help(self, *, first: bool) -> None:
        """Look for better plans; the first time terms get more readers, too."""
        best = self.dual.kept(self._slack() / GLANCE)
        if sum(map(len, best)) < SMALL:
            self._look(best, proves=False)
        if first:
            self._descend()
        if not self.dual.wide:
            self._widen()

    def _descend(self) -> None:
        """Look for a better plan near the one that the messages suggest."""
        left = self.end_s - self.search.trace.elapsed_s()
        found = descended(
            self.dual.problem, budget=max(0.0, DESCENT * left), memory_bytes=self.limit,
            starts=[tuple(self.dual.rounded())], restarts=RESTARTS, suggests=False,
            least_s=self.bound_s,
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

    def _look(self, left: Sequence[Ints], *, proves: bool = True) -> bool:
        """Look at all plans of some choices; tell whether none of them can be better than the best."""
        beam = not (proves and self._fine())
        trace = self.search.trace
        end_s = min((1 + LOOKS[beam]) * trace.elapsed_s() + AT_LEAST_S, self.search.budget)
        found = cheapest_within(
            self.dual, left, self._slack(), WIDE, self.limit,
            lambda: trace.elapsed_s() > end_s, beam=beam,
        )  # fmt: skip
        if found.assignment is not None:
            self._offer(found.assignment)
        return found.proven


def everything(problem: Problem) -> list[Ints]:
    """Return all choices of every node."""
    columns = problem.node_columns
    every = [np.arange(len(form.choices)) for form in columns.forms]
    return [every[form] for form in columns.form.tolist()]
