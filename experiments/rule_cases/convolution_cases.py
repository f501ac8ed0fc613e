"""Cases of convolutions, poolings, resamplings, batch normalisation, and joining and parting."""

from __future__ import annotations

from typing import Any

from autoddl.sbp.rules.registry import OpView
from experiments.rule_cases.reading import case


def _windows(ndim: int, *, kernel: int, stride: int, padding: int, **more: Any) -> dict[str, Any]:
    return {
        "kernel_size": (kernel,) * ndim, "stride": (stride,) * ndim, "padding": (padding,) * ndim,
        "ceil_mode": False, "data_format": "channels_first", **more,
    }  # fmt: skip


def _conv(
    ndim: int, *, kernel: int, stride: int, padding: int, dilation: int = 1, **more: Any
) -> dict[str, Any]:
    return {
        "kernel_size": (kernel,) * ndim, "strides": (stride,) * ndim,
        "padding_before": (padding,) * ndim, "dilation_rate": (dilation,) * ndim, "groups": 1,
        "data_format": "channels_first", **more,
    }  # fmt: skip


def _max_pool(ndim: int, **windows: int) -> dict[str, Any]:
    return {**_windows(ndim, **windows), "dilation": (1,) * ndim, "return_indices": False}


def _avg_pool(ndim: int, *, counts_padding: bool, divisor: int = 0, **windows: int) -> Any:
    more = {"count_include_pad": counts_padding, "divisor_override": divisor}
    return _windows(ndim, **windows, **more)


def _scales(*scales: float, size: tuple[int, ...] = ()) -> dict[str, Any]:
    names = ("depth_scale", "height_scale", "width_scale")[-len(scales) :]
    if len(scales) == 1:
        names = ("scale_factor",)
    attrs = {"output_size": size, "data_format": "channels_first"}
    return attrs | dict(zip(names, scales, strict=True))


def _between(*scales: float) -> dict[str, Any]:
    """Return the attributes of an upsampling that interpolates."""
    return {**_scales(*scales), "align_corners": False}


_POINT = {"kernel": 1, "stride": 1, "padding": 0}
_WIDE = {"kernel": 3, "stride": 2, "padding": 1}
_PATCH = {"kernel": 2, "stride": 2, "padding": 0}
_LAST = {"data_format": "channels_last"}

CONVOLUTIONS: tuple[OpView, ...] = (
    case("conv1d", "in_0: 4 8 8, weight_0: 12 8 3 -> out_0: 4 12 4", **_conv(1, **_WIDE)),
    case(
        "conv2d", "in_0: 4 8 4 8, weight_0: 12 8 1 1 -> out_0: 4 12 4 8", **_conv(2, **_POINT)
    ),
    case(
        "conv2d", "in_0: 4 4 8 16, weight_0: 8 4 2 2 -> out_0: 4 8 4 8", **_conv(2, **_PATCH)
    ),
    case(
        "conv2d", "in_0: 4 12 5 6, weight_0: 24 4 3 3, bias_0: 24 -> out_0: 4 24 3 3",
        **_conv(2, **_WIDE, groups=3),
    ),
    case(
        "conv2d", "in_0: 4 4 5 6, weight_0: 8 1 3 3, bias_0: 8 -> out_0: 4 8 3 3",
        **_conv(2, **_WIDE, groups=4),
    ),
    case(
        "conv2d", "in_0: 4 5 6 8, weight_0: 12 3 3 8 -> out_0: 4 3 3 12",
        **_conv(2, **_WIDE) | _LAST,
    ),
    case(
        "conv3d", "in_0: 4 4 3 4 5, weight_0: 8 4 3 3 3 -> out_0: 4 8 2 2 3", **_conv(3, **_WIDE)
    ),
    case("deconv1d", "in_0: 4 8 4, weight_0: 8 12 3 -> out_0: 4 12 7", **_conv(1, **_WIDE)),
    case(
        "deconv2d", "in_0: 4 8 4 4, weight_0: 8 4 2 2 -> out_0: 4 4 8 8",
        **_conv(2, **_PATCH, output_padding=(0, 0)),
    ),
    case(
        "deconv2d", "in_0: 4 12 3 3, weight_0: 12 8 3 3 -> out_0: 4 24 6 6",
        **_conv(2, **_WIDE, output_padding=(1, 1), groups=3),
    ),
    case(
        "deconv2d", "in_0: 4 8 3 3, weight_0: 8 1 3 3 -> out_0: 4 4 5 5",
        **_conv(2, **_WIDE, output_padding=(0, 0), groups=4),
    ),
    case(
        "deconv3d", "in_0: 4 8 2 2 3, weight_0: 8 4 3 3 3 -> out_0: 4 4 3 3 5",
        **_conv(3, **_WIDE, output_padding=(0, 0, 0)),
    ),
    case(
        "conv_data_grad", "dy_0: 4 12 4, filter_0: 12 8 3, x_like_0: 4 8 8 -> dx_0: 4 8 8",
        **_conv(1, **_WIDE),
    ),
    case(
        "conv_data_grad",
        "dy_0: 4 12 4 8, filter_0: 12 8 1 1, x_like_0: 4 8 4 8 -> dx_0: 4 8 4 8",
        **_conv(2, **_POINT),
    ),
    case(
        "conv_data_grad", "dy_0: 4 8 3 3, filter_0: 8 1 3 3, x_like_0: 4 4 5 6 -> dx_0: 4 4 5 6",
        **_conv(2, **_WIDE, groups=4),
    ),
    case("conv_filter_grad", "dy_0: 4 12 4, x_0: 4 8 8 -> filter_diff_0: 12 8 3", **_conv(1, **_WIDE)),
    case(
        "conv_filter_grad", "dy_0: 4 12 4 8, x_0: 4 8 4 8 -> filter_diff_0: 12 8 1 1",
        **_conv(2, **_POINT),
    ),
    case(
        "conv_filter_grad", "dy_0: 4 8 3 3, x_0: 4 4 5 6 -> filter_diff_0: 8 1 3 3",
        **_conv(2, **_WIDE, groups=4),
    ),
)  # fmt: skip

_ADAPTIVE = (
    "x_0: 4 8 8 -> y_0: 4 8 4",
    "x_0: 4 8 4 5 -> y_0: 4 8 2 3",
    "x_0: 4 8 4 2 5 -> y_0: 4 8 2 4 3",
)
_ADAPTIVE_GRAD = (
    "dy_0: 4 8 4, {}x_0: 4 8 8 -> dx_0: 4 8 8",
    "dy_0: 4 8 2 3, {}x_0: 4 8 4 5 -> dx_0: 4 8 4 5",
    "dy_0: 4 8 2 4 3, {}x_0: 4 8 4 2 5 -> dx_0: 4 8 4 2 5",
)
_INDEX = ("index_0: 4 8 4, ", "index_0: 4 8 2 3, ", "index_0: 4 8 2 4 3, ")

POOLINGS: tuple[OpView, ...] = (
    case("max_pool_1d", "x_0: 4 8 8 -> indice_0: 4 8 4, y_0: 4 8 4", **_max_pool(1, **_WIDE)),
    case(
        "max_pool_2d", "x_0: 4 5 6 8 -> indice_0: 4 3 3 8, y_0: 4 3 3 8",
        **_max_pool(2, **_WIDE) | _LAST,
    ),
    case(
        "max_pool_3d", "x_0: 4 4 3 4 5 -> indice_0: 4 4 2 2 3, y_0: 4 4 2 2 3",
        **_max_pool(3, **_WIDE),
    ),
    case(
        "max_pool_1d_grad", "dy_0: 4 8 4, indice_0: 4 8 4, x_0: 4 8 8 -> dx_0: 4 8 8",
        **_max_pool(1, **_WIDE),
    ),
    case(
        "max_pool_3d_grad",
        "dy_0: 4 4 2 2 3, indice_0: 4 4 2 2 3, x_0: 4 4 3 4 5 -> dx_0: 4 4 3 4 5",
        **_max_pool(3, **_WIDE),
    ),
    *(
        case(
            f"adaptive_max_pool{d}d", text.replace("->", f"-> {index}"),
            output_size=(2, 4, 3)[-d:],
        )
        for d, (text, index) in enumerate(zip(_ADAPTIVE, _INDEX, strict=True), 1)
    ),
    *(
        case(f"adaptive_max_pool{d}d_grad", text.format(index))
        for d, (text, index) in enumerate(zip(_ADAPTIVE_GRAD, _INDEX, strict=True), 1)
    ),
    *(
        case(f"adaptive_avg_pool{d}d", text, output_size=(2, 4, 3)[-d:])
        for d, text in enumerate(_ADAPTIVE, 1)
    ),
    *(
        case(f"adaptive_avg_pool{d}d_grad", text.format(""), output_size=())
        for d, text in enumerate(_ADAPTIVE_GRAD, 1)
    ),
    case(
        "avg_pool_1d", "x_0: 4 8 8 -> y_0: 4 8 5",
        **_avg_pool(1, **_WIDE, counts_padding=False) | {"ceil_mode": True},
    ),
    case(
        "avg_pool_2d", "x_0: 4 8 8 16 -> y_0: 4 8 4 8", **_avg_pool(2, **_PATCH, counts_padding=True)
    ),
    case(
        "avg_pool_2d", "x_0: 4 8 5 6 -> y_0: 4 8 3 3",
        **_avg_pool(2, **_WIDE, counts_padding=True, divisor=5),
    ),
    case(
        "avg_pool_3d", "x_0: 4 4 3 4 5 -> y_0: 4 4 2 2 3",
        **_avg_pool(3, **_WIDE, counts_padding=True),
    ),
    case(
        "avg_pool_1d_grad", "dy_0: 4 8 5, x_0: 4 8 8 -> dx_0: 4 8 8",
        **_avg_pool(1, **_WIDE, counts_padding=False) | {"ceil_mode": True},
    ),
    case(
        "avg_pool_2d_grad", "dy_0: 4 8 4 8, x_0: 4 8 8 16 -> dx_0: 4 8 8 16",
        **_avg_pool(2, **_PATCH, counts_padding=True),
    ),
    case(
        "avg_pool_3d_grad", "dy_0: 4 4 2 2 3, x_0: 4 4 3 4 5 -> dx_0: 4 4 3 4 5",
        **_avg_pool(3, **_WIDE, counts_padding=True),
    ),
)  # fmt: skip

UPSAMPLINGS: tuple[OpView, ...] = (
    case("upsample_nearest_1d", "x_0: 4 8 4 -> y_0: 4 8 8", **_scales(2.0)),
    case("upsample_nearest_2d", "x_0: 4 8 4 4 -> y_0: 4 8 8 12", **_scales(2.0, 3.0)),
    case(
        "upsample_nearest_2d", "x_0: 4 8 4 8 -> y_0: 4 8 6 4",
        **_scales(1.5, 0.5, size=(6, 4)),
    ),
    case("upsample_nearest_3d", "x_0: 4 4 4 2 3 -> y_0: 4 4 8 4 6", **_scales(2.0, 2.0, 2.0)),
    case("upsample_linear_1d", "x_0: 4 8 4 -> y_0: 4 8 8", **_between(2.0)),
    case("upsample_bilinear_2d", "x_0: 4 8 4 12 -> y_0: 4 8 8 4", **_between(2.0, 1 / 3)),
    case(
        "upsample_bilinear_2d", "x_0: 4 8 4 8 -> y_0: 4 8 6 4",
        **_between(1.5, 0.5) | {"align_corners": True},
    ),
    case("upsample_bilinear_2d", "x_0: 4 8 12 4 -> y_0: 4 8 8 4", **_between(2 / 3, 1.0)),
    case("upsample_bicubic_2d", "x_0: 4 8 4 5 -> y_0: 4 8 8 10", **_between(2.0, 2.0)),
    case("upsample_trilinear_3d", "x_0: 4 4 4 2 3 -> y_0: 4 4 8 4 6", **_between(2.0, 2.0, 2.0)),
    case("upsample_nearest_1d_grad", "dy_0: 4 8 8, x_0: 4 8 4 -> dx_0: 4 8 4", **_scales(2.0)),
    case(
        "upsample_nearest_2d_grad", "dy_0: 4 8 8 12, x_0: 4 8 4 4 -> dx_0: 4 8 4 4",
        **_scales(2.0, 3.0),
    ),
    case(
        "upsample_nearest_3d_grad", "dy_0: 4 4 8 4 6, x_0: 4 4 4 2 3 -> dx_0: 4 4 4 2 3",
        **_scales(2.0, 2.0, 2.0),
    ),
    case("upsample_linear_1d_grad", "dy_0: 4 8 8, x_0: 4 8 4 -> dx_0: 4 8 4", **_between(2.0)),
    case(
        "upsample_bilinear_2d_grad", "dy_0: 4 8 8 4, x_0: 4 8 4 12 -> dx_0: 4 8 4 12",
        **_between(2.0, 1 / 3),
    ),
    case(
        "upsample_bicubic_2d_grad", "dy_0: 4 8 8 10, x_0: 4 8 4 5 -> dx_0: 4 8 4 5",
        **_between(2.0, 2.0),
    ),
    case(
        "upsample_trilinear_3d_grad", "dy_0: 4 4 8 4 6, x_0: 4 4 4 2 3 -> dx_0: 4 4 4 2 3",
        **_between(2.0, 2.0, 2.0),
    ),
)  # fmt: skip

_PIXELS = {"padding": (1, 3, 0, 0)}

PADDINGS: tuple[OpView, ...] = (
    *(
        view
        for kind in ("reflection", "replication")
        for view in (
            case(f"{kind}_pad1d", "x_0: 4 8 4 -> y_0: 4 8 8", padding=(1, 3)),
            case(f"{kind}_pad1d_grad", "dy_0: 4 8 8 -> dx_0: 4 8 4", padding=(1, 3)),
            case(f"{kind}_pad2d", "x_0: 4 8 4 4 -> y_0: 4 8 4 8", **_PIXELS),
            case(f"{kind}_pad2d_grad", "dy_0: 4 8 4 8 -> dx_0: 4 8 4 4", **_PIXELS),
        )
    ),
)

_NORM = {"axis": 1, "epsilon": 0.125, "momentum": 0.75}

NORMALISATIONS: tuple[OpView, ...] = (
    case(
        "normalization",
        "beta_0: 8, gamma_0: 8, moving_mean_0: 8, moving_variance_0: 8, x_0: 4 8 4 3 -> "
        "inv_variance_0: 8, mean_0: 8, y_0: 4 8 4 3", training=True, **_NORM,
    ),
    case(
        "normalization", "beta_0: 4, gamma_0: 4, x_0: 8 4 -> inv_variance_0: 4, mean_0: 4, y_0: 8 4",
        training=True, **_NORM,
    ),
    case(
        "normalization",
        "beta_0: 8, gamma_0: 8, moving_mean_0: 8, moving_variance_0: 8, x_0: 4 8 4 3 -> y_0: 4 8 4 3",
        training=False, **_NORM,
    ),
    case(
        "normalization_grad",
        "dy_0: 4 8 4 3, gamma_0: 8, inv_variance_0: 8, mean_0: 8, x_0: 4 8 4 3 -> "
        "beta_diff_0: 8, dx_0: 4 8 4 3, gamma_diff_0: 8", axis=1, epsilon=0.125,
    ),
)  # fmt: skip

_PADDED = {"floating_constant_value": 0.0, "integral_constant_value": 0, "padding": (1, 2)}

JOINS: tuple[OpView, ...] = (
    case("concat", "in_0: 4 8 4, in_1: 4 4 4 -> out_0: 4 12 4", axis=1, max_dim_size=12),
    case("concat", "in_0: 4 4, in_1: 4 8, in_2: 4 4 -> out_0: 4 16", axis=1, max_dim_size=16),
    case(
        "split_like", "in_0: 4 12 4, like_0: 4 8 4, like_1: 4 4 4 -> out_0: 4 8 4, out_1: 4 4 4",
        axis=1,
    ),
    case(
        "split_like", "in_0: 12 4 4, like_0: 8 4, like_1: 4 4 -> out_0: 8 4 4, out_1: 4 4 4",
        axis=0,
    ),
    case("stack", "in_0: 4 8, in_1: 4 8 -> out_0: 4 2 8", axis=1, max_dim_size=2),
    case(
        "stack_grad", "in_0: 4 2 8, like_0: 4 8, like_1: 4 8 -> out_0: 4 8, out_1: 4 8", axis=1
    ),
    case("narrow", "in_0: 4 8 4 -> out_0: 4 4 4", dim=1, start=2, length=4),
    case("narrow", "in_0: 4 8 -> out_0: 4 8", dim=1, start=0, length=8),
    case("narrow_grad", "dy_0: 4 4 4, like_0: 4 8 4 -> dx_0: 4 8 4", dim=1, start=2, length=4),
    case(
        "pad", "x_0: 4 8 4 -> y_0: 4 8 7", **_PADDED, padding_before=(0, 0, 1),
        padding_after=(0, 0, 2),
    ),
    case(
        "pad", "x_0: 4 8 4 -> y_0: 4 8 7", **_PADDED | {"floating_constant_value": 0.5},
        padding_before=(0, 0, 1), padding_after=(0, 0, 2),
    ),
    case(
        "pad", "x_0: 4 8 7 -> y_0: 4 8 4", **_PADDED, padding_before=(0, 0, -1),
        padding_after=(0, 0, -2),
    ),
)  # fmt: skip

CASES: tuple[OpView, ...] = (
    *CONVOLUTIONS,
    *POOLINGS,
    *UPSAMPLINGS,
    *PADDINGS,
    *NORMALISATIONS,
    *JOINS,
)
