"""What is found from a plan without stages where cuts may have strides, too (search/network/strided.py).

It is searched after all others, on the mesh of the best, and begins with that: so no plan is dearer.
"""

from __future__ import annotations

from dataclasses import replace

from autoddl.errors import InfeasibleError
from autoddl.planner.race import Solution
from autoddl.planner.request import Request
from autoddl.planner.whole.solve import ProblemSearch
from autoddl.search.budget import Allowance
from autoddl.search.network.widened import widened

WITHOUT_STRIDES = "without strides"  # what a plan with strides had to beat, as a baseline


def with_strides(request: Request, best: Solution, allowance: Allowance) -> Solution | None:
    """Return what is found from a solution; None where it has stages or halves, or no cut has strides."""
    one = best.candidate
    if not request.may_stride or one.pipelined or one.duplex:
        return None
    plain = best.found.assigned(0)
    request = replace(request, program=plain.problem.program)
    wide = request.problem(one.mesh, ways=(one.way,), strides=True)
    if plain.layout.has_strides or not any(table.strided for table in wide.factors.tables):
        return None
    known = None
    if request.timed:
        rivals = ((name, rival.whole) for name, rival in best.rivals)
        others = {n: each for n, each in rivals if each.problem.program is plain.problem.program}
        known = {
            name: widened(each.assignment, each.problem, wide)
            for name, each in {WITHOUT_STRIDES: plain, **others}.items()
        }
    search = ProblemSearch(wide, request, allowance, baselines=known)
    try:
        return search.solution(replace(one, strides=True))
    except InfeasibleError:
        return None
