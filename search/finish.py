"""What is left of an exact search that is not proven, as an integer linear program.

Where the bound stands still few choices are mostly left that may be part of a better plan. Among those
that seem best HiGHS finds a better one in seconds, with which fewer are left; among so few it proves
which one is the best.
"""

from __future__ import annotations

from autoddl.errors import InfeasibleError
from autoddl.search.ascent import Ascent
from autoddl.search.ilp import search as solved
from autoddl.search.incumbent import Incumbent
from autoddl.search.restrict import restricted
from autoddl.search.result import SearchResult

PROOF, LOOK = 5000, 10_000  # so many choices of all nodes together are left at most, for either
BEST = 64.0  # by what the slack is divided for a look at the choices that seem best


def improved(run: Incumbent, ascent: Ascent) -> bool:
    """Look at the choices that seem best; tell whether that brought a better plan."""
    before_s = run.best_s
    _solved(run, ascent, BEST, LOOK)
    return run.best_s < before_s


def prove(run: Incumbent, ascent: Ascent) -> None:
    """Look at all that may be part of a better plan, if that is little."""
    found = _solved(run, ascent, 1.0, PROOF)
    if found is not None:
        run.raise_to(min(run.best_s, found.lower_bound_s))


def _solved(run: Incumbent, ascent: Ascent, part: float, most: int) -> SearchResult | None:
    """Solve the problem with the choices within a part of the slack, and offer the plan.

    There is none if the best one is proven already, if these are too many, or if nothing fits.
    """
    budget = run.budget - run.trace.elapsed_s()
    if budget <= 0 or run.closed():
        return None
    kept = ascent.dual.kept(run.slack_s(ascent.dual) / part)
    left = [domain[choices] for domain, choices in zip(ascent.domains, kept, strict=True)]
    if sum(map(len, left)) > most:
        return None
    few = restricted(run.problem, left)
    try:
        found = solved(few, budget=budget, memory_bytes=run.limit, stop_gap=run.stop_gap)
    except InfeasibleError:
        return None
    run.evaluations += found.evaluations
    run.offer([int(d[choice]) for d, choice in zip(left, found.assignment, strict=True)])
    return found


__all__ = ["improved", "prove"]
