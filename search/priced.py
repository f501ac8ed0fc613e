"""Plans under a memory limit: the price of a byte at which the cheapest plan just fits.

With a price on memory (a Lagrange multiplier) the relaxation bounds every plan that fits, and suggests
one. Near the right price it suggests two: one that fits, and one that is cheaper and does not. Where
they differ in parts that do not depend on each other, such as the layers of a model, the memory that
is left goes to the parts in which a byte is worth most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from autoddl.search.dual import Dual
from autoddl.search.incumbent import Incumbent
from autoddl.search.moves import parted
from autoddl.search.problem import Problem
from autoddl.search.result import Assignment
from autoddl.search.shorten import Shortened

KNOWN = "prices of memory"  # in the notes of a problem
ROUNDS = 5  # of dual ascent at each price
PRICES, CLOSE = 24, 1e-3  # so many are tried, until they are so close, relative
SETTLED = 1e-5  # relative; so near to what two plans allow the bound can't rise any more
INSIDE = 0.1  # of the distance between two prices; a third one is not nearer to either
FIRST_PART = 1e-2  # of the cost that all memory is worth at the first price
FACTOR = 4.0  # by which it grows while no plan fits
ENOUGH = 2e-4  # relative; a gap below which what the memory model misses is worth more


@dataclass(frozen=True, eq=False)
class _Point:
    """What a price of memory led to: the dual's bound with it, and the plan that it suggests."""

    byte_s: float
    raised_s: float
    assignment: Assignment
    cost_s: float
    held: int


@dataclass(eq=False)
class Prices:
    """All prices that were tried for one problem, under whatever limit, with the relaxation."""

    problem: Problem
    some: Shortened
    dual: Dual
    points: list[_Point] = field(default_factory=list)

    def search(self, run: Incumbent) -> None:
        """Close in on the price at which plans just fit; keep the bound, and the best mixture."""
        limit = run.limit or 0
        for _ in range(PRICES):
            low, high = self._around(limit)
            if self._settled(low, high, limit) or (self.points and run.late()):
                break
            self._try(self._next(low, high, run), run)
        run.raise_to(self._bound(limit))
        for point in self.points:
            run.offer(point.assignment, (point.cost_s, point.held))
        low, high = self._around(limit)
        if low is not None and high is not None and np.isfinite(low.cost_s + high.cost_s):
            run.offer(mixed(self.problem, high.assignment, low.assignment, limit))

    def best(self, limit: int) -> float:
        """Return the price with the highest bound."""
        return max(self.points, key=lambda p: p.raised_s - p.byte_s * limit).byte_s

    def _around(self, limit: int) -> tuple[_Point | None, _Point | None]:
        """Return the points of the highest price at which a plan does not fit, and the next one's."""
        ordered = sorted(self.points, key=lambda p: p.byte_s)
        above = [p for p in ordered if p.held > limit]
        low = above[-1] if above else None
        high = next((p for p in ordered if low is None or p.byte_s > low.byte_s), None)
        return low, high

    def _bound(self, limit: int) -> float:
        return max(p.raised_s - p.byte_s * limit for p in self.points)

    def _settled(self, low: _Point | None, high: _Point | None, limit: int) -> bool:
        """Tell whether another price would not raise the bound."""
        if high is None or low is None:
            return high is not None and high.byte_s == 0
        most_s = high.cost_s + _meeting(low, high) * (high.held - limit)
        near = self._bound(limit) >= (1 - SETTLED) * most_s
        return near or high.byte_s - low.byte_s <= CLOSE * high.byte_s

    def _next(self, low: _Point | None, high: _Point | None, run: Incumbent) -> float:
        if high is None:
            known = run.best_s if np.isfinite(run.best_s) else 1e-3
            first = FIRST_PART * known / max(1, run.limit or 0)
            return first if low is None else max(first, FACTOR * low.byte_s)
        if low is None:
            return 0.0
        margin = INSIDE * (high.byte_s - low.byte_s)
        return min(max(_meeting(low, high), low.byte_s + margin), high.byte_s - margin)

    def _try(self, byte_s: float, run: Incumbent) -> None:
        self.dual.price_memory(byte_s)
        raised_s = self.dual.ascend(ROUNDS)
        assignment = self.some.extended(self.dual.rounded())
        cost_s, held, _ = run.offer(assignment)
        self.points.append(_Point(byte_s, raised_s, assignment, cost_s, held))


def _meeting(low: _Point, high: _Point) -> float:
    """Return the price at which two plans cost the same, with what they hold."""
    return (high.cost_s - low.cost_s) / (low.held - high.held)


def mixed(
    problem: Problem, fitting: Sequence[int], cheaper: Sequence[int], limit: int
) -> Assignment:
    """Return an assignment between two others that holds at most `limit` bytes, as `fitting` does.

    Parts in which they differ, and which share no tensor, are taken from either.
    """
    flat, one, other = problem.flat, np.array(fitting), np.array(cheaper)
    apart = parted(problem, one, other)
    saved_s = apart.sums(
        flat.compute_s(one) - flat.compute_s(other),
        flat.communication_s(one) - flat.communication_s(other),
    )
    more = apart.sums(flat.memory_bytes(other) - flat.memory_bytes(one)).astype(np.int64)
    taken = more < 0  # it starts out as the one that holds less
    left = limit - problem.memory_bytes(fitting) - int(more[taken].sum())
    saved_s, more = np.where(taken, -saved_s, saved_s), abs(more)
    worth = zip(saved_s.tolist(), more.tolist(), range(apart.count), strict=True)
    # of equal ones the last, which is the first to be free again
    each = [(_digits(s / max(1, held)), part, held) for s, held, part in worth if s > 0]
    for _, part, held in sorted(each, reverse=True):
        if held <= left:
            taken[part] = not taken[part]
            left -= held
    chosen = apart.nodes[taken[apart.part]]
    one[chosen] = other[chosen]
    return tuple(one.tolist())


def _digits(value: float) -> float:
    """Return a number without the digits in which sums of the same parts differ."""
    return float(f"{value:.9g}")
