"""Dual ascent with reduced-cost fixing; it stops at optimality or stagnation.

In turn dual ascent (relaxation/dual.py) raises the lower bound, its messages are rounded to an
assignment that iterated conditional modes improve, and every choice whose reduced cost exceeds the gap
between the bound and the incumbent is removed for good: no better assignment has it.

    bound 10, incumbent 12, reduced costs of a variable's choices (0, 1.5, 2.5): the third is removed.

Source: Balas and Martin 1980 (variable fixing by reduced costs).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autoddl.search.budget import ASCENT
from autoddl.search.heuristics.descent import Descent
from autoddl.search.incumbent import Incumbent
from autoddl.search.network.cost_network import Ints
from autoddl.search.reductions.restriction import Restriction, everything
from autoddl.search.relaxation.dual import Dual
from autoddl.search.result import Assignment

ROUNDS = 3  # of dual ascent in a turn
CREEP = 5e-3  # of the gap: a turn that raises the bound by less is idle
PATIENCE = 16  # idle turns in a row that end an ascent: roundings differ while messages settle
# So small a part of the choices, or of the slack, makes a smaller problem worth its time.
SHRUNK = 0.75
SLACK = 1e-9  # relative; by so much choices may seem too dear by rounding

Offer = Callable[[Assignment], tuple[float, int, bool]]


class Ascent:
    """Raise the bound of one problem, and fix, until it is solved or nothing moves.

    `space` is the dual's network as a restriction of the original one, `left` are the choices that are
    left of it now. `offer` takes an assignment of the original one and returns its cost, bytes, and
    whether it fits. Where the original is only a `part` of what is searched nothing is fixed.
    """

    def __init__(
        self, dual: Dual, space: Restriction, offer: Offer, search: Incumbent, *,
        part: bool = False,
    ) -> None:  # fmt: skip
        self.dual, self.space, self.offer, self.search = dual, space, offer, search
        self.part, self.limit = part, None if part else search.limit
        self.left = everything(dual.network)
        self.best_s = np.inf
        self.bound_s, self.raised = -np.inf, -np.inf  # the latter with the price of all memory
        self.rounded = Assignment(np.zeros(0, dtype=np.int64))
        self.descent = Descent(dual.network, memory_bytes=self.limit, allowance=search.allowance)

    def run(self) -> None:
        """Ascend; `bound_s` is that of the dual at the end."""
        idle, slack = 0, np.inf
        while not self.search.late() and idle < PATIENCE:
            self.raised = self.dual.ascend(ROUNDS)
            self.search.allowance.clock.count(ROUNDS * ASCENT * len(self.dual.cost))
            before_s, known_s = self.bound_s, self.best_s
            self._round()
            self.bound_s = max(before_s, self._bound())
            if self.search.near(self.bound_s, self.best_s):
                return
            least_s = CREEP * (self.best_s - self.bound_s)
            idle = idle + 1 if self.bound_s - before_s <= least_s and self.best_s == known_s else 0
            if not self.part and self.slack_s() < SHRUNK * slack:
                slack = self.slack_s()
                self._fix(slack)

    def choices(self) -> list[Ints]:
        """Return which choices of the original variables are left."""
        return self.space.within(self.left)

    def _bound(self) -> float:
        """Return the bound in seconds, without the price of the memory that is allowed."""
        return self.raised - self.dual.prices.byte_s * (self.limit or 0)

    def slack_s(self) -> float:
        """Return by how much a better plan may be above the dual's bound."""
        return min(self.best_s, self.dual.most_s) * (1 + SLACK) - self._bound()

    def _round(self) -> None:
        """Offer what the messages are rounded to, as it is and improved."""
        rounded = self.dual.rounded()
        found = self.space.invert(rounded)
        if found != self.rounded:  # near the end messages are rounded to the same again and again
            self.rounded = found
            self._offer(found)
            self._offer(self.space.invert(self.descent.refine(rounded)))

    def _offer(self, found: Assignment) -> None:
        cost_s, _, fits = self.offer(found)
        if fits:
            self.best_s = min(self.best_s, cost_s)

    def _fix(self, slack: float) -> None:
        """Remove choices; make a smaller problem without them where that is worth its time."""
        self.left = self.dual.kept(slack)
        if sum(map(len, self.left)) > SHRUNK * sum(map(len, self.space.domains)):
            self.dual.drop(self.left)
            return
        old, self.space = self.dual, self.space.narrowed(self.left)
        smaller = self.space.network
        self.left = everything(smaller)
        self.dual = Dual(
            smaller, prices=old.prices, most_s=old.most_s, copies=old.copies, before=old
        )
        self.descent = Descent(smaller, memory_bytes=self.limit, allowance=self.search.allowance)
