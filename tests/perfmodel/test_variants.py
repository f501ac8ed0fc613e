"""Variants of ops, by shapes as real steps have them."""

from __future__ import annotations

import pytest

from autoddl.perfmodel.variants import ALL, COLUMN, LEADING, TRAILING, variant
from autoddl.sbp.rules.registry import OpView, Shape


def binary(x: Shape, y: Shape, out: Shape, op_type: str = "broadcast_mul") -> OpView:
    return OpView(op_type, ("x_0", "y_0"), ("z_0",), {"x_0": x, "y_0": y, "z_0": out}, {})


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (binary((8, 16), (8, 16), (8, 16)), ""),
        (binary((8, 16), (), (8, 16)), ""),
        (binary((8, 16), (1,), (8, 16)), ""),
        (binary((8, 16), (16,), (8, 16)), ""),
        (binary((4, 8, 16), (8, 16), (4, 8, 16)), ""),
        (binary((8, 16), (8, 1), (8, 16)), COLUMN),  # a LayerNorm's mean
        (binary((8, 1), (16,), (8, 16), "broadcast_equal"), COLUMN),
        (binary((4, 8, 1), (4, 1, 1), (4, 8, 1)), COLUMN),
        (binary((8, 1), (8, 1), (8, 1)), ""),
        (binary((8, 16), (16, 4), (8, 4), "matmul"), ""),
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
