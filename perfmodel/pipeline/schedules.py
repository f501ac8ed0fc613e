"""In which order the ranks of a pipeline run forward and backward passes.

GPipe and 1F1B (Narayanan et al., PipeDream-flush) fix the order on each rank. Under credits it is not
fixed: whatever is ready first runs first, as long as a stage has not too many micro-batches in flight. An
engine's model says which it runs; by those with closed forms the simulator is checked.

With 3 micro-batches on 2 ranks rank 0 runs F0 F1 F2 B2 B1 B0 under GPipe, F0 F1 B0 F2 B1 B2 under 1F1B.
"""

from __future__ import annotations

from typing import NamedTuple

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.pipeline.one_f_one_b import one_f_one_b

GPIPE, ONE_F_ONE_B, CREDITS = "gpipe", "1f1b", "credits"
SCHEDULES = (GPIPE, ONE_F_ONE_B, CREDITS)


class Pass(NamedTuple):
    """The forward ("F") or backward ("B") pass of one micro-batch through one stage."""

    kind: str
    stage: int
    micro_batch: int


def strict_in_flight(stages: int, micro_batches: int) -> tuple[int, ...]:
    """Return by stage how many micro-batches strict 1F1B keeps in flight at most."""
    return tuple(min(micro_batches, stages - stage) for stage in range(stages))


def order(schedule: str, rank: int, ranks: int, micro_batches: int) -> list[Pass]:
    """Return the passes of one rank, which has the stage of its number, in turn.

    Raises:
        AutoDDLError: the schedule has no fixed order.
    """
    if schedule == GPIPE:
        forward = [Pass("F", rank, i) for i in range(micro_batches)]
        return forward + [Pass("B", rank, i) for i in reversed(range(micro_batches))]
    if schedule == ONE_F_ONE_B:
        return [Pass(kind, rank, i) for kind, i in one_f_one_b(rank, ranks, micro_batches)]
    raise AutoDDLError(
        f"schedule {schedule!r} has no fixed order; allowed: {', '.join(SCHEDULES[:-1])}"
    )
