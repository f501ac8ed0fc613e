"""Convolution and pooling: cut the batch; poolings also cut channels.

Channels of a convolution could be cut like the rows and columns of a matrix, and space with halos,
but OneFlow 0.9 accepts only the batch. Layout is channels-first, two spatial dims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from autoddl.sbp.rules.maps import elements, uncut
from autoddl.sbp.rules.registry import (
    Array,
    IndexMap,
    LocalOp,
    OpRule,
    OpView,
    Shape,
    index_map,
    register,
)

_CONV2D = index_map("in_0: n . . ., weight_0: . . . . -> out_0: n . . .")
_DATA_GRAD = index_map("dy_0: n . . ., filter_0: . . . ., x_like_0: n . . . -> dx_0: n . . .")
_FILTER_GRAD = index_map("dy_0: n . . ., x_0: n . . . -> filter_diff_0: . . . .", summed="n")
_MAX_POOL = index_map("x_0: n c . . -> y_0: n c . ., indice_0: n c . .")
_MAX_POOL_GRAD = index_map("x_0: n c . ., indice_0: n c . ., dy_0: n c . . -> dx_0: n c . .")
_AVG_POOL = index_map("x_0: n c . . -> y_0: n c . .")
_AVG_POOL_GRAD = index_map("x_0: n c . ., dy_0: n c . . -> dx_0: n c . .")


def _always(imap: IndexMap) -> Callable[[OpView], IndexMap]:
    """Use one map for every op of a type; optional operands (a fused bias) stay whole."""

    def indices(view: OpView) -> IndexMap:
        extra = [name for name in view.inputs if name not in imap.dims]
        return IndexMap({**imap.dims, **uncut(view, extra)}, imap.summed) if extra else imap

    return indices


class _Windows:
    """Where the windows of a convolution or pooling lie on the padded image."""

    def __init__(
        self, kernel: Shape, count: Shape, *, stride: Shape, padding: Shape, dilation: Shape
    ) -> None:
        """Place `count` windows in each spatial dim."""
        self.kernel, self.padding = kernel, padding
        self._stride, self._dilation, self._count = stride, dilation, count

    @classmethod
    def of_conv(cls, view: OpView, count: Shape) -> _Windows:
        """Read a convolution's attributes."""
        a = view.attr
        return cls(
            a["kernel_size"],
            count,
            stride=a["strides"],
            padding=a["padding_before"],
            dilation=a["dilation_rate"],
        )

    @classmethod
    def of_pool(cls, view: OpView, count: Shape) -> _Windows:
        """Read a pooling's attributes."""
        a = view.attr
        return cls(
            a["kernel_size"],
            count,
            stride=a["stride"],
            padding=a["padding"],
            dilation=a["dilation"],
        )

    def offsets(self) -> Iterator[tuple[int, int, tuple[slice, slice]]]:
        """Yield each kernel position with the padded pixels that it meets, one per window."""
        for r in range(self.kernel[0]):
            for s in range(self.kernel[1]):
                rows, columns = self._along(0, r), self._along(1, s)
                yield r, s, (rows, columns)

    def pad(self, image: Array, value: float = 0.0) -> Array:
        """Return the image inside a frame of `value` that all windows fit into."""
        sizes = [
            max(
                image.shape[2 + i] + self.padding[i],
                self._along(i, self.kernel[i] - 1).stop,
            )
            for i in range(2)
        ]
        framed = np.full((*image.shape[:2], *sizes), value)
        self.inside(framed, image.shape)[...] = image
        return framed

    def inside(self, framed: Array, shape: Shape) -> Array:
        """Return the part of a padded image that is the image of `shape`."""
        top, left = self.padding[0], self.padding[1]
        return framed[:, :, top : top + shape[2], left : left + shape[3]]

    def _along(self, i: int, position: int) -> slice:
        first = position * self._dilation[i]
        return slice(first, first + (self._count[i] - 1) * self._stride[i] + 1, self._stride[i])


def _grouped(x: Array, groups: int, axis: int) -> Array:
    """Split the channel axis into (groups, channels per group)."""
    shape = x.shape
    return x.reshape(*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :])


def _conv2d(op: LocalOp) -> dict[str, Array]:
    shape, groups = op.view.shape["out_0"], op.view.attr["groups"]
    windows = _Windows.of_conv(op.view, shape[2:])
    weight = _grouped(op.inputs["weight_0"], groups, 0)
    image = windows.pad(op.inputs["in_0"])
    out = np.zeros((shape[0], groups, shape[1] // groups, *shape[2:]))
    for r, s, (rows, columns) in windows.offsets():
        pixels = _grouped(image[:, :, rows, columns], groups, 1)
        out += np.einsum("ngchw,gkc->ngkhw", pixels, weight[..., r, s])
    out = out.reshape(shape)
    if "bias_0" in op.inputs:
        out = out + op.inputs["bias_0"].reshape(1, -1, 1, 1)
    return {"out_0": out}


def _data_grad(op: LocalOp) -> dict[str, Array]:
    shape, groups = op.view.shape["dx_0"], op.view.attr["groups"]
    windows = _Windows.of_conv(op.view, op.view.shape["dy_0"][2:])
    weight = _grouped(op.inputs["filter_0"], groups, 0)
    dy = _grouped(op.inputs["dy_0"], groups, 1)
    image = windows.pad(np.zeros(shape))
    for r, s, (rows, columns) in windows.offsets():
        part = np.einsum("ngkhw,gkc->ngchw", dy, weight[..., r, s])
        image[:, :, rows, columns] += part.reshape(shape[0], shape[1], *part.shape[3:])
    return {"dx_0": windows.inside(image, shape)}


def _filter_grad(op: LocalOp) -> dict[str, Array]:
    shape, groups = op.view.shape["filter_diff_0"], op.view.attr["groups"]
    windows = _Windows.of_conv(op.view, op.view.shape["dy_0"][2:])
    dy = _grouped(op.inputs["dy_0"], groups, 1)
    image = windows.pad(op.inputs["x_0"])
    diff = np.zeros(shape)
    for r, s, (rows, columns) in windows.offsets():
        pixels = _grouped(image[:, :, rows, columns], groups, 1)
        part = np.einsum("ngkhw,ngchw->gkc", dy, pixels)
        diff[..., r, s] = part.reshape(shape[:2])
    return {"filter_diff_0": diff}


def _max_pool(op: LocalOp) -> dict[str, Array]:
    """Return maxima and their flat positions in the unpadded plane; the first of equals wins."""
    x, shape = op.inputs["x_0"], op.view.shape["y_0"]
    windows = _Windows.of_pool(op.view, shape[2:])
    image = windows.pad(x, -np.inf)
    height, width = image.shape[2:]
    row = (np.arange(height) - windows.padding[0])[:, None] * x.shape[3]
    position = row + np.arange(width) - windows.padding[1]
    y, indice = np.full(shape, -np.inf), np.zeros(shape, dtype=np.int64)
    for _, _, (rows, columns) in windows.offsets():
        larger = image[:, :, rows, columns] > y
        y = np.where(larger, image[:, :, rows, columns], y)
        indice = np.where(larger, position[rows, columns], indice)
    return {"y_0": y, "indice_0": indice}


def _max_pool_grad(op: LocalOp) -> dict[str, Array]:
    shape = op.view.shape["dx_0"]
    dx = np.zeros((shape[0] * shape[1], shape[2] * shape[3]))
    planes = np.arange(dx.shape[0])[:, None]
    np.add.at(
        dx,
        (planes, op.inputs["indice_0"].reshape(dx.shape[0], -1)),
        op.inputs["dy_0"].reshape(dx.shape[0], -1),
    )
    return {"dx_0": dx.reshape(shape)}


def _bins(size: int, count: int) -> Array:
    """Return the weights (count, size) with which adaptive average pooling mixes a dim."""
    weights = np.zeros((count, size))
    for i in range(count):
        first, end = i * size // count, -(-(i + 1) * size // count)
        weights[i, first:end] = 1 / (end - first)
    return weights


def _avg_pool(op: LocalOp) -> dict[str, Array]:
    x, count = op.inputs["x_0"], op.view.shape["y_0"][2:]
    rows, columns = _bins(x.shape[2], count[0]), _bins(x.shape[3], count[1])
    return {"y_0": np.einsum("nchw,yh,xw->ncyx", x, rows, columns)}


def _avg_pool_grad(op: LocalOp) -> dict[str, Array]:
    dy, shape = op.inputs["dy_0"], op.view.shape["dx_0"]
    rows, columns = _bins(shape[2], dy.shape[2]), _bins(shape[3], dy.shape[3])
    return {"dx_0": np.einsum("ncyx,yh,xw->nchw", dy, rows, columns)}


def _conv_flops(image: str, weight: str) -> Callable[[OpView], float]:
    """Count 2·N·K·H·W·C·R·S / groups: `image` is (N, K, H, W), `weight` (K, C / groups, R, S)."""

    def flops(view: OpView) -> float:
        per_pixel = elements(view.shape[weight]) / view.shape[weight][0]
        return 2 * elements(view.shape[image]) * per_pixel

    return flops


def _max_pool_flops(view: OpView) -> float:
    return elements((*view.shape["y_0"], *view.attr["kernel_size"]))


def _pixel(view: OpView, operand: str, rng: np.random.Generator) -> Array:
    """Draw flat positions in the plane of x."""
    return rng.integers(0, view.shape["x_0"][2] * view.shape["x_0"][3], view.shape[operand])


def _input_flops(operand: str) -> Callable[[OpView], float]:
    return lambda view: elements(view.shape[operand])


_FLOPS = {
    "conv2d": _conv_flops("out_0", "weight_0"),
    "conv_data_grad": _conv_flops("dy_0", "filter_0"),
    "conv_filter_grad": _conv_flops("dy_0", "filter_diff_0"),
}
register(
    OpRule("conv2d", _always(_CONV2D), _conv2d, _FLOPS["conv2d"], family="conv"),
    OpRule(
        "conv_data_grad", _always(_DATA_GRAD), _data_grad, _FLOPS["conv_data_grad"], family="conv"
    ),
    OpRule(
        "conv_filter_grad",
        _always(_FILTER_GRAD),
        _filter_grad,
        _FLOPS["conv_filter_grad"],
        family="conv",
    ),
    OpRule("max_pool_2d", _always(_MAX_POOL), _max_pool, _max_pool_flops, family="reduction"),
    OpRule(
        "max_pool_2d_grad",
        _always(_MAX_POOL_GRAD),
        _max_pool_grad,
        _input_flops("dy_0"),
        family="reduction",
        samplers={"indice_0": _pixel},
    ),
    OpRule(
        "adaptive_avg_pool2d",
        _always(_AVG_POOL),
        _avg_pool,
        _input_flops("x_0"),
        family="reduction",
    ),
    OpRule(
        "adaptive_avg_pool2d_grad",
        _always(_AVG_POOL_GRAD),
        _avg_pool_grad,
        _input_flops("dx_0"),
        family="reduction",
    ),
)
