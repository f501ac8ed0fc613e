"""Variants of ops, by shapes as real steps have them."""

from __future__ import annotations

import pytest

from autoddl.perfmodel.kernel_variants import ALL, LEADING, NARROW, REFERENCE, TRAILING, variant
from autoddl.sbp.rules.registry import OpView, Shape


def binary(x: Shape, y: Shape, out: Shape, op_type: str = "broadcast_mul") -> OpView:
    return OpView(op_type, ("x_0", "y_0"), ("z_0",), {"x_0": x, "y_0": y, "z_0": out}, {})


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (binary((8, 16), (8, 16), (8, 16)), ""),
        (binary((8, 16), (), (8, 16)), ""),
        (binary((8, 16), (1,), (8, 16)), ""),
        (binary((), (8, 16), (8, 16)), REFERENCE),  # a scalar in front
        (binary((8, 16), (16,), (8, 16)), ""),
        (binary((8, 16), (16,), (8, 16), "broadcast_greater"), REFERENCE),
        (binary((4, 8, 16), (8, 16), (4, 8, 16)), ""),
        (binary((8, 16), (8, 1), (8, 16)), REFERENCE),  # a LayerNorm's mean
        (binary((8, 1), (16,), (8, 16), "broadcast_equal"), REFERENCE),
        (binary((4, 8, 1), (4, 1, 1), (4, 8, 1)), ""),
        (binary((4, 8, 1), (1, 8, 1), (4, 8, 1)), REFERENCE),
        (binary((8, 1), (8, 1), (8, 1)), ""),
        (binary((4, 8, 16, 16), (4, 1, 16, 16), (4, 8, 16, 16)), ""),  # a mask of each sample
        (binary((4, 8, 16, 16), (4, 1, 1, 16), (4, 8, 16, 16)), ""),
        (binary((4, 8, 16, 16), (4, 1, 1, 1), (4, 8, 16, 16)), REFERENCE),
        (binary((4, 8, 16, 16), (1, 8, 1, 1), (4, 8, 16, 16)), ""),  # channels
        (binary((4, 8, 16, 16), (4, 8, 1, 1), (4, 8, 16, 16)), ""),
        (binary((4, 8, 16, 16), (4, 8, 1, 16), (4, 8, 16, 16)), REFERENCE),
        (binary((4, 8, 16, 16), (8, 16, 16), (4, 8, 16, 16)), REFERENCE),  # a bias of each head
        (binary((8, 16), (16, 4), (8, 4), "matmul"), ""),
        (binary((2, 8, 16), (16, 1), (2, 8, 1), "broadcast_matmul"), ""),
        (binary((8, 1), (8, 16), (8, 16), "broadcast_like"), ""),
    ],
)
def test_broadcasts(view: OpView, expected: str) -> None:
    assert variant(view) == expected


@pytest.mark.parametrize(
    ("x", "y", "axis", "expected"),
    [
        ((8, 16), (8, 1), (1,), TRAILING),
        ((8, 16), (8,), (-1,), TRAILING),
        ((8, 16), (16,), (0,), LEADING),
        ((4, 8, 16), (16,), (0, 1), LEADING),
        ((8, 16), (), (0, 1), ALL),
        ((8, 1), (8, 1), (1,), ""),
    ],
)
def test_reductions(x: Shape, y: Shape, axis: tuple[int, ...], expected: str) -> None:
    shapes = {"input_tensor_0": x, "output_tensor_0": y}
    view = OpView("reduce_sum", ("input_tensor_0",), ("output_tensor_0",), shapes, {"axis": axis})
    assert variant(view) == expected


def test_a_gradient_is_no_elementwise_op() -> None:
    shapes = {"dz_0": (8, 16), "z_0": (8, 16), "y_0": (8, 1), "dy_0": (8, 1)}
    view = OpView("broadcast_div_grad", ("dz_0", "z_0", "y_0"), ("dy_0",), shapes, {})
    assert variant(view) == ""


def test_reductions_to_the_shape_of_another_tensor() -> None:
    shapes = {"like_0": (1, 16), "x_0": (8, 16), "y_0": (1, 16)}
    view = OpView("reduce_sum_like", ("like_0", "x_0"), ("y_0",), shapes, {"axis": (0,)})
    assert variant(view) == LEADING


def convolution(op_type: str, x: Shape, weight: Shape, y: Shape, layout: str) -> OpView:
    large, small, filter_ = {
        "conv2d": ("in_0", "out_0", "weight_0"),
        "conv_data_grad": ("dx_0", "dy_0", "filter_0"),
        "conv_filter_grad": ("x_0", "dy_0", "filter_diff_0"),
    }[op_type]
    shapes = {large: x, small: y, filter_: weight}
    made = {"conv2d": small, "conv_data_grad": large, "conv_filter_grad": filter_}[op_type]
    given = tuple(name for name in shapes if name != made)
    return OpView(op_type, given, (made,), shapes, {"data_format": layout, "groups": 1})


@pytest.mark.parametrize("op_type", ["conv2d", "conv_data_grad", "conv_filter_grad"])
@pytest.mark.parametrize(
    ("channels", "out", "pixels", "expected"),
    [
        (64, 64, 8, ""),
        (64, 16, 8, NARROW[16]),  # few channels are made
        (3, 64, 32, ""),  # few are read: a sum of few terms, as wide as others
        (128, 128, 2, NARROW[16]),  # 2 × 2 pixels
        (128, 128, 1, NARROW[8]),
        (64, 32, 8, NARROW[32]),
        (64, 48, 8, ""),
    ],
)
def test_convolutions(op_type: str, channels: int, out: int, pixels: int, expected: str) -> None:
    first = ((4, channels, pixels, pixels), (out, channels, 3, 3), (4, out, pixels, pixels))
    last = ((4, pixels, pixels, channels), (out, 3, 3, channels), (4, pixels, pixels, out))
    assert variant(convolution(op_type, *first, "channels_first")) == expected
    assert variant(convolution(op_type, *last, "channels_last")) == expected


def test_a_group_of_channels_is_a_product_of_its_own() -> None:
    depthwise = convolution("conv2d", (4, 64, 8, 8), (64, 1, 3, 3), (4, 64, 8, 8), "channels_first")
    assert variant(depthwise) == NARROW[8]
