"""Pointwise ops: unary ones, gradients, scalars, broadcasts, sums and fills."""

from __future__ import annotations

from typing import Any

from autoddl.sbp.rules.registry import OpView
from experiments.rule_cases.reading import case, each


def number(value: float) -> dict[str, Any]:
    """Return the attributes of a scalar op, as the engine writes them."""
    whole = isinstance(value, int)
    return {
        "has_int_operand": whole,
        "has_float_operand": not whole,
        "int_operand": value if whole else 0,
        "float_operand": 0.0 if whole else value,
    }


_FROM_X = "gelu_grad tanh_grad exp_grad log_grad sqrt_grad rsqrt_grad square_grad abs_grad"
PAIRS = (
    "x: 8 4, y: 8 4 -> z: 8 4",
    "x: 4 8 12, y: 12 -> z: 4 8 12",
    "x: 4 8 12, y: 8 1 -> z: 4 8 12",
    "x: 4 1 12, y: 8 12 -> z: 4 8 12",
    "x: 1 8, y: 4 1 -> z: 4 8",
    "x:, y: 4 8 -> z: 4 8",
)

CASES: tuple[OpView, ...] = (
    *each("relu tanh sigmoid exp log sqrt rsqrt square abs negative", "x: 4 8 -> y: 4 8"),
    *each("gelu identity copy", "in: 4 8 -> out: 4 8"),
    *each(_FROM_X, "dy: 4 8, x: 4 8 -> dx: 4 8"),
    *each("relu_grad sigmoid_grad", "y: 4 8, dy: 4 8 -> dx: 4 8"),
    case("scalar_add", "in: 4 8 -> out: 4 8", **number(1e-5)),
    case("scalar_mul", "in: 4 8 -> out: 4 8", **number(0.125)),
    case("scalar_mul", "in: -> out:", **number(-1)),
    case("scalar_div", "in: 4 8 -> out: 4 8", **number(16.0)),
    case("scalar_pow", "in: 4 8 -> out: 4 8", **number(3)),
    case("scalar_pow_grad", "x: 4 8, dy: 4 8 -> dx: 4 8", **number(3)),
    *(case("cast", "in: 4 8 -> out: 4 8", dtype=dtype) for dtype in (2, 6, 12)),
    *each("ones_like", "like: 4 8 -> out: 4 8", "like: -> out:"),
    case("zero_like", "like: 4 8 -> out: 4 8"),
    *each("add_n", "in: 4 8, in_1: 4 8 -> out: 4 8", "in: 4 8, in_1: 4 8, in_2: 4 8 -> out: 4 8"),
    case("bias_add", "a: 4 8 4 4, b: 8 -> out: 4 8 4 4", axis=1),
    *each("broadcast_add broadcast_sub broadcast_mul broadcast_div", *PAIRS, "x:, y: -> z:"),
    case("broadcast_div_grad", "z:, y:, dz: -> dy:"),
    case("broadcast_div_grad", "dz: 4 8, y: 4 8, z: 4 8 -> dy: 4 8"),
    case("broadcast_div_grad", "dz: 4 8 12, y: 8 1, z: 4 8 12 -> dy: 8 1"),
)  # fmt: skip
