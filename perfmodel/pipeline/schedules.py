"""In which order the ranks of a pipeline run forward and backward passes, and blocking transfers.

GPipe, 1F1B (Narayanan et al., PipeDream-flush) and Megatron's interleaved 1F1B fix the order on each
rank; OneFlow's graphs don't: there whatever is ready first runs first, as long as credits last.

With 3 micro-batches on 2 ranks rank 0 runs F0 F1 F2 B2 B1 B0 under GPipe, F0 F1 B0 F2 B1 B2 under 1F1B.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.pipeline.one_f_one_b import one_f_one_b

SCHEDULES = ("gpipe", "1f1b", "interleaved", "oneflow")


class Pass(NamedTuple):
    """The forward ("F") or backward ("B") pass of one micro-batch through one stage."""

    kind: str
    stage: int
    micro_batch: int


class TransferTurn(NamedTuple):
    """A transfer, by its index, of one micro-batch; both of its ranks do it at the same time."""

    transfer: int
    micro_batch: int


class Route(NamedTuple):
    """The stages between which a transfer goes: gradients if it goes to an earlier one."""

    source: int
    target: int

    @property
    def kind(self) -> str:
        """Return the passes that make and read it."""
        return "F" if self.source < self.target else "B"


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


def _one_by_one(forward: list[Pass], backward: list[Pass], warm: int) -> list[Pass]:
    """Return `warm` forward passes, then one forward and one backward in turn, then the rest."""
    warm = min(warm, len(forward))
    steady = [p for pair in zip(forward[warm:], backward, strict=False) for p in pair]
    return forward[:warm] + steady + backward[len(forward) - warm :]


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
    return _one_by_one(forward, backward, 2 * (ranks - 1 - rank) + (chunks - 1) * ranks)


def rendezvous(
    orders: Sequence[Sequence[Pass]], routes: Sequence[Route], rank_of: Sequence[int]
) -> list[list[Pass | TransferTurn]]:
    """Put blocking transfers into the ranks' orders so that no rank waits for ever.

    A rank receives right before the pass that reads, activations before it sends gradients, and
    sends as soon as the other side receives. All ranks follow one common order, so there is no
    deadlock. Between neighbours this is: forward, send it, receive a gradient, backward, receive the
    next input, send the gradient.
    """
    inputs: dict[tuple[str, int], list[int]] = {}
    for index, route in enumerate(routes):
        if rank_of[route.source] != rank_of[route.target]:
            inputs.setdefault((route.kind, route.target), []).append(index)
    passed: set[Pass] = set()
    moved: set[TransferTurn] = set()
    result: list[list[Pass | TransferTurn]] = [[] for _ in orders]
    position = [0] * len(orders)
    while any(at < len(passes) for at, passes in zip(position, orders, strict=True)):
        # As if all passes took the same time and transfers none: first transfers, then passes.
        following = [p[at] for at, p in zip(position, orders, strict=True) if at < len(p)]
        wanted = {
            p: [TransferTurn(index, p.micro_batch) for index in inputs.get((p.kind, p.stage), ())]
            for p in following
        }
        ready = [
            (p.kind == "B", p.micro_batch, move)
            for p, moves in wanted.items()
            for move in moves
            if move not in moved
            and Pass(p.kind, routes[move.transfer].source, p.micro_batch) in passed
        ]
        for _, _, move in sorted(ready):
            moved.add(move)
            for stage in routes[move.transfer]:
                result[rank_of[stage]].append(move)
        done = [p for p, moves in wanted.items() if moved.issuperset(moves)]
        if not ready and not done:
            raise AutoDDLError(
                f"pipeline: {following[0]} waits for ever; check orders and transfers"
            )
        for p in done:
            result[rank_of[p.stage]].append(p)
            position[rank_of[p.stage]] += 1
        passed.update(done)
    return result
