"""Matrix products, convolutions and poolings."""

from __future__ import annotations

from typing import Any

from autoddl.sbp.rules.registry import OpView
from experiments.rule_cases.reading import case


def _matmul(op_type: str, text: str, transposed: str = "", alpha: float = 1.0) -> OpView:
    return case(
        op_type, text, transpose_a="a" in transposed, transpose_b="b" in transposed, alpha=alpha
    )


def _conv(kernel: int, stride: int, padding: int, dilation: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "kernel_size": (kernel,) * 2, "strides": (stride,) * 2, "padding_before": (padding,) * 2,
        "dilation_rate": (dilation,) * 2, "groups": 1, "data_format": "channels_first", **more,
    }  # fmt: skip


def _pool(kernel: int, stride: int, padding: int, dilation: int = 1) -> dict[str, Any]:
    return {
        "kernel_size": (kernel,) * 2, "stride": (stride,) * 2, "padding": (padding,) * 2,
        "dilation": (dilation,) * 2, "ceil_mode": False, "data_format": "channels_first",
    }  # fmt: skip


CASES: tuple[OpView, ...] = (
    _matmul("matmul", "a_0: 8 4, b_0: 4 12 -> out_0: 8 12"),
    _matmul("matmul", "a_0: 8 4, b_0: 12 4 -> out_0: 8 12", "b"),
    _matmul("matmul", "a_0: 4 8, b_0: 4 12 -> out_0: 8 12", "a", alpha=0.5),
    _matmul("matmul", "a_0: 4 8, b_0: 12 4 -> out_0: 8 12", "ab"),
    _matmul("batch_matmul", "a_0: 8 4 12, b_0: 8 12 4 -> out_0: 8 4 4"),
    _matmul("batch_matmul", "a_0: 4 4 4 8, b_0: 4 4 12 8 -> out_0: 4 4 4 12", "b", alpha=2.0),
    _matmul("batch_matmul", "a_0: 4 8 4, b_0: 4 8 12 -> out_0: 4 4 12", "a"),
    _matmul("broadcast_matmul", "a_0: 4 8 12, b_0: 12 4 -> out_0: 4 8 4"),
    _matmul("broadcast_matmul", "a_0: 4 8 12, b_0: 4 12 -> out_0: 4 8 4", "b"),
    _matmul("broadcast_matmul", "a_0: 8 12, b_0: 4 12 4 -> out_0: 4 8 4"),
    _matmul("broadcast_matmul", "a_0: 4 4 4 8, b_0: 4 8 12 -> out_0: 4 4 4 12"),
    case("broadcast_matmul_grad_b", "a_0: 8 12, b_0: 8 4 -> out_0: 12 4", alpha=1.0),
    case("broadcast_matmul_grad_b", "a_0: 4 8 12, b_0: 4 8 4 -> out_0: 12 4", alpha=0.5),
    case("conv2d", "in_0: 4 4 5 6, weight_0: 8 4 3 3 -> out_0: 4 8 5 6", **_conv(3, 1, 1)),
    case(
        "conv2d", "in_0: 4 12 7 8, weight_0: 24 4 2 2, bias_0: 24 -> out_0: 4 24 4 4",
        **_conv(2, 2, 1, 2, groups=3),
    ),
    case(
        "conv_data_grad", "dy_0: 4 24 4 4, filter_0: 24 4 2 2, x_like_0: 4 12 7 8 -> dx_0: 4 12 7 8",
        **_conv(2, 2, 1, 2, groups=3),
    ),
    case(
        "conv_filter_grad", "dy_0: 4 24 4 4, x_0: 4 12 7 8 -> filter_diff_0: 24 4 2 2",
        **_conv(2, 2, 1, 2, groups=3),
    ),
    case("max_pool_2d", "x_0: 4 8 4 8 -> y_0: 4 8 2 4, indice_0: 4 8 2 4", **_pool(2, 2, 0)),
    case("max_pool_2d", "x_0: 4 8 5 6 -> y_0: 4 8 3 3, indice_0: 4 8 3 3", **_pool(3, 2, 1)),
    case(
        "max_pool_2d_grad", "x_0: 4 8 5 6, indice_0: 4 8 3 3, dy_0: 4 8 3 3 -> dx_0: 4 8 5 6",
        **_pool(3, 2, 1),
    ),
    case("adaptive_avg_pool2d", "x_0: 4 8 4 5 -> y_0: 4 8 2 3", output_size=(2, 3)),
    case(
        "adaptive_avg_pool2d_grad", "x_0: 4 8 4 5, dy_0: 4 8 2 3 -> dx_0: 4 8 4 5", output_size=()
    ),
)  # fmt: skip
