"""Boxing: the primitives that change the state of a tensor along one mesh axis.

nd-SBP is nested, so an axis can change a split of dim d only while no inner axis also cuts d: a
gather over the outer axis of (S0, S0) would leave strided pieces. P→B, B→P are always legal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoddl.sbp.state import NdSbp, Sbp, local_shape

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
    ("B", "P"): LOCAL,  # keep the value on one device, zeros elsewhere
    ("S", "P"): PAD,  # pad the own slice with zeros
}


@dataclass(frozen=True)
class Boxing:
    """One primitive on one mesh axis.

    `elements` is the n of its cost formula, per device: the full local tensor for an all-reduce,
    the gathered one for an all-gather, the input for a reduce-scatter, the send buffer for an
    all-to-all (formulas §1), and the elements written for a local step. A pad is local in principle;
    engines that move data for it price it as what they do (perfmodel.redistribute).
    """

    primitive: str
    axis: int
    elements: int


def boxing(src: NdSbp, dst: NdSbp, shape: Sequence[int], mesh: Sequence[int]) -> Boxing | None:
    """Return the primitive that takes `src` to `dst`, or None where no single one does.

    None as well where either state cuts `shape` unevenly. `shape` is the logical shape, `mesh` the
    axis sizes.
    """
    changed = [axis for axis, (a, b) in enumerate(zip(src, dst, strict=True)) if a != b]
    if len(changed) != 1:
        return None
    axis = changed[0]
    before, after = local_shape(shape, src, mesh), local_shape(shape, dst, mesh)
    if before is None or after is None or not _innermost(src, dst, axis):
        return None
    primitive = _PRIMITIVES[src[axis].kind, dst[axis].kind]
    counted = after if primitive in (ALL_GATHER, LOCAL, PAD) else before
    return Boxing(primitive, axis, _count(counted))


def _innermost(src: NdSbp, dst: NdSbp, axis: int) -> bool:
    """Tell whether no inner axis cuts a dim that `axis` starts or stops cutting."""
    inner: set[Sbp] = set(src[axis + 1 :])
    return not any(sbp.is_split and sbp in inner for sbp in (src[axis], dst[axis]))


def _count(shape: Sequence[int]) -> int:
    total = 1
    for dim in shape:
        total *= dim
    return total
