"""Where a reshape takes the dim that grows with the batch, also into or out of the middle of one."""

from __future__ import annotations

import math

from autoddl.sbp.rules.registry import Shape
from autoddl.sbp.state import S, Sbp

RESHAPES = frozenset({"expand_dims", "reshape", "reshape_like", "squeeze"})


def reshaped(state: Sbp, source: Shape, target: Shape, count: int) -> Sbp | None:
    """Return the cut of `target` that a cut of `source` into `count` parts becomes, or None.

    Of (time, batch, width) → (time * batch, width) the cut S1 of the batch becomes S(0, batch / count):
    every step has its part of the batch. None: no single dim of `target` has the whole cut.
    """
    length = state.stride or source[state.dim] // count
    inner, after = length * math.prod(source[state.dim + 1 :]), 1
    for dim in reversed(range(len(target))):
        if inner < after * target[dim]:
            stride, rest = divmod(inner, after)
            if rest or target[dim] % (count * stride):
                return None
            return S(dim) if count * stride == target[dim] else S(dim, stride)
        after *= target[dim]
    return None
