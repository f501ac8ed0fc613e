"""What an ascent leaves unproven, as a mixed-integer linear program that HiGHS solves.

Where the bound stagnates mostly few choices are left whose reduced costs are within the gap. If they
are few enough the program proves which assignment is the best one. If not, those with the least reduced
costs often have a better one, with which the gap shrinks and fewer are left; otherwise twice as many are
looked at next.

    gap 2, reduced costs (0, 1), (0, 0, 3): the program has 4 binaries, the choice with 3 is none of
    them.

Source: Crowder, Johnson and Padberg 1983 (reduced-cost fixing before branch and bound).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from autoddl.errors import InfeasibleError
from autoddl.search.exact.reduced_cost_fixing import Ascent
from autoddl.search.incumbent import Incumbent
from autoddl.search.reductions.restriction import Restriction
from autoddl.search.result import SearchResult
from autoddl.search.solvers.ilp import search as solved

# Binaries of the first program, besides one for each variable; the next has twice as many.
FIRST = 2500
BUILD_S = 3e-4  # that it takes to make a program, by variable of the network, on two cores


def finish(run: Incumbent, ascent: Ascent, go_on: Callable[[Ascent], None]) -> None:
    """Solve ever larger programs until one holds all choices that may be part of a better plan.

    Where one has brought a better plan, the ascent can `go_on`: fewer choices are left then. Each takes
    longer than the one before, so none begins for which that much time is not left.
    """
    most, took_s = FIRST, BUILD_S * len(run.network)
    while not run.over() and took_s < run.left_s():
        begin_s, before_s = run.left_s(), run.best_s
        ascent.best_s, ascent.raised = run.best_s, ascent.dual.bound()
        slack_s = ascent.slack_s()
        reduced = np.sort(ascent.dual.reduced_costs())
        whole = np.searchsorted(reduced, slack_s, side="right") <= most + len(ascent.space.domains)
        found = _solved(run, ascent, slack_s if whole else reduced[most])
        if whole:
            if found is not None:
                run.raise_to(min(run.best_s, found.lower_bound_s))
            return
        if run.best_s < before_s:
            go_on(ascent)
        else:
            most *= 2
        took_s = 2 * (begin_s - run.left_s())


def _solved(run: Incumbent, ascent: Ascent, slack_s: float) -> SearchResult | None:
    """Solve the problem with the choices whose reduced costs are within a slack; offer the plan.

    There is none if nothing fits.
    """
    few = Restriction.apply(run.network, ascent.space.within(ascent.dual.kept(slack_s)))
    asked = replace(
        run.options, budget=run.left_s(), stop_gap=run.stop_gap, starts=(), progress=None
    )
    try:
        found = solved(few.network, asked)
    except InfeasibleError:
        return None
    run.evaluations += found.evaluations
    run.offer(few.invert(found.assignment))
    return found
