"""In which order the ranks of a pipeline run forward and backward passes.

GPipe, 1F1B (Narayanan et al., PipeDream-flush) and Megatron's interleaved 1F1B fix the order on each
rank. Under credits it is not fixed: whatever is ready first runs first, as long as a stage has not too
many micro-batches in flight. An engine's model says which it runs; by those with closed forms the
simulator is checked.

With 3 micro-batches on 2 ranks rank 0 runs F0 F1 F2 B2 B1 B0 under GPipe, F0 F1 B0 F2 B1 B2 under 1F1B.
"""

from __future__ import annotations

from typing import NamedTuple

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.pipeline.one_f_one_b import one_f_one_b

CREDITS = "credits"
SCHEDULES = ("gpipe", "1f1b", "interleaved", CREDITS)


class Pass(NamedTuple):
    """The forward ("F") or backward ("B") pass of one micro-batch through one stage."""

    kind: str
    stage: int
    micro_batch: int


def order(schedule: str, rank: int, ranks: int, micro_batches: int, chunks: int = 1) -> list[Pass]:
    """Return the passes of one rank in turn; stage s is on rank s % ranks if there are `chunks`.

    Raises:
        AutoDDLError: the schedule has no fixed order, or interleaved micro-batches can't be grouped.
    """
    if schedule == "gpipe":
        forward = [Pass("F", rank, i) for i in range(micro_batches)]
        return forward + [Pass("B", rank, i) for i in reversed(range(micro_batches))]
    if schedule == "1f1b":
        return [Pass(kind, rank, i) for kind, i in one_f_one_b(rank, ranks, micro_batches)]
    if schedule == "interleaved":
        return _interleaved(rank, ranks, micro_batches, chunks)
    raise AutoDDLError(
        f"schedule {schedule!r} has no fixed order; allowed: {', '.join(SCHEDULES[:-1])}"
    )


def _interleaved(rank: int, ranks: int, micro_batches: int, chunks: int) -> list[Pass]:
    """Return Megatron's order: groups of as many micro-batches as ranks go through chunk by chunk."""
    if micro_batches % ranks:
        raise AutoDDLError(
            f"interleaved schedule: {micro_batches} micro-batches on {ranks} ranks; give a multiple"
        )
    groups = [range(i, i + ranks) for i in range(0, micro_batches, ranks)]
    stages = range(rank, ranks * chunks, ranks)
    forward = [Pass("F", stage, i) for group in groups for stage in stages for i in group]
    backward = [
        Pass("B", stage, i) for group in groups for stage in reversed(stages) for i in group
    ]
    warm = min(2 * (ranks - 1 - rank) + (chunks - 1) * ranks, len(forward))
    steady = [p for pair in zip(forward[warm:], backward, strict=False) for p in pair]
    return forward[:warm] + steady + backward[len(forward) - warm :]
