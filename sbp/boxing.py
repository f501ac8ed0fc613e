"""Boxing: the primitives that change the state of a tensor along one mesh axis, or along neighbours.

nd-SBP is nested, so an axis can change a split of dim d only while no axis cuts d after it: a gather
over the outer axis of (S0, S0) would leave strided pieces. P→B, B→P are always legal. Neighbouring axes
that change alike can do it in one collective over both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autoddl.sbp.shards import local_shape, shard_shape
from autoddl.sbp.shares import Cuts, Shares, places
from autoddl.sbp.state import OWN, B, NdSbp, Sbp

ALL_REDUCE = "all_reduce"
ALL_GATHER = "all_gather"
REDUCE_SCATTER = "reduce_scatter"
ALL_TO_ALL = "all_to_all"
LOCAL = "local"
PAD = "pad"

COLLECTIVES = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL)

_PRIMITIVES = {
    ("P", "B"): ALL_REDUCE,
    ("S", "B"): ALL_GATHER,
    ("P", "S"): REDUCE_SCATTER,
    ("S", "S"): ALL_TO_ALL,
    ("B", "S"): LOCAL,  # keep the own slice
    ("B", "P"): LOCAL,  # keep the value on one device and what adds nothing elsewhere
    ("S", "P"): PAD,  # pad the own slice with what adds nothing
}


@dataclass(frozen=True)
class Boxing:
    """One primitive on one mesh axis, or on neighbouring ones as if they were one.

    `elements` is the n of its cost formula, per device: the full local tensor for an all-reduce,
    the gathered one for an all-gather, the input for a reduce-scatter, the send buffer for an
    all-to-all (docs/formulas.md), and the elements written for a local step; where shards are uneven,
    those of the largest. A pad is local in principle; engines that move data for it price it as what
    they do (perfmodel.redistribution).
    """

    primitive: str
    axes: tuple[int, ...]
    elements: int


def boxing(
    src: NdSbp, dst: NdSbp, shape: Sequence[int], mesh: Cuts, *, uneven: bool = False
) -> Boxing | None:
    """Return the primitive that takes `src` to `dst`, or None where no single one does.

    None as well where either state cuts `shape` unevenly, unless `uneven` allows it (axes are merged
    only for even cuts: balanced pieces of balanced pieces are not those of one cut). `shape` is
    the logical shape, `mesh` how its axes cut.
    """
    axes = tuple([i for i in range(len(src)) if src[i] is not dst[i]])
    if not axes:
        return None
    before, after = src[axes[0]], dst[axes[0]]
    if before is OWN or after is OWN:  # there is no one tensor that the values stand for
        return None
    primitive = _PRIMITIVES.get((before.kind, after.kind))
    if primitive is None or not (_legal(src, axes, before) and _legal(dst, axes, after)):
        return None
    if len(axes) > 1 and not _mergeable(src, dst, axes, mesh):
        return None
    sizes = [_elements(shape, state, mesh, uneven and len(axes) == 1) for state in (src, dst)]
    if None in sizes:
        return None
    return Boxing(primitive, axes, sizes[counts_result(primitive)] or 0)


def gathers(before: NdSbp, after: NdSbp, shape: Sequence[int], mesh: Cuts) -> Iterator[Boxing]:
    """Yield the all-gathers that a boxing takes: itself, and what brings its gradient back.

    The gradient of S0 is S0, that of P is B: from B to S0, a slice, and from P to S0, a reduce-scatter,
    gradients come back by a gather.
    """
    back = [NdSbp(B if s.is_partial else s for s in state) for state in (after, before)]
    for src, dst in ((before, after), back):
        step = boxing(src, dst, shape, mesh, uneven=True)
        if step is not None and step.primitive == ALL_GATHER:
            yield step


def counts_result(primitive: str) -> bool:
    """Tell whether the elements of a primitive are those of its result, not those that it reads."""
    return primitive in (ALL_GATHER, LOCAL, PAD)


def _legal(state: NdSbp, axes: Sequence[int], cut: Sbp) -> bool:
    """Tell whether no other axis cuts the dim of `cut` after the changing axes have."""
    if cut.kind != "S":
        return True
    last = max(axes)
    return not any(
        sbp.dim == cut.dim and i not in axes and (sbp.turn, i) > (cut.turn, last)
        for i, sbp in enumerate(state)
    )


def _mergeable(src: NdSbp, dst: NdSbp, axes: Sequence[int], mesh: Cuts) -> bool:
    """Tell whether the axes are neighbours that change alike, without strides or cuts by shares.

    What one cut over all of them gives is no cut by the shares of one in each piece of another.
    """
    return (
        axes[-1] - axes[0] == len(axes) - 1
        and len({src[i] for i in axes}) == len({dst[i] for i in axes}) == 1
        and src[axes[0]].stride is None
        and dst[axes[0]].stride is None
        and not (
            (src[axes[0]].is_split or dst[axes[0]].is_split)
            and any(isinstance(mesh[axis], Shares) for axis in axes)
        )
    )


def _elements(shape: Sequence[int], state: NdSbp, mesh: Cuts, uneven: bool) -> int | None:
    """Return the elements of the largest shard, or None where the state is impossible."""
    even = local_shape(shape, state, mesh)
    if even is not None:
        return math.prod(even)
    if not uneven or any(s.stride is not None for s in state):
        return None
    if any(isinstance(cut, Shares) for cut in mesh):
        return None
    if any(s.dim >= len(shape) for s in state):
        return None
    if 0 in shard_shape(shape, state, mesh, [places(cut) - 1 for cut in mesh]):
        return None
    return math.prod(shard_shape(shape, state, mesh, [0] * len(mesh)))
