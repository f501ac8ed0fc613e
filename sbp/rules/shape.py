"""Ops that only rearrange elements: no flop, and P passes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from autoddl.errors import RuleError
from autoddl.sbp.rules.maps import align, dim_names, no_flops, reduced_dims, renamed
from autoddl.sbp.rules.registry import (
    Array,
    Dims,
    IndexMap,
    LocalOp,
    OpRule,
    OpView,
    Shape,
    linear,
    register,
)


def matching_leaders(source: Shape, target: Shape) -> tuple[tuple[int, int], ...]:
    """Return the dims of two shapes of equal size that a reshape maps onto each other when cut.

    The shapes fall into shortest groups of consecutive dims with equal products; dims of size 1
    are left out. Cutting the leading dim of a group cuts the flattened group in contiguous pieces
    on both sides; a minor dim would leave strided ones.
    """
    left = [i for i, size in enumerate(source) if size != 1]
    right = [i for i, size in enumerate(target) if size != 1]
    if math.prod(source) != math.prod(target):
        raise RuleError(f"reshape of {source} to {target}: the numbers of elements differ")
    pairs = []
    i = j = 0
    while i < len(left) and j < len(right):
        pairs.append((left[i], right[j]))
        a, b = source[left[i]], target[right[j]]
        i, j = i + 1, j + 1
        while a != b:
            if a < b:
                a, i = a * source[left[i]], i + 1
            else:
                b, j = b * target[right[j]], j + 1
    return tuple(pairs)


def _reshape_map(view: OpView) -> IndexMap:
    source, target = view.shape["in_0"], view.shape["out_0"]
    left: list[str | None] = [None] * len(source)
    right: list[str | None] = [None] * len(target)
    for i, j in matching_leaders(source, target):
        left[i] = right[j] = f"d{i}"
    dims: dict[str, Dims] = {"in_0": tuple(left), "out_0": tuple(right)}
    likes = frozenset({"like_0"} & set(view.inputs))
    dims |= dict.fromkeys(likes, tuple(right))
    flat = frozenset(dims)
    # The same with another label, since an engine may treat 0-d tensors differently.
    group = linear("in_0" if source else "in_0 -> out_0")
    return IndexMap(dims, linear=(group,), shape_only=likes, flat=flat)


def _reshape(op: LocalOp) -> dict[str, Array]:
    return {"out_0": op.inputs["in_0"].reshape(op.view.shape["out_0"])}


def _transpose_map(view: OpView) -> IndexMap:
    names = dim_names(len(view.shape["input_0"]))
    permuted = tuple(names[axis] for axis in view.attr["perm"])
    return IndexMap({"input_0": names, "output_0": permuted}, linear=(linear("input_0"),))


def _transpose(op: LocalOp) -> dict[str, Array]:
    return {"output_0": op.inputs["input_0"].transpose(op.view.attr["perm"])}


def _slice_map(whole: str, part: str) -> Callable[[OpView], IndexMap]:
    """Map a slice (or its gradient): dims are cut that are taken whole, others within their bounds."""

    def indices(view: OpView) -> IndexMap:
        names = _whole_dims(view, whole)
        sizes, attr = view.shape[whole], view.attr
        bounds = zip(attr["start"], attr["stop"], attr["step"], sizes, strict=True)
        pieces = {
            f"p{i}": math.gcd(start, stop, size)
            for i, (start, stop, step, size) in enumerate(bounds)
            if names[i] is None and step == 1 and 0 <= start < stop <= size
        }
        dims = tuple(f"p{i}" if f"p{i}" in pieces else name for i, name in enumerate(names))
        return IndexMap({whole: dims, part: dims}, linear=(linear(view.inputs[0]),), pieces=pieces)

    return indices


def _whole_dims(view: OpView, whole: str) -> Dims:
    """Name the dims that a slice takes whole."""
    sizes, attr = view.shape[whole], view.attr
    bounds = zip(attr["start"], attr["stop"], attr["step"], sizes, strict=True)
    return tuple(
        f"d{i}" if (start, step) == (0, 1) and stop == size else None
        for i, (start, stop, step, size) in enumerate(bounds)
    )


def _slices(op: LocalOp, part: str) -> tuple[slice, ...]:
    """Return the bounds on a device: of a dim that is cut they shrink as the part that is taken does."""
    attr = op.view.attr
    bounds = zip(attr["start"], attr["stop"], attr["step"], op.view.shape[part], strict=True)
    return tuple(
        slice(first * n // max(stop - first, 1), first * n // max(stop - first, 1) + n)
        if step == 1
        else slice(first, stop, step)  # taken whole, or not cut
        for first, stop, step, n in bounds
    )


def _slice(op: LocalOp) -> dict[str, Array]:
    return {"y_0": op.inputs["x_0"][_slices(op, "y_0")]}


def _slice_grad(op: LocalOp) -> dict[str, Array]:
    dx = np.zeros(op.view.shape["dx_0"])
    dx[_slices(op, "dy_0")] = op.inputs["dy_0"]
    return {"dx_0": dx}


def _slice_update_map(view: OpView) -> IndexMap:
    """Map slice_update: of a dim that is replaced in part (named u0, u1, …) only the value stays whole.

    Each device then replaces what lies in its shard.
    """
    value = _whole_dims(view, "ref_0")
    names = tuple(f"u{i}" if name is None else name for i, name in enumerate(value))
    return IndexMap(
        {"ref_0": names, "value_0": value, "y_0": names},
        linear=(linear("ref_0 value_0"),),
        in_order=frozenset(names) - frozenset(value),
    )


def _slice_update(op: LocalOp) -> dict[str, Array]:
    y, value = op.inputs["ref_0"].copy(), op.inputs["value_0"]
    places, parts = [], []
    bounds = zip(op.view.attr["start"], op.view.attr["stop"], op.view.attr["step"], strict=True)
    for i, each in enumerate(bounds):
        at = np.arange(*each)
        if len(at) == value.shape[i]:
            at = at - op.start["ref_0"][i]
        else:  # value is cut, too, so that the dim is replaced as a whole
            at = np.arange(value.shape[i])
        here = (at >= 0) & (at < y.shape[i])
        places.append(at[here])
        parts.append(np.flatnonzero(here))
    y[np.ix_(*places)] = value[np.ix_(*parts)]
    return {"y_0": y}


def _roll_map(view: OpView) -> IndexMap:
    """Map roll: dims that are rolled stay whole."""
    ndim, rolled = len(view.shape["in_0"]), _shifts(view)
    dims = tuple(
        None if rolled is None or i in rolled else name for i, name in enumerate(dim_names(ndim))
    )
    return IndexMap({"in_0": dims, "out_0": dims}, linear=(linear("in_0"),))


def _shifts(view: OpView) -> dict[int, int] | None:
    """Return by how much each dim is rolled; None where all elements are, in one row.

    Dims that begin with -1 stand for no dims at all; other negative ones are ignored.
    """
    dims, shifts = view.attr["dims"], view.attr["shifts"]
    if dims[0] == -1:
        return None
    pairs = zip(reversed(dims), reversed(shifts), strict=True)  # the first of a dim counts
    return {dim: shift for dim, shift in pairs if dim >= 0}


def _roll(op: LocalOp) -> dict[str, Array]:
    x, shifts = op.inputs["in_0"], _shifts(op.view)
    if shifts is None:
        return {"out_0": np.roll(x, op.view.attr["shifts"][0])}
    return {"out_0": np.roll(x, tuple(shifts.values()), axis=tuple(shifts))}


def _expand_map(view: OpView) -> IndexMap:
    """Map expand: a dim along which the input is repeated (named r0, r1, …) is cut on the output."""
    shape = view.shape["out_0"]
    small, names = align(view.shape["in_0"], shape), dim_names(len(shape))
    large = renamed(names, {name for name in names if name not in small})
    return IndexMap({"in_0": small, "out_0": large}, linear=(linear("in_0"),))


def _expand(op: LocalOp) -> dict[str, Array]:
    return {"out_0": np.broadcast_to(op.inputs["in_0"], op.view.shape["out_0"])}


def _broadcast_like_map(view: OpView) -> IndexMap:
    """Map broadcast_like: x is repeated along `broadcast_axes`, where it stays whole."""
    large = view.shape["like_0"]
    names = dim_names(len(large))
    x = reduced_dims(view.shape["x_0"], large, _broadcast_axes(view))
    return IndexMap(
        {"x_0": x, "like_0": names, "y_0": names},
        linear=(linear("x_0"),),
        shape_only=frozenset({"like_0"}),
    )


def _broadcast_axes(view: OpView) -> tuple[int, ...]:
    ndim = len(view.shape["like_0"])
    return tuple(axis % ndim for axis in view.attr["broadcast_axes"])


def _broadcast_like(op: LocalOp) -> dict[str, Array]:
    x, shape = op.inputs["x_0"], op.view.shape["y_0"]
    axes = _broadcast_axes(op.view)
    if x.ndim == len(shape) - len(axes):
        x = np.expand_dims(x, axes)
    return {"y_0": np.broadcast_to(x, shape)}


register(
    *(
        OpRule(name, _reshape_map, _reshape, no_flops, family="memory")
        for name in ("reshape", "reshape_like", "expand_dims", "squeeze")
    ),
    OpRule("transpose", _transpose_map, _transpose, no_flops, family="memory"),
    OpRule("slice", _slice_map("x_0", "y_0"), _slice, no_flops, family="memory"),
    OpRule("slice_grad", _slice_map("dx_0", "dy_0"), _slice_grad, no_flops, family="memory"),
    OpRule("slice_update", _slice_update_map, _slice_update, no_flops, family="memory"),
    OpRule("roll", _roll_map, _roll, no_flops, family="memory"),
    OpRule("expand", _expand_map, _expand, no_flops, family="memory"),
    OpRule("broadcast_like", _broadcast_like_map, _broadcast_like, no_flops, family="memory"),
)
