"""Lagrangian multiplier of memory: the price of a byte at which the cheapest plan just fits.

With a multiplier on memory the relaxation bounds every plan that fits, and is rounded to one. Near the
right one it suggests two: one that fits, and one that is cheaper and does not. Where they differ in
components, such as the layers of a model, the memory that is left goes to those in which a byte is
worth most (a knapsack, by ratio).

    limit 10 B; at 1 s/B a plan of 4 s and 12 B, at 2 s/B one of 6 s and 8 B: next is (6 - 4) / (12 - 8) =
    0.5 s/B, at which both cost the same; the bound is the larger of Σ - multiplier · 10.

Source: Fisher 1981 (Lagrangian relaxation); Dantzig 1957 (knapsack by ratio).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from autoddl.search.budget import ASCENT
from autoddl.search.heuristics.components import components
from autoddl.search.incumbent import Incumbent
from autoddl.search.network.cost_network import CostNetwork, as_ints
from autoddl.search.network.evaluator import factor_s, unary_of
from autoddl.search.reductions.quotient import Quotient
from autoddl.search.relaxation.dual import Dual
from autoddl.search.result import Assignment, Point

ROUNDS = 5  # of dual ascent at each multiplier
MOST, CLOSE = 24, 1e-3  # multipliers, until they are so close, relative; neither binds
SETTLED = 1e-5  # relative; so near to what two plans allow the bound can't rise any more
INSIDE = 0.1  # of the distance between two; a third is not nearer to either
FIRST_PART = 1e-2  # of the cost that all memory is worth at the first multiplier
FACTOR = 4.0  # by which it grows while no plan fits
ENOUGH = 2e-4  # relative; a gap below which what the memory model misses is worth more


@dataclass(frozen=True, eq=False)
class _Tried:
    """What a multiplier led to: the dual's bound with it, and the plan that it is rounded to."""

    byte_s: float
    raised_s: float
    assignment: Assignment
    cost_s: float
    held: int


@dataclass(eq=False)
class Lagrangian:
    """All multipliers that were tried for one network, with the relaxation."""

    network: CostNetwork
    some: Quotient
    dual: Dual
    points: list[_Tried] = field(default_factory=list)

    def search(self, run: Incumbent) -> None:
        """Close in on the multiplier at which plans just fit; keep the bound, and the best mixture."""
        limit = run.limit or 0
        for _ in range(MOST):
            low, high = self._around(limit)
            if self._settled(low, high, limit) or (self.points and run.late()):
                break
            self._try(self._next(low, high, run), run)
        run.raise_to(self._bound(limit))
        for point in self.points:
            run.offer(point.assignment, (point.cost_s, point.held))
        low, high = self._around(limit)
        if low is not None and high is not None and np.isfinite(low.cost_s + high.cost_s):
            run.offer(mixed(self.network, high.assignment, low.assignment, limit))

    def best(self, limit: int) -> float:
        """Return the multiplier with the highest bound."""
        return max(self.points, key=lambda p: p.raised_s - p.byte_s * limit).byte_s

    def _around(self, limit: int) -> tuple[_Tried | None, _Tried | None]:
        """Return the trials of the highest multiplier at which a plan does not fit, and of the next."""
        ordered = sorted(self.points, key=lambda p: p.byte_s)
        above = [p for p in ordered if p.held > limit]
        low = above[-1] if above else None
        high = next((p for p in ordered if low is None or p.byte_s > low.byte_s), None)
        return low, high

    def _bound(self, limit: int) -> float:
        return max(p.raised_s - p.byte_s * limit for p in self.points)

    def _settled(self, low: _Tried | None, high: _Tried | None, limit: int) -> bool:
        """Tell whether another multiplier would not raise the bound."""
        if high is None or low is None:
            return high is not None and high.byte_s == 0
        most_s = high.cost_s + _meeting(low, high) * (high.held - limit)
        near = self._bound(limit) >= (1 - SETTLED) * most_s
        return near or high.byte_s - low.byte_s <= CLOSE * high.byte_s

    def _next(self, low: _Tried | None, high: _Tried | None, run: Incumbent) -> float:
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
        run.allowance.clock.count(ROUNDS * ASCENT * len(self.dual.cost))
        assignment = self.some.invert(self.dual.rounded())
        cost_s, held, _ = run.offer(assignment)
        self.points.append(_Tried(byte_s, raised_s, assignment, cost_s, held))


def _meeting(low: _Tried, high: _Tried) -> float:
    """Return the multiplier at which two plans cost the same, with what they hold."""
    return (high.cost_s - low.cost_s) / (low.held - high.held)


def mixed(network: CostNetwork, fitting: Point, cheaper: Point, limit: int) -> Assignment:
    """Return an assignment between two others that holds at most `limit` bytes, as `fitting` does.

    Components in which they differ are taken from either.
    """
    net, one, other = network.arrays, as_ints(fitting).copy(), as_ints(cheaper)
    component = components(network, one, other)
    of_variable = component[: len(network)]
    (compute_s, held), (other_s, other_held) = unary_of(net, one), unary_of(net, other)
    fewer_s = compute_s - other_s, factor_s(net, one) - factor_s(net, other)
    saved_s = np.bincount(component, np.concatenate(fewer_s))
    more = np.bincount(of_variable, other_held - held, len(saved_s)).astype(np.int64)
    taken = more < 0  # it starts out as the one that holds less
    left = limit - network.memory_bytes(fitting) - int(more[taken].sum())
    saved_s, more = np.where(taken, -saved_s, saved_s), abs(more)
    parts = np.flatnonzero(saved_s > 0)
    worth = zip(saved_s[parts].tolist(), more[parts].tolist(), parts.tolist(), strict=True)
    # of equal ones the last, which is the first to be free again
    each = [(_digits(s / max(1, held)), part, held) for s, held, part in worth]
    for _, part, held in sorted(each, reverse=True):
        if held <= left:
            taken[part] = not taken[part]
            left -= held
    chosen = taken[of_variable]
    one[chosen] = other[chosen]
    return Assignment(one)


def _digits(value: float) -> float:
    """Return a number without the digits in which sums of the same parts differ."""
    return float(f"{value:.9g}")
