"""Average poolings, upsamplings, paddings with pixels: linear maps that mix each spatial dim by itself.

Each spatial dim has a matrix (outputs, inputs) of weights; the gradient uses its transpose. Batch and
channels may be cut, and a spatial dim where equal parts of the output need just the same parts of the
input, weighed as if they were the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autoddl.sbp.rules.maps import elements, no_flops
from autoddl.sbp.rules.registry import Array, IndexMap, LocalOp, OpRule, OpView, linear, register
from autoddl.sbp.rules.windows import Windows, channels_first, image_dims, space_of

# The attributes that scale the last spatial dims of an upsampling, outermost first.
SCALES = ("depth_scale", "height_scale", "width_scale")
CUBIC_SHARPNESS = -0.75


@dataclass(frozen=True)
class Resampling:
    """How a kind of op mixes one spatial dim.

    `weights(view, i, size, count)` is the matrix (count, size) of spatial dim i, and `aligned` of the
    same arguments says whether the dim may be cut. `divisor` divides the whole result.
    """

    weights: Callable[[OpView, int, int, int], Array]
    aligned: Callable[[OpView, int, int, int], bool]
    divisor: Callable[[OpView], float] = lambda view: 1.0


def _window_weights(view: OpView, i: int, size: int, count: int) -> Array:
    """Weigh the pixels of each window of an average pooling alike.

    A window counts its pixels inside the image, or also those in the padding, but never those that
    `ceil_mode` adds beyond.
    """
    windows, attr = Windows.of_pool(view), view.attr
    weights = np.zeros((count, size))
    for j in range(count):
        first = j * windows.stride[i] - windows.padding[i]
        end = min(first + windows.kernel[i], size + windows.padding[i])
        inside = slice(max(first, 0), min(end, size))
        counted = end - first if attr["count_include_pad"] else inside.stop - inside.start
        weights[j, inside] = 1 if attr["divisor_override"] else 1 / max(counted, 1)
    return weights


def _window_aligned(view: OpView, i: int, size: int, count: int) -> bool:
    return Windows.of_pool(view).tiles(i, size, count)


def _bins(view: OpView, i: int, size: int, count: int) -> Array:
    """Weigh the pixels of each bin of an adaptive pooling alike."""
    weights = np.zeros((count, size))
    for j in range(count):
        first, end = j * size // count, -(-(j + 1) * size // count)
        weights[j, first:end] = 1 / (end - first)
    return weights


def _always(view: OpView, i: int, size: int, count: int) -> bool:
    """Say yes: bin j starts at pixel ⌊j·size/count⌋, and an even cut divides both sizes."""
    return True


def _scale(view: OpView, i: int, size: int, count: int) -> float:
    """Return outputs per input, as the user gave it or as the sizes have it."""
    ndim = len(space_of(view, view.inputs[0]))
    name = "scale_factor" if ndim == 1 else SCALES[i - ndim]
    return count / size if view.attr["output_size"] else float(view.attr[name])


def _source(view: OpView, i: int, size: int, count: int) -> Array:
    """Return where each output pixel lies among the input pixels (not clipped)."""
    outputs = np.arange(count)
    if view.attr["align_corners"]:
        return np.asarray(outputs * ((size - 1) / (count - 1) if count > 1 else 0.0))
    return np.asarray((outputs + 0.5) / _scale(view, i, size, count) - 0.5)


def _nearest(view: OpView, i: int, size: int, count: int) -> Array:
    source = np.arange(count) * np.float32(1 / _scale(view, i, size, count))
    return np.asarray(np.eye(size)[np.minimum(np.floor(source).astype(int), size - 1)])


def _nearest_aligned(view: OpView, i: int, size: int, count: int) -> bool:
    """Pixel j repeats ⌊j·size/count⌋, as with bins, if that is the scale."""
    return _scale(view, i, size, count) == count / size


def _linear(view: OpView, i: int, size: int, count: int) -> Array:
    source = np.maximum(_source(view, i, size, count), 0)
    left = np.minimum(source.astype(int), size - 1)
    lerp = (source - left)[:, None]
    right = np.minimum(left + 1, size - 1)
    return np.asarray((1 - lerp) * np.eye(size)[left] + lerp * np.eye(size)[right])


def _linear_aligned(view: OpView, i: int, size: int, count: int) -> bool:
    """A pixel between two neighbours stays inside its part where the image does not grow."""
    same = _scale(view, i, size, count) == count / size
    return not view.attr["align_corners"] and size >= count and same


def _cubic(view: OpView, i: int, size: int, count: int) -> Array:
    """Weigh four neighbours by cubic convolution; those outside are the pixel at the edge."""
    source = _source(view, i, size, count)
    left = np.floor(source).astype(int)
    weights = np.zeros((count, size))
    for offset in range(-1, 3):
        pixel = np.clip(left + offset, 0, size - 1)
        np.add.at(weights, (np.arange(count), pixel), _cubic_weight(source - left - offset))
    return weights


def _cubic_weight(distance: Array) -> Array:
    a, d = CUBIC_SHARPNESS, np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, far)


def _added_before(view: OpView, i: int) -> int:
    """Return how many pixels are added before those of a dim; the attribute has the last dim first."""
    widths = view.attr["padding"]
    return int(widths[len(widths) - 2 * i - 2])


def _reflected(view: OpView, i: int, size: int, count: int) -> Array:
    pixel = np.abs(np.arange(count) - _added_before(view, i))
    return np.asarray(np.eye(size)[size - 1 - np.abs(size - 1 - pixel)])


def _replicated(view: OpView, i: int, size: int, count: int) -> Array:
    pixel = np.arange(count) - _added_before(view, i)
    return np.asarray(np.eye(size)[np.clip(pixel, 0, size - 1)])


def _unpadded(view: OpView, i: int, size: int, count: int) -> bool:
    return size == count


def _never(view: OpView, i: int, size: int, count: int) -> bool:
    return False


def _indices(kind: Resampling, small: str, large: str) -> Callable[[OpView], IndexMap]:
    """Map an op; `small` and `large` name the images before and after the forward op."""

    def indices(view: OpView) -> IndexMap:
        pairs = enumerate(zip(space_of(view, small), space_of(view, large), strict=True))
        space = [f"s{i}" if kind.aligned(view, i, *pair) else None for i, pair in pairs]
        dims = dict.fromkeys(view.inputs + view.outputs, image_dims(view, "c", space))
        backward = view.outputs == ("dx_0",)
        return IndexMap(
            dims,
            linear=(linear("dy_0" if backward else "x_0"),),
            shape_only=frozenset({"x_0"} & set(view.inputs) if backward else ()),
        )

    return indices


def _mixed(image: Array, matrices: list[Array]) -> Array:
    """Apply one matrix to each spatial dim."""
    for i, matrix in enumerate(matrices):
        image = np.moveaxis(np.tensordot(matrix, image, axes=(1, i + 2)), 0, i + 2)
    return image


def _forward(kind: Resampling) -> Callable[[LocalOp], dict[str, Array]]:
    def reference(op: LocalOp) -> dict[str, Array]:
        x, counts = op.inputs["x_0"], op.view.shape["y_0"][2:]
        matrices = [
            kind.weights(op.view, i, *pair)
            for i, pair in enumerate(zip(x.shape[2:], counts, strict=True))
        ]
        return {"y_0": _mixed(x, matrices) / kind.divisor(op.view)}

    return channels_first(reference)


def _backward(kind: Resampling) -> Callable[[LocalOp], dict[str, Array]]:
    def reference(op: LocalOp) -> dict[str, Array]:
        dy, sizes = op.inputs["dy_0"], op.view.shape["dx_0"][2:]
        matrices = [
            kind.weights(op.view, i, *pair).T
            for i, pair in enumerate(zip(sizes, dy.shape[2:], strict=True))
        ]
        return {"dx_0": _mixed(dy, matrices) / kind.divisor(op.view)}

    return channels_first(reference)


def _rules(op_type: str, kind: Resampling, *, taps: int = 1, pooling: bool = False) -> list[OpRule]:
    """Return the rules of an op and its gradient; an output pixel mixes `taps` inputs.

    Poolings count each input pixel once instead.
    """
    forward, backward = "x_0" if pooling else "y_0", "dx_0" if pooling else "dy_0"
    family = "reduction" if pooling else "elementwise"
    copies = taps == 1 and not pooling
    return [
        OpRule(
            op_type,
            _indices(kind, "x_0", "y_0"),
            _forward(kind),
            no_flops if copies else lambda view: taps * elements(view.shape[forward]),
            family="memory" if copies else family,
        ),
        OpRule(
            f"{op_type}_grad",
            _indices(kind, "dx_0", "dy_0"),
            _backward(kind),
            lambda view: taps * elements(view.shape[backward]),
            family=family,
        ),
    ]


def _divisor_override(view: OpView) -> float:
    return float(view.attr["divisor_override"] or 1)


AVERAGE = Resampling(_window_weights, _window_aligned, _divisor_override)
ADAPTIVE = Resampling(_bins, _always)
NEAREST = Resampling(_nearest, _nearest_aligned)
LINEAR = Resampling(_linear, _linear_aligned)
CUBIC = Resampling(_cubic, _never)
REFLECTION = Resampling(_reflected, _unpadded)
REPLICATION = Resampling(_replicated, _unpadded)

for _d in (1, 2, 3):
    register(
        *_rules(f"avg_pool_{_d}d", AVERAGE, pooling=True),
        *_rules(f"adaptive_avg_pool{_d}d", ADAPTIVE, pooling=True),
        *_rules(f"upsample_nearest_{_d}d", NEAREST),
    )
register(
    *_rules("reflection_pad1d", REFLECTION),
    *_rules("reflection_pad2d", REFLECTION),
    *_rules("replication_pad1d", REPLICATION),
    *_rules("replication_pad2d", REPLICATION),
    *_rules("upsample_linear_1d", LINEAR, taps=2),
    *_rules("upsample_bilinear_2d", LINEAR, taps=4),
    *_rules("upsample_trilinear_3d", LINEAR, taps=8),
    *_rules("upsample_bicubic_2d", CUBIC, taps=16),
)
