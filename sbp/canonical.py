"""The canonical form of a state: one name for all states that give every device the same elements.

A cut takes one digit of the index, written in mixed radix: a split of 24 over 2 and then 3 devices takes
the digits of weight 12 and 4. Which digit an axis takes is what matters; the order of the cuts and
their strides are two ways to say it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence

from autoddl.sbp.shards import check_state, local_shape
from autoddl.sbp.shares import Cuts, Shares, places
from autoddl.sbp.state import B, NdSbp, S, Sbp, axis_states, ordered


def canonical(state: NdSbp, shape: Sequence[int], mesh: Cuts) -> NdSbp:
    """Return the state that stands for all that hold the same elements on every device.

    Axes of one device are B; a split is written without stride where the order of the cuts alone can
    say it, else in the mesh's order with strides (strides that fall across each other's turns are
    kept as they are). Cuts by shares take no digits, and have no strides: they stay as they are.

    Raises:
        AutoDDLError: a tensor of this shape can't be in that state.
    """
    check_state(state, shape, mesh)
    sizes = [places(cut) for cut in mesh]
    by_shares = {sbp.dim for sbp, cut in zip(state, mesh, strict=True) if isinstance(cut, Shares)}
    result = [sbp if size > 1 else B for sbp, size in zip(state, sizes, strict=True)]
    for dim in sorted({sbp.dim for sbp in result if sbp.is_split} - by_shares):
        axes = [i for i in state.cutting(dim) if sizes[i] > 1]
        left = shape[dim]
        for i in axes:
            left //= sizes[i]
            if result[i].stride == left:  # one piece per device
                result[i] = S(dim).later(result[i].turn)
        if any(result[i].stride is not None for i in axes):
            weights = _weights(axes, result, shape[dim], sizes)
            if weights is not None:
                _rewrite(result, dim, weights, shape[dim], sizes)
    return NdSbp(result)


def _weights(
    axes: Sequence[int], state: Sequence[Sbp], length: int, mesh: Sequence[int]
) -> dict[int, int] | None:
    """Return the weight of the digit that each axis takes, or None where a cut takes no digit.

    `free` lists the (weight, radix) of the digits not yet taken, the heaviest first.
    """
    free, weights = [(1, length)], {}
    for axis in axes:
        left = math.prod(radix for _, radix in free)
        stride = state[axis].stride or left // mesh[axis]
        below = 1
        for i in reversed(range(len(free))):
            weight, radix = free[i]
            if below * radix > stride:
                break
            below *= radix
        low, rest = divmod(stride, below)
        if rest or radix % (low * mesh[axis]):
            return None
        weights[axis] = weight * low
        high = radix // (low * mesh[axis])
        split = [(weights[axis] * mesh[axis], high), (weight, low)]
        free[i : i + 1] = [(w, r) for w, r in split if r > 1]
        free = free or [(1, 1)]
    return weights


def _rewrite(
    state: list[Sbp], dim: int, weights: dict[int, int], length: int, mesh: Sequence[int]
) -> None:
    """Write the digits of one dim in their canonical form."""
    heavy_first = sorted(weights, key=lambda axis: -weights[axis])
    expected = length
    for axis in heavy_first:
        expected //= mesh[axis]
        if weights[axis] != expected:
            break
    else:
        others = [i for i in range(len(state)) if i not in weights]
        plain = [S(dim) if i in weights else B for i in range(len(state))]
        for axis, sbp in enumerate(ordered(plain, [*heavy_first, *others])):
            if axis in weights:
                state[axis] = sbp
        return
    left = length
    for axis in sorted(weights):
        earlier = [mesh[i] for i in weights if i < axis and weights[i] < weights[axis]]
        stride = weights[axis] // math.prod(earlier)
        state[axis] = S(dim) if stride == left // mesh[axis] else S(dim, stride)
        left //= mesh[axis]


def joined(cuts: Sequence[Sbp], shape: Sequence[int], mesh: Cuts) -> NdSbp | None:
    """Return the state in which each axis cuts as it would do alone, None where they don't go together.

    Axes whose cuts begin again after the same period part its elements one after the other: 16 elements
    by S(0, 4) over 2 and by S(0, 4) over 2 are (S(0, 4), S(0, 2)), like plain cuts S0 and S0 of each 8.
    """
    sizes = [places(cut) for cut in mesh]
    result = [sbp if size > 1 else B for sbp, size in zip(cuts, sizes, strict=True)]
    for dim in {sbp.dim for sbp in result if sbp.stride is not None}:
        axes = NdSbp(result).cutting(dim)
        if any(isinstance(mesh[axis], Shares) for axis in axes):
            return None
        weights, left = dict[int, int](), dict[int, int]()
        for axis in axes:
            stride = result[axis].stride
            period = shape[dim] if stride is None else stride * sizes[axis]
            weights[axis], rest = divmod(left.get(period, period), sizes[axis])
            if rest or not weights[axis]:
                return None
            left[period] = weights[axis]
        above = shape[dim]
        for axis in sorted(axes, key=lambda axis: -weights[axis]):
            if above % (weights[axis] * sizes[axis]):
                return None
            above = weights[axis]
        _rewrite(result, dim, weights, shape[dim], sizes)
    state = NdSbp(result)
    return None if local_shape(shape, state, mesh) is None else state


def apart(state: NdSbp, shape: Sequence[int], mesh: Cuts) -> tuple[Sbp, ...] | None:
    """Return how each axis of a canonical state cuts alone, of which `joined` makes it; None for none.

    Of (S(0, 4), S(0, 2)) over 2x2 devices the second goes on within 8 elements, as S(0, 4) alone does.
    """
    sizes = [places(cut) for cut in mesh]
    result = [sbp.later(0) if sbp.is_split else sbp for sbp in state]
    for dim in {sbp.dim for sbp in state if sbp.stride is not None}:
        weights = _weights(state.cutting(dim), state, shape[dim], sizes)
        if weights is None:
            return None
        period = above = 0
        for axis in sorted(weights, key=lambda axis: -weights[axis]):
            top = weights[axis] * sizes[axis]
            period, above = period if top == above else top, weights[axis]
            result[axis] = S(dim) if period == shape[dim] else S(dim, period // sizes[axis])
    return tuple(result)


def strided_states(
    shape: Sequence[int], mesh: Cuts, strided: Sequence[Collection[Sbp]], *,
    partial: bool = True, own: bool = False, any_order: bool = False,
) -> Iterator[NdSbp]:  # fmt: skip
    """Yield the states that have these cuts with strides along the axes, beside plain ones; each once.

    Axes cut in the mesh's order, but for what without strides has another one, if `any_order`.
    """
    plain = axis_states(len(shape), partial=partial, own=own)
    options = [
        (*plain, *some) if places(cut) > 1 else (B,)
        for cut, some in zip(mesh, strided, strict=True)
    ]
    found = dict.fromkeys(
        joined(combo, shape, mesh)
        for combo in itertools.product(*options)
        if any(sbp.stride is not None for sbp in combo)
    )
    for state in found:
        if state is None or all(sbp.stride is None and not sbp.turn for sbp in state):
            continue
        if any_order or not any(sbp.turn for sbp in state):
            yield state
