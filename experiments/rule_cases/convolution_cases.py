"""Cases of convolutions, poolings, resamplings, batch normalisation, and joining and parting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autoddl.sbp.rules.registry import OpView
from experiments.rule_cases.reading import case, each

# Kernel, stride and padding, the same in all dims.
_SAME, _POINT, _WIDE, _PATCH = (3, 1, 1), (1, 1, 0), (3, 2, 1), (2, 2, 0)
_LAST: dict[str, Any] = {"data_format": "channels_last"}


def _spread(text: str, **sizes: int) -> dict[str, tuple[int, ...]]:
    """Return these sizes for every dim of the images of a case."""
    view = case("", text)
    return {name: (n,) * (len(view.shape[view.inputs[0]]) - 2) for name, n in sizes.items()}


def _conv(
    op_type: str, text: str, window: tuple[int, int, int], *, dilation: int = 1, **more: Any
) -> OpView:
    kernel, stride, padding = window
    sizes = _spread(
        text, kernel_size=kernel, strides=stride, padding_before=padding, dilation_rate=dilation
    )
    attrs = {**sizes, "groups": 1, "data_format": "channels_first", **more}
    return case(op_type, text, **attrs)


def _pool(op_type: str, text: str, window: tuple[int, int, int], **more: Any) -> OpView:
    kernel, stride, padding = window
    sizes = _spread(text, kernel_size=kernel, stride=stride, padding=padding)
    attrs = {**sizes, "ceil_mode": False, "data_format": "channels_first", **more}
    return case(op_type, text, **attrs)


def _max_pool(op_type: str, text: str, window: tuple[int, int, int], **more: Any) -> OpView:
    return _pool(op_type, text, window, **_spread(text, dilation=1), **more)


def _avg_pool(
    dims: int, x: str, y: str, window: tuple[int, int, int], *, counts_padding: bool = True,
    divisor: int = 0, **more: Any,
) -> Sequence[OpView]:  # fmt: skip
    """Return the pooling of x to y and its gradient."""
    more |= {"count_include_pad": counts_padding, "divisor_override": divisor}
    texts = {"": f"x: {x} -> y: {y}", "_grad": f"dy: {y}, x: {x} -> dx: {x}"}
    return [_pool(f"avg_pool_{dims}d{end}", text, window, **more) for end, text in texts.items()]


def _resampled(kind: str, x: str, y: str, *scales: float, **more: Any) -> Sequence[OpView]:
    """Return an upsampling and its gradient; all but the nearest one interpolate."""
    names = ("depth_scale", "height_scale", "width_scale")[-len(scales) :]
    attrs: dict[str, Any] = {"output_size": (), "data_format": "channels_first"}
    attrs |= zip(names if len(scales) > 1 else ("scale_factor",), scales, strict=True)
    if not kind.startswith("nearest"):
        attrs["align_corners"] = False
    attrs |= more
    return (
        case(f"upsample_{kind}", f"x: {x} -> y: {y}", **attrs),
        case(f"upsample_{kind}_grad", f"dy: {y}, x: {x} -> dx: {x}", **attrs),
    )


CONVOLUTIONS: tuple[OpView, ...] = (
    _conv("conv2d", "in: 4 4 5 6, weight: 8 4 3 3 -> out: 4 8 5 6", _SAME),
    _conv("conv2d", "in: 4 12 7 8, weight: 24 4 2 2, bias: 24 -> out: 4 24 4 4", (2, 2, 1),
          dilation=2, groups=3),
    _conv("conv_data_grad", "dy: 4 24 4 4, filter: 24 4 2 2, x_like: 4 12 7 8 -> dx: 4 12 7 8",
          (2, 2, 1), dilation=2, groups=3),
    _conv("conv_filter_grad", "dy: 4 24 4 4, x: 4 12 7 8 -> filter_diff: 24 4 2 2", (2, 2, 1),
          dilation=2, groups=3),
    _conv("conv1d", "in: 4 8 8, weight: 12 8 3 -> out: 4 12 4", _WIDE),
    _conv("conv2d", "in: 4 8 4 8, weight: 12 8 1 1 -> out: 4 12 4 8", _POINT),
    _conv("conv2d", "in: 4 4 8 16, weight: 8 4 2 2 -> out: 4 8 4 8", _PATCH),
    _conv("conv2d", "in: 4 12 5 6, weight: 24 4 3 3, bias: 24 -> out: 4 24 3 3", _WIDE, groups=3),
    _conv("conv2d", "in: 4 4 5 6, weight: 8 1 3 3, bias: 8 -> out: 4 8 3 3", _WIDE, groups=4),
    _conv("conv2d", "in: 4 5 6 8, weight: 12 3 3 8 -> out: 4 3 3 12", _WIDE, **_LAST),
    _conv("conv3d", "in: 4 4 3 4 5, weight: 8 4 3 3 3 -> out: 4 8 2 2 3", _WIDE),
    _conv("deconv1d", "in: 4 8 4, weight: 8 12 3 -> out: 4 12 7", _WIDE),
    _conv("deconv2d", "in: 4 8 4 4, weight: 8 4 2 2 -> out: 4 4 8 8", _PATCH,
          output_padding=(0, 0)),
    _conv("deconv2d", "in: 4 12 3 3, weight: 12 8 3 3 -> out: 4 24 6 6", _WIDE,
          output_padding=(1, 1), groups=3),
    _conv("deconv2d", "in: 4 8 3 3, weight: 8 1 3 3 -> out: 4 4 5 5", _WIDE,
          output_padding=(0, 0), groups=4),
    _conv("deconv3d", "in: 4 8 2 2 3, weight: 8 4 3 3 3 -> out: 4 4 3 3 5", _WIDE,
          output_padding=(0, 0, 0)),
    _conv("conv_data_grad", "dy: 4 12 4, filter: 12 8 3, x_like: 4 8 8 -> dx: 4 8 8", _WIDE),
    _conv("conv_data_grad", "dy: 4 12 4 8, filter: 12 8 1 1, x_like: 4 8 4 8 -> dx: 4 8 4 8",
          _POINT),
    _conv("conv_data_grad", "dy: 4 8 3 3, filter: 8 1 3 3, x_like: 4 4 5 6 -> dx: 4 4 5 6", _WIDE,
          groups=4),
    _conv("conv_filter_grad", "dy: 4 12 4, x: 4 8 8 -> filter_diff: 12 8 3", _WIDE),
    _conv("conv_filter_grad", "dy: 4 12 4 8, x: 4 8 4 8 -> filter_diff: 12 8 1 1", _POINT),
    _conv("conv_filter_grad", "dy: 4 8 3 3, x: 4 4 5 6 -> filter_diff: 8 1 3 3", _WIDE, groups=4),
)  # fmt: skip

_NO_INDEX = {"return_indices": False}

_MAX_POOLINGS: tuple[OpView, ...] = (
    _max_pool("max_pool_2d", "x: 4 8 4 8 -> y: 4 8 2 4, indice: 4 8 2 4", _PATCH),
    _max_pool("max_pool_2d", "x: 4 8 5 6 -> y: 4 8 3 3, indice: 4 8 3 3", _WIDE),
    _max_pool("max_pool_2d_grad", "x: 4 8 5 6, indice: 4 8 3 3, dy: 4 8 3 3 -> dx: 4 8 5 6", _WIDE),
    _max_pool("max_pool_1d", "x: 4 8 8 -> indice: 4 8 4, y: 4 8 4", _WIDE, **_NO_INDEX),
    _max_pool("max_pool_2d", "x: 4 5 6 8 -> indice: 4 3 3 8, y: 4 3 3 8", _WIDE, **_NO_INDEX, **_LAST),
    _max_pool("max_pool_3d", "x: 4 4 3 4 5 -> indice: 4 4 2 2 3, y: 4 4 2 2 3", _WIDE, **_NO_INDEX),
    _max_pool("max_pool_1d_grad", "dy: 4 8 4, indice: 4 8 4, x: 4 8 8 -> dx: 4 8 8", _WIDE, **_NO_INDEX),
    _max_pool("max_pool_3d_grad",
              "dy: 4 4 2 2 3, indice: 4 4 2 2 3, x: 4 4 3 4 5 -> dx: 4 4 3 4 5", _WIDE, **_NO_INDEX),
)  # fmt: skip


def _adaptive(dims: int, x: str, y: str) -> Sequence[OpView]:
    size = tuple(map(int, y.split()[2:]))
    return (
        case(f"adaptive_max_pool{dims}d", f"x: {x} -> index: {y}, y: {y}", output_size=size),
        case(f"adaptive_max_pool{dims}d_grad", f"dy: {y}, index: {y}, x: {x} -> dx: {x}"),
        case(f"adaptive_avg_pool{dims}d", f"x: {x} -> y: {y}", output_size=size),
        case(f"adaptive_avg_pool{dims}d_grad", f"dy: {y}, x: {x} -> dx: {x}", output_size=()),
    )


POOLINGS: tuple[OpView, ...] = (
    *_MAX_POOLINGS,
    case("adaptive_avg_pool2d", "x: 4 8 4 5 -> y: 4 8 2 3", output_size=(2, 3)),
    case("adaptive_avg_pool2d_grad", "x: 4 8 4 5, dy: 4 8 2 3 -> dx: 4 8 4 5", output_size=()),
    *_adaptive(1, "4 8 8", "4 8 4"),
    *_adaptive(2, "4 8 4 5", "4 8 2 3"),
    *_adaptive(3, "4 8 4 2 5", "4 8 2 4 3"),
    *_avg_pool(1, "4 8 8", "4 8 5", _WIDE, counts_padding=False, ceil_mode=True),
    *_avg_pool(2, "4 8 8 16", "4 8 4 8", _PATCH),
    _avg_pool(2, "4 8 5 6", "4 8 3 3", _WIDE, divisor=5)[0],
    *_avg_pool(3, "4 4 3 4 5", "4 4 2 2 3", _WIDE),
)

UPSAMPLINGS: tuple[OpView, ...] = (
    *_resampled("nearest_1d", "4 8 4", "4 8 8", 2.0),
    *_resampled("nearest_2d", "4 8 4 4", "4 8 8 12", 2.0, 3.0),
    _resampled("nearest_2d", "4 8 4 8", "4 8 6 4", 1.5, 0.5, output_size=(6, 4))[0],
    *_resampled("nearest_3d", "4 4 4 2 3", "4 4 8 4 6", 2.0, 2.0, 2.0),
    *_resampled("linear_1d", "4 8 4", "4 8 8", 2.0),
    *_resampled("bilinear_2d", "4 8 4 12", "4 8 8 4", 2.0, 1 / 3),
    _resampled("bilinear_2d", "4 8 4 8", "4 8 6 4", 1.5, 0.5, align_corners=True)[0],
    _resampled("bilinear_2d", "4 8 12 4", "4 8 8 4", 2 / 3, 1.0)[0],
    *_resampled("bicubic_2d", "4 8 4 5", "4 8 8 10", 2.0, 2.0),
    *_resampled("trilinear_3d", "4 4 4 2 3", "4 4 8 4 6", 2.0, 2.0, 2.0),
)

_ROW, _IMAGE = {"padding": (1, 3)}, {"padding": (1, 3, 0, 0)}

PADDINGS: tuple[OpView, ...] = (
    *each("reflection_pad1d replication_pad1d", "x: 4 8 4 -> y: 4 8 8", **_ROW),
    *each("reflection_pad1d_grad replication_pad1d_grad", "dy: 4 8 8 -> dx: 4 8 4", **_ROW),
    *each("reflection_pad2d replication_pad2d", "x: 4 8 4 4 -> y: 4 8 4 8", **_IMAGE),
    *each("reflection_pad2d_grad replication_pad2d_grad", "dy: 4 8 4 8 -> dx: 4 8 4 4", **_IMAGE),
)

_NORM = {"axis": 1, "epsilon": 0.125, "momentum": 0.75}
_MOVING = "beta: 8, gamma: 8, moving_mean: 8, moving_variance: 8, x: 4 8 4 3"

NORMALISATIONS: tuple[OpView, ...] = (
    case("normalization", f"{_MOVING} -> inv_variance: 8, mean: 8, y: 4 8 4 3",
         training=True, **_NORM),
    case("normalization", "beta: 4, gamma: 4, x: 8 4 -> inv_variance: 4, mean: 4, y: 8 4",
         training=True, **_NORM),
    case("normalization", f"{_MOVING} -> y: 4 8 4 3", training=False, **_NORM),
    case("normalization", f"_add_to_output: 4 8 4 3, {_MOVING} -> y: 4 8 4 3",
         training=False, **_NORM),
    case("normalization_grad", "dy: 4 8 4 3, gamma: 8, inv_variance: 8, mean: 8, x: 4 8 4 3 -> "
         "beta_diff: 8, dx: 4 8 4 3, gamma_diff: 8", axis=1, epsilon=0.125),
    case("normalization_grad", "dy: 4 8 4 3, gamma: 8, inv_variance: 8, mean: 8, x: 4 8 4 3 -> "
         "beta_diff: 8, dx: 4 8 4 3, gamma_diff: 8", axis=1, epsilon=0.125, unread=("dx_0",)),
)  # fmt: skip

_LONGER = {"padding_before": (0, 0, 1), "padding_after": (0, 0, 2)}
_SHORTER = {"padding_before": (0, 0, -1), "padding_after": (0, 0, -2)}
_PADDED = {"floating_constant_value": 0.0, "integral_constant_value": 0, "padding": (1, 2)}

JOINS: tuple[OpView, ...] = (
    case("concat", "in: 4 8 4, in_1: 4 4 4 -> out: 4 12 4", axis=1, max_dim_size=12),
    case("concat", "in: 4 4, in_1: 4 8, in_2: 4 4 -> out: 4 16", axis=1, max_dim_size=16),
    case("split_like", "in: 4 12 4, like: 4 8 4, like_1: 4 4 4 -> out: 4 8 4, out_1: 4 4 4", axis=1),
    case("split_like", "in: 12 4 4, like: 8 4, like_1: 4 4 -> out: 8 4 4, out_1: 4 4 4", axis=0),
    case("stack", "in: 4 8, in_1: 4 8 -> out: 4 2 8", axis=1, max_dim_size=2),
    case("stack_grad", "in: 4 2 8, like: 4 8, like_1: 4 8 -> out: 4 8, out_1: 4 8", axis=1),
    case("narrow", "in: 4 8 4 -> out: 4 4 4", dim=1, start=2, length=4),
    case("narrow", "in: 4 8 -> out: 4 8", dim=1, start=0, length=8),
    case("narrow_grad", "dy: 4 4 4, like: 4 8 4 -> dx: 4 8 4", dim=1, start=2, length=4),
    case("pad", "x: 4 8 4 -> y: 4 8 7", **_PADDED, **_LONGER),
    case("pad", "x: 4 8 4 -> y: 4 8 7", **_PADDED | {"floating_constant_value": 0.5}, **_LONGER),
    case("pad", "x: 4 8 7 -> y: 4 8 4", **_PADDED, **_SHORTER),
)  # fmt: skip

CASES = (*CONVOLUTIONS, *POOLINGS, *UPSAMPLINGS, *PADDINGS, *NORMALISATIONS, *JOINS)
