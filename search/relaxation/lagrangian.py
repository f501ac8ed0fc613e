"""Lagrangian multiplier of memory: the price of a byte at which the cheapest plan just fits.

With a price of each byte the cheapest plan of any memory bounds every plan that fits. Near the right
price there are two: one that fits, and one that is cheaper and does not. Where they differ in components,
such as the layers of a model, the memory that is left goes to those in which a byte is worth most (a
knapsack, by ratio); a descent within the limit takes what is left then.

    limit 10 B; at 1 s/B a plan of 4 s and 12 B, at 2 s/B one of 6 s and 8 B: next is (6 - 4) / (12 - 8) =
    0.5 s/B, at which both cost the same; the bound is the larger of Σ - price · 10.

Source: Fisher 1981 (Lagrangian relaxation); Dantzig 1957 (knapsack by ratio).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autoddl.search.heuristics.components import components
from autoddl.search.heuristics.descent import Descent
from autoddl.search.incumbent import Incumbent
from autoddl.search.network.cost_network import CostNetwork, as_ints
from autoddl.search.network.evaluator import factor_s, unary_of
from autoddl.search.relaxation.dual import Dual
from autoddl.search.result import Assignment, Point

MOST = 24  # prices; does not bind
SETTLED = 1e-5  # relative; a plan that is cheaper by less than that raises the bound no more
ENOUGH = 5e-4  # relative; a gap below which what the memory model misses is worth more


@dataclass(frozen=True, eq=False)
class AtPrice:
    """The cheapest plan with a price of each byte, and what no plan is cheaper than at that price.

    `cost_s` is without the price of what it has `held`; `dual` are messages to go on with.
    """

    byte_s: float
    assignment: Assignment
    cost_s: float
    held: int
    raised_s: float
    dual: Dual

    def bound_s(self, limit: int) -> float:
        """Return what no plan that holds at most `limit` bytes is cheaper than."""
        return self.raised_s - self.byte_s * limit


Solve = Callable[[float, Dual | None], AtPrice]
"""Solves the network at a price, from the messages at the one before."""


def search(run: Incumbent, solve: Solve) -> AtPrice:
    """Close in on the price at which plans just fit; return the one with the highest bound.

    Each but the first, which is 0, is that at which the cheapest plan that fits, so far, and one that
    does not cost the same: the plan that is cheapest then takes the place of either.
    """
    limit, byte_s, tried = run.limit or 0, 0.0, list[AtPrice]()
    fitting, cheaper = run.best, None
    assert fitting is not None
    cost_s, held = min(run.best_s, run.most_s()), run.network.memory_bytes(fitting)
    while len(tried) < MOST and not (tried and (run.late() or run.closed())):
        found = solve(byte_s, tried[-1].dual if tried else None)
        tried.append(found)
        run.raise_to(found.bound_s(limit))
        before_s = np.inf if cheaper is None else cost_s + byte_s * held
        if found.cost_s + byte_s * found.held >= (1 - SETTLED) * before_s:
            break
        if found.held > limit:
            cheaper = found
        else:
            fitting, cost_s, held = found.assignment, found.cost_s, found.held
        if cheaper is None:
            break
        byte_s = max(0.0, cost_s - cheaper.cost_s) / (cheaper.held - held)
    if cheaper is not None and np.isfinite(run.best_s):
        between = mixed(run.network, fitting, cheaper.assignment, limit)
        descent = Descent(run.network, memory_bytes=limit, allowance=run.allowance)
        run.offer(descent.refine(between))
    return max(tried, key=lambda one: one.bound_s(limit))


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
