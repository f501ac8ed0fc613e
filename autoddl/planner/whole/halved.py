"""The request for two halves of the batch in turn, made from that for the whole batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autoddl.errors import AutoDDLError
from autoddl.planner.race import WORTH_OF_HALVES, Solution
from autoddl.planner.request import Request
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.rewrites.batch_mean import check_mean
from autoddl.sbp.rewrites.halves import halves, second
from autoddl.sbp.rewrites.micro_batch import micro_batch
from autoddl.search.network.pins import GRADIENTS, matched

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
        both = halves(half)
        pin = {**(request.pin or {}), **_of_second(half, request.pin or {})}
    except AutoDDLError as error:
        raise AutoDDLError(f"duplex: {error} (of half a batch); {REMEDY}") from None
    return replace(
        request, program=both, mesh=mesh, pin=pin, duplex=True, ways=request.ways_of()[:1]
    )


def _of_second(half: Program, pin: Mapping[str, str]) -> dict[str, str]:
    """Return pins for the second half's inputs and ops, those of the first; modules have both halves."""
    return {
        second(found.name): text
        for pattern, text in pin.items()
        for found in matched(half, pattern)
        if not pattern.startswith(GRADIENTS) and found.name in {*half.inputs, *half.op}
    }


def can_be_worth(request: Request, whole: Solution) -> bool:
    """Tell whether halves can be so much faster: they compute as long as the whole batch, at least."""
    mesh = whole.candidate.mesh
    if request.ways_of()[0].compute_stream or not request.timed or mesh.cuts != mesh.shape:
        return False
    least_s = whole.found.assigned(0).problem.lower_bound_s()
    return least_s < (1 - WORTH_OF_HALVES) * whole.judged_s
