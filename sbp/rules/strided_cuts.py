"""Cuts with strides: which one-axis signature an op has where an operand is cut so.

A reshape takes a cut of the middle of one dim apart. Of a projection (tokens, 3 · heads · size) that is
read as (tokens, 3, heads, size) the cut S2 of 8 heads of 64 over 4 devices is S(1, 128): each device has
128 columns of each 512. Along a product of matrices, a sum or a gradient it then goes on as it is.

A cut over n devices with stride s begins again after n · s elements, its period; without stride that is
the whole dim. Source: Rhino (seed 004), §4.1 and §4.3.3.
"""

from __future__ import annotations

import math

from autoddl.sbp.rules.registry import (
    IndexMap,
    OpView,
    Shape,
    Signature,
    check_fits,
    cut_along,
    find,
    is_refused,
)
from autoddl.sbp.shards import local_shape
from autoddl.sbp.state import S, Sbp

NOTHING: frozenset[str] = frozenset()


def with_cut(
    view: OpView, operand: str, cut: Sbp, count: int, *, refused: frozenset[str] = NOTHING
) -> Signature | None:
    """Return the signature in which an operand has this cut over `count` devices, or None.

    It is the only one without partial sums in inputs. `refused` has labels as `signatures` has.

    Raises:
        RuleError: the index map does not fit the operands.
    """
    rule = find(view.type)
    if rule is None:
        return None
    imap = rule.indices(view)
    check_fits(view, imap)
    if operand in imap.flat:
        return _through_reshape(view, imap, operand, cut, count)
    index = imap.dims[operand][cut.dim]
    if index is None or index in imap.approximate or is_refused(f"cut {index}", refused):
        return None
    signature = cut_along(view, imap, index)
    if signature is None or (cut.stride is not None and index in imap.in_order):
        return None
    length = view.shape[operand][cut.dim]
    period = length if cut.stride is None else cut.stride * count
    if index in imap.pieces and (imap.pieces[index] % period or period % count):
        return None
    found = {}
    for name, state in signature.items():
        if state.is_split:
            own = view.shape[name][state.dim]
            if own != length and index not in imap.pieces and cut.stride is not None:
                return None
            alone = cut.stride is None and index not in imap.pieces
            state = state if alone or own == period else S(state.dim, period // count)
        found[name] = state
    return found


def every_strided(view: OpView, count: int) -> tuple[Signature, ...]:
    """Return all signatures over `count` devices in which some operand is cut with a stride."""
    found: dict[tuple[Sbp, ...], Signature] = {}
    for operand in view.inputs + view.outputs:
        for dim, length in enumerate(view.shape[operand]):
            periods = [n for n in range(count, length + 1, count) if length % n == 0]
            for cut in [S(dim) if n == length else S(dim, n // count) for n in periods]:
                signature = with_cut(view, operand, cut, count)
                if signature is not None and _has_strides(view, signature, count):
                    found.setdefault(tuple(signature.values()), signature)
    return tuple(found.values())


def _has_strides(view: OpView, signature: Signature, count: int) -> bool:
    """Tell whether there is a cut with a stride, and all cuts are even."""
    even = all(local_shape(view.shape[o], (s,), (count,)) for o, s in signature.items())
    return even and any(s.stride is not None for s in signature.values())


def _through_reshape(
    view: OpView, imap: IndexMap, operand: str, cut: Sbp, count: int
) -> Signature | None:
    found = {}
    for name in view.inputs + view.outputs:
        state = reshaped(cut, view.shape[operand], view.shape[name], count)
        if state is None or name not in imap.flat:
            return None
        found[name] = cut if name == operand else state
    return found


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
