"""Ops that join, part or pad tensors along a dim, which is cut within pieces only: linear, no flop."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from autoddl.sbp.rules.maps import dim_names, no_flops
from autoddl.sbp.rules.registry import (
    Array,
    Dims,
    IndexMap,
    Linear,
    LocalOp,
    OpRule,
    OpView,
    linear,
    register,
)

_PIECE = "piece"


def _axis(view: OpView, operand: str, attribute: str = "axis") -> int:
    return int(view.attr[attribute] % len(view.shape[operand]))


def _likes(view: OpView) -> tuple[str, ...]:
    return tuple(name for name in view.inputs if name.startswith("like_"))


def _through_likes(view: OpView) -> tuple[Linear, ...]:
    """Pass P of the first input on; the tensors that only give their shape may all be P, too."""
    source = next(name for name in view.inputs if not name.startswith("like_"))
    likes = " ".join(_likes(view))
    return linear(source), linear(f"{source} {likes}"), linear(f"{likes} ->")


def _within(names: Dims, axis: int) -> Dims:
    return (*names[:axis], _PIECE, *names[axis + 1 :])


def _ends(view: OpView, operands: Iterable[str], axis: int) -> dict[str, int]:
    """Return what divides the lengths of all that is put together or taken apart along a dim."""
    return {_PIECE: math.gcd(*(view.shape[name][axis] for name in operands))}


def _concat_map(view: OpView) -> IndexMap:
    axis = _axis(view, "out_0")
    dims = _within(dim_names(len(view.shape["out_0"])), axis)
    return IndexMap(
        dict.fromkeys(view.inputs + view.outputs, dims),
        linear=(Linear(frozenset(view.inputs)),),
        pieces=_ends(view, view.inputs, axis),
    )


def _concat(op: LocalOp) -> dict[str, Array]:
    parts = [op.inputs[name] for name in op.view.inputs]
    return {"out_0": np.concatenate(parts, axis=op.view.attr["axis"])}


def _split_map(view: OpView) -> IndexMap:
    """Map split_like; the likes may lack trailing dims."""
    axis = _axis(view, "in_0")
    dims = _within(dim_names(len(view.shape["in_0"])), axis)
    likes = {name: dims[: len(view.shape[name])] for name in _likes(view)}
    return IndexMap(
        {"in_0": dims, **likes, **dict.fromkeys(view.outputs, dims)},
        linear=_through_likes(view),
        pieces=_ends(view, view.outputs, axis),
    )


def _split(op: LocalOp) -> dict[str, Array]:
    axis = _axis(op.view, "in_0")
    ends = np.cumsum([op.view.shape[name][axis] for name in op.view.outputs])
    parts = np.split(op.inputs["in_0"], ends[:-1], axis=axis)
    return dict(zip(op.view.outputs, parts, strict=True))


def _stack_map(view: OpView) -> IndexMap:
    names = dim_names(len(view.shape["in_0"]))
    axis = _axis(view, "out_0")
    dims = dict.fromkeys(view.inputs, names) | {"out_0": (*names[:axis], None, *names[axis:])}
    return IndexMap(dims, linear=(Linear(frozenset(view.inputs)),))


def _stack(op: LocalOp) -> dict[str, Array]:
    parts = [op.inputs[name] for name in op.view.inputs]
    return {"out_0": np.stack(parts, axis=op.view.attr["axis"])}


def _stack_grad_map(view: OpView) -> IndexMap:
    names = dim_names(len(view.shape["out_0"]))
    axis = _axis(view, "in_0")
    parts = dict.fromkeys((*_likes(view), *view.outputs), names)
    return IndexMap(
        {"in_0": (*names[:axis], None, *names[axis:]), **parts}, linear=_through_likes(view)
    )


def _stack_grad(op: LocalOp) -> dict[str, Array]:
    parts = np.moveaxis(op.inputs["in_0"], _axis(op.view, "in_0"), 0)
    return dict(zip(op.view.outputs, parts, strict=True))


def _narrow_map(view: OpView) -> IndexMap:
    """Map narrow and its gradient; the dim may be cut if it is taken whole, or within its bounds."""
    whole = view.inputs[0] if "like_0" not in view.inputs else "like_0"
    axis = _axis(view, whole, "dim")
    dims = dim_names(len(view.shape[whole]))
    size, first, length = view.shape[whole][axis], view.attr["start"], view.attr["length"]
    pieces = {}
    if length != size:
        dims, pieces = _within(dims, axis), {_PIECE: math.gcd(size, first, length)}
    passed = _through_likes(view) if _likes(view) else (linear("in_0"),)
    return IndexMap(
        dict.fromkeys(view.inputs + view.outputs, dims),
        linear=passed,
        shape_only=frozenset(_likes(view)),
        pieces=pieces,
    )


def _narrowed(op: LocalOp, part: str) -> tuple[slice, ...]:
    """Return the bounds on a device: of a dim that is cut they shrink as the part that is taken does."""
    axis = _axis(op.view, part, "dim")
    length = op.view.shape[part][axis]
    first = op.view.attr["start"] * length // max(op.view.attr["length"], 1)
    return (*[slice(None)] * axis, slice(first, first + length))


def _narrow(op: LocalOp) -> dict[str, Array]:
    return {"out_0": op.inputs["in_0"][_narrowed(op, "out_0")]}


def _narrow_grad(op: LocalOp) -> dict[str, Array]:
    dx = np.zeros(op.view.shape["dx_0"])
    dx[_narrowed(op, "dy_0")] = op.inputs["dy_0"]
    return {"dx_0": dx}


def _pad_value(view: OpView) -> float:
    return float(view.attr["floating_constant_value"] or view.attr["integral_constant_value"])


def _pad_map(view: OpView) -> IndexMap:
    """Map pad: padded dims stay whole, and only zeros are linear."""
    widths = zip(view.attr["padding_before"], view.attr["padding_after"], strict=True)
    dims = tuple(f"d{i}" if width == (0, 0) else None for i, width in enumerate(widths))
    passed = () if _pad_value(view) else (linear("x_0"),)
    return IndexMap({"x_0": dims, "y_0": dims}, linear=passed)


def _pad(op: LocalOp) -> dict[str, Array]:
    """Pad with a constant; a negative width (in the gradient of pad) crops."""
    x = op.inputs["x_0"]
    before, after = op.view.attr["padding_before"], op.view.attr["padding_after"]
    widths = list(zip(before, after, strict=True))
    kept = tuple(
        slice(max(-first, 0), size - max(-last, 0))
        for size, (first, last) in zip(x.shape, widths, strict=True)
    )
    added = [(max(first, 0), max(last, 0)) for first, last in widths]
    return {"y_0": np.pad(x[kept], added, constant_values=_pad_value(op.view))}


register(
    OpRule("concat", _concat_map, _concat, no_flops, family="memory"),
    OpRule("split_like", _split_map, _split, no_flops, family="memory"),
    OpRule("stack", _stack_map, _stack, no_flops, family="memory"),
    OpRule("stack_grad", _stack_grad_map, _stack_grad, no_flops, family="memory"),
    OpRule("narrow", _narrow_map, _narrow, no_flops, family="memory"),
    OpRule("narrow_grad", _narrow_map, _narrow_grad, no_flops, family="memory"),
    OpRule("pad", _pad_map, _pad, no_flops, family="memory"),
)
