"""What an ascent leaves unproven, as a mixed-integer linear program that HiGHS solves.

Where the bound stagnates mostly few choices are left whose reduced costs are within the gap. If they
are few enough the program proves which assignment is the best one. If not, those with the least reduced
costs often have a better one, with which the gap shrinks and fewer are left.

    gap 2, reduced costs (0, 1), (0, 0, 3): the program has 4 binaries, the choice with 3 is none of
    them.

Source: Crowder, Johnson and Padberg 1983 (reduced-cost fixing before branch and bound).
"""

from __future__ import annotations

import numpy as np

from autoddl.errors import InfeasibleError
from autoddl.search.exact.reduced_cost_fixing import SLACK, Ascent
from autoddl.search.incumbent import Incumbent
from autoddl.search.reductions.restriction import Restriction
from autoddl.search.result import SearchOptions, SearchResult
from autoddl.search.solvers.ilp import search as solved

# Binaries of a program, besides one for each variable. Of a transformer with two layers on 2x2 6,929
# choices are left: 2,500 give its optimum in 2 s of work, 5,000 in 8 s; 1,000 give no better plan.
MOST = 2500


def improved(run: Incumbent, ascent: Ascent) -> bool:
    """Look at the choices with the least reduced costs; tell whether that brought a better plan."""
    before_s = run.best_s
    reduced = np.sort(np.concatenate(ascent.dual.reduced_costs()))
    if len(reduced) > MOST and reduced[MOST] < _slack_s(run, ascent):
        _solved(run, ascent, reduced[MOST])
    return run.best_s < before_s


def prove(run: Incumbent, ascent: Ascent) -> None:
    """Look at all choices that may be part of a better plan, if they are few."""
    found = _solved(run, ascent, _slack_s(run, ascent))
    if found is not None:
        run.raise_to(min(run.best_s, found.lower_bound_s))


def _slack_s(run: Incumbent, ascent: Ascent) -> float:
    """Return by how much a better plan may be above the bound of a dual, both with memory's price."""
    best_s = min(run.best_s * (1 + SLACK), run.most_s())
    return best_s + ascent.dual.byte_s * (run.limit or 0) - ascent.dual.bound()


def _solved(run: Incumbent, ascent: Ascent, slack_s: float) -> SearchResult | None:
    """Solve the problem with the choices whose reduced costs are within a slack; offer the plan.

    There is none if the best one is proven already, if these are too many, or if nothing fits.
    """
    if run.over():
        return None
    pairs = zip(ascent.domains, ascent.dual.kept(slack_s), strict=True)
    left = [domain[choices] for domain, choices in pairs]
    if sum(map(len, left)) > MOST + len(left):
        return None
    few = Restriction.apply(run.network, left)
    asked = SearchOptions(run.left_s(), memory_bytes=run.limit, stop_gap=run.stop_gap)
    try:
        found = solved(few.network, asked)
    except InfeasibleError:
        return None
    run.evaluations += found.evaluations
    run.offer(few.invert(found.assignment))
    return found


__all__ = ["improved", "prove"]
