"""Windows laid out in a dim of their own (unfold), or added up (fold): each is the other's gradient.

unfold turns images (n, c, h, w) into columns (n, c·k, l): for each of the l places of the kernel the
k pixels that it covers, of each channel. Batch and channels may be cut. unfold_tensor slides along one
dim of any tensor and appends a dim with the window; windows that lie side by side may be cut apart.
"""

from __future__ import annotations

import numpy as np

from autoddl.sbp.rules.maps import dim_names, elements, no_flops, uncut
from autoddl.sbp.rules.registry import (
    Array,
    IndexMap,
    LocalOp,
    OpRule,
    OpView,
    Shape,
    linear,
    register,
)
from autoddl.sbp.rules.windows import Windows, channels_last, last


def _map(view: OpView) -> IndexMap:
    """Map fold and unfold; where channels come last nothing is cut."""
    dims = uncut(view, ("x_0", "y_0"))
    if not channels_last(view):
        dims = {name: ("n", "c", *others[2:]) for name, others in dims.items()}
    return IndexMap(dims, linear=(linear("x_0"),))


def _windows(view: OpView, image: Shape) -> tuple[Windows, Shape]:
    """Return the windows on images of this shape, and how many there are along each dim."""
    a = view.attr
    windows = Windows(a["kernel_size"], a["strides"], a["padding"], a["dilation_rate"])
    counts = tuple(
        (size + 2 * windows.padding[i] - windows.extent(i)) // windows.stride[i] + 1
        for i, size in enumerate(image[2:])
    )
    return windows, counts


def _unfold(op: LocalOp) -> dict[str, Array]:
    x = op.inputs["x_0"]
    windows, counts = _windows(op.view, x.shape)
    image = windows.pad(x, counts)
    pixels = [image[last(place)] for _, place in windows.positions(counts)]
    batch, channels = x.shape[:2]
    columns = np.stack(pixels, axis=2)
    return {"y_0": columns.reshape(batch, channels * len(pixels), int(np.prod(counts)))}


def _fold(op: LocalOp) -> dict[str, Array]:
    shape = op.view.shape["y_0"]
    windows, counts = _windows(op.view, shape)
    image = windows.pad(np.zeros(shape), counts)
    columns = op.inputs["x_0"].reshape(*shape[:2], -1, *counts)
    for number, (_, place) in enumerate(windows.positions(counts)):
        image[last(place)] += columns[:, :, number]
    return {"y_0": windows.inside(image, shape)}


def _along(view: OpView, whole: str, windows: str) -> IndexMap:
    """Map unfold_tensor or its gradient, given the names of the tensor and of its windows."""
    names = list(dim_names(len(view.shape[whole])))
    dim, size, step = (view.attr[name] for name in ("dimension", "size", "step"))
    if names:
        apart = size <= step and view.shape[whole][dim] == view.shape[windows][dim] * step
        names[dim] = f"w{dim}" if apart else None
    dims = dict.fromkeys(view.inputs + view.outputs, tuple(names)) | {windows: (*names, None)}
    likes = frozenset({"x_0"} if whole == "dx_0" else ())
    return IndexMap(dims, linear=(linear(view.inputs[0]),), shape_only=likes)


def _starts(view: OpView, size: int) -> range:
    """Return where the windows begin in a dim of this size."""
    return range(0, size - view.attr["size"] + 1, view.attr["step"])


def _unfold_tensor(op: LocalOp) -> dict[str, Array]:
    x, dim = op.inputs["x_0"], op.view.attr["dimension"]
    at = np.add.outer(_starts(op.view, x.shape[dim]), np.arange(op.view.attr["size"]))
    return {"y_0": np.moveaxis(x.take(at, axis=dim), dim + 1, -1)}


def _unfold_tensor_grad(op: LocalOp) -> dict[str, Array]:
    dx, dim = np.zeros(op.view.shape["dx_0"]), op.view.attr["dimension"]
    rows, dy = np.moveaxis(dx, dim, 0), np.moveaxis(op.inputs["dy_0"], dim, 0)
    for first, window in zip(_starts(op.view, len(rows)), dy, strict=True):
        rows[first : first + op.view.attr["size"]] += np.moveaxis(window, -1, 0)
    return {"dx_0": dx}


register(
    OpRule("unfold", _map, _unfold, no_flops, family="memory"),
    OpRule("fold", _map, _fold, lambda view: elements(view.shape["x_0"])),
    OpRule(
        "unfold_tensor",
        lambda view: _along(view, "x_0", "y_0"),
        _unfold_tensor,
        no_flops,
        family="memory",
    ),
    OpRule(
        "unfold_tensor_grad",
        lambda view: _along(view, "dx_0", "dy_0"),
        _unfold_tensor_grad,
        lambda view: elements(view.shape["dy_0"]),
    ),
)
