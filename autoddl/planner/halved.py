"""The request for two halves of the batch in turn, made from that for the whole batch."""

from __future__ import annotations

from dataclasses import replace

from autoddl.errors import AutoDDLError
from autoddl.planner.race import WORTH_OF_HALVES, Solution
from autoddl.planner.request import Request
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.rewrites.batch_mean import check_mean
from autoddl.sbp.rewrites.halves import halves
from autoddl.sbp.rewrites.micro_batch import micro_batch
from autoddl.search.network.pins import Pins

REMEDY = "plan with duplex=False"


def halved(request: Request, mesh: Mesh | None = None) -> Request:
    """Return the request for both halves of the batch, on one mesh if that is given.

    Raises:
        AutoDDLError: the batch has no halves that make the same step as it; says why.
    """
    program, mesh = request.program, mesh or request.mesh
    try:
        half = micro_batch(program, 2, allow=request.allow)
        check_mean(program, half)
        if mesh is not None:
            Pins(half, mesh, request.pin or {}).check_batch()
        both = halves(half)
    except AutoDDLError as error:
        raise AutoDDLError(f"duplex: {error} (of half a batch); {REMEDY}") from None
    return replace(request, program=both, mesh=mesh, duplex=True, ways=request.ways[:1])


def can_be_worth(request: Request, whole: Solution) -> bool:
    """Tell whether halves can be so much faster: they compute as long as the whole batch, at least."""
    if request.ways[0].compute_stream or not request.timed:
        return False
    least_s = whole.found.problem.lower_bound_s()
    return least_s < (1 - WORTH_OF_HALVES) * whole.judged_s
