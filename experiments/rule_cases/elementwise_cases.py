"""Pointwise ops: unary ones, gradients, scalars, broadcasts, sums and fills."""

from __future__ import annotations

from typing import Any

from autoddl.sbp.rules.registry import OpView
from experiments.rule_cases.reading import case


def number(value: float) -> dict[str, Any]:
    """Return the attributes of a scalar op, as the engine writes them."""
    whole = isinstance(value, int)
    return {
        "has_int_operand": whole,
        "has_float_operand": not whole,
        "int_operand": value if whole else 0,
        "float_operand": 0.0 if whole else value,
    }


_X_TO_Y = "relu tanh sigmoid exp log sqrt rsqrt square abs negative"
_IN_TO_OUT = "gelu identity copy"
_FROM_X = "gelu_grad tanh_grad exp_grad log_grad sqrt_grad rsqrt_grad square_grad abs_grad"
_BROADCASTS = (
    "x_0: 8 4, y_0: 8 4 -> z_0: 8 4",
    "x_0: 4 8 12, y_0: 12 -> z_0: 4 8 12",
    "x_0: 4 8 12, y_0: 8 1 -> z_0: 4 8 12",
    "x_0: 4 1 12, y_0: 8 12 -> z_0: 4 8 12",
    "x_0: 1 8, y_0: 4 1 -> z_0: 4 8",
    "x_0:, y_0: 4 8 -> z_0: 4 8",
    "x_0:, y_0: -> z_0:",
)

CASES: tuple[OpView, ...] = (
    *(case(name, "x_0: 4 8 -> y_0: 4 8") for name in _X_TO_Y.split()),
    *(case(name, "in_0: 4 8 -> out_0: 4 8") for name in _IN_TO_OUT.split()),
    *(case(name, "dy_0: 4 8, x_0: 4 8 -> dx_0: 4 8") for name in _FROM_X.split()),
    case("relu_grad", "y_0: 4 8, dy_0: 4 8 -> dx_0: 4 8"),
    case("sigmoid_grad", "y_0: 4 8, dy_0: 4 8 -> dx_0: 4 8"),
    case("scalar_add", "in_0: 4 8 -> out_0: 4 8", **number(1e-5)),
    case("scalar_mul", "in_0: 4 8 -> out_0: 4 8", **number(0.125)),
    case("scalar_mul", "in_0: -> out_0:", **number(-1)),
    case("scalar_div", "in_0: 4 8 -> out_0: 4 8", **number(16.0)),
    case("scalar_pow", "in_0: 4 8 -> out_0: 4 8", **number(3)),
    case("scalar_pow_grad", "x_0: 4 8, dy_0: 4 8 -> dx_0: 4 8", **number(3)),
    case("cast", "in_0: 4 8 -> out_0: 4 8", dtype=2),
    case("cast", "in_0: 4 8 -> out_0: 4 8", dtype=6),
    case("cast", "in_0: 4 8 -> out_0: 4 8", dtype=12),
    case("ones_like", "like_0: 4 8 -> out_0: 4 8"),
    case("ones_like", "like_0: -> out_0:"),
    case("zero_like", "like_0: 4 8 -> out_0: 4 8"),
    case("add_n", "in_0: 4 8, in_1: 4 8 -> out_0: 4 8"),
    case("add_n", "in_0: 4 8, in_1: 4 8, in_2: 4 8 -> out_0: 4 8"),
    case("bias_add", "a_0: 4 8 4 4, b_0: 8 -> out_0: 4 8 4 4", axis=1),
    *(case("broadcast_add", text) for text in _BROADCASTS),
    *(case("broadcast_sub", text) for text in _BROADCASTS),
    *(case("broadcast_mul", text) for text in _BROADCASTS),
    *(case("broadcast_div", text) for text in _BROADCASTS),
    case("broadcast_div_grad", "z_0:, y_0:, dz_0: -> dy_0:"),
    case("broadcast_div_grad", "dz_0: 4 8, y_0: 4 8, z_0: 4 8 -> dy_0: 4 8"),
    case("broadcast_div_grad", "dz_0: 4 8 12, y_0: 8 1, z_0: 4 8 12 -> dy_0: 8 1"),
)  # fmt: skip
