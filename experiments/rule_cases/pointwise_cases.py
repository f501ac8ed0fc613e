"""Cases of activation, cast_like, comparison, select, sources and unary."""

from __future__ import annotations

from typing import Any

from autoddl.sbp.rules.registry import OpView
from experiments.rule_cases.elementwise_cases import number
from experiments.rule_cases.reading import case

ACTIVATIONS: dict[str, dict[str, Any]] = {
    "silu": {}, "elu": {"alpha": 0.5}, "selu": {}, "softplus": {"beta": 2.0, "threshold": 1.5},
    "softsign": {}, "hardsigmoid": {}, "hardswish": {}, "fast_gelu": {},
    "hardtanh": {"min_val": -0.5, "max_val": 1.0}, "hardshrink": {"lambd": 0.5},
    "softshrink": {"alpha": 0.5}, "threshold": {"threshold_val": 0.5, "value": 0.1},
    "leaky_relu": {"alpha": 0.1}, "log_sigmoid": {}, "quick_gelu": {},
}  # fmt: skip
FROM_X = {"leaky_relu", "log_sigmoid", "quick_gelu"}  # their operands are called x and y
FROM_Y = {"hardtanh", "hardshrink", "softshrink"}  # their gradients read the result

SMOOTH = {
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh",
    "erf", "erfc", "expm1", "log1p", "log2", "log10", "reciprocal", "reciprocal_no_nan",
}  # fmt: skip
STEPS = ["floor", "ceil", "round", "rint", "sign", "logical_not"]
CLIPS: dict[str, dict[str, Any]] = {
    "clip_by_scalar": {"floating_min": -0.2, "floating_max": 0.8},
    "clip_by_scalar_min": {"floating_min": 0.2},
    "clip_by_scalar_max": {"floating_max": 0.8},
}  # fmt: skip
SCALARS = {"scalar_reverse_pow": 2, "scalar_fmod": 0.3, "scalar_floordiv": 0.3}

COMPARISONS = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]
LOGIC = ["logical_and", "logical_or", "logical_xor"]
BROADCAST = ["maximum", "minimum", "pow", "fmod"]
SAME_SHAPE = ["elementwise_maximum", "elementwise_minimum", "pow", "floordiv", "truncdiv", "atan2"]
PAIRS = (
    "x_0: 8 4, y_0: 8 4 -> z_0: 8 4",
    "x_0: 4 8 12, y_0: 12 -> z_0: 4 8 12",
    "x_0: 4 8 12, y_0: 8 1 -> z_0: 4 8 12",
    "x_0: 4 1 12, y_0: 8 12 -> z_0: 4 8 12",
    "x_0: 1 8, y_0: 4 1 -> z_0: 4 8",
    "x_0:, y_0: 4 8 -> z_0: 4 8",
)


def operand(value: float | bool) -> dict[str, Any]:
    """Return the attributes of an op with a scalar that may be a bool, too."""
    is_bool = isinstance(value, bool)
    attrs = number(1 if is_bool else value)
    kind = {"bool_operand": value is True, "has_bool_operand": is_bool}
    return attrs | kind | ({"has_int_operand": False} if is_bool else {})


def _two(x: float, y: int) -> dict[str, Any]:
    x_side = {k.replace("has_", "has_x_") if k.startswith("has_") else f"x_{k}": v
              for k, v in operand(x).items()}  # fmt: skip
    y_side = {k.replace("has_", "has_y_") if k.startswith("has_") else f"y_{k}": v
              for k, v in operand(y).items()}  # fmt: skip
    return x_side | y_side


def _activation(name: str) -> tuple[OpView, OpView]:
    before, after = ("x_0", "y_0") if name in FROM_X else ("in_0", "out_0")
    other = "y_0" if name in FROM_Y else "x_0"
    backward = {
        k: v for k, v in ACTIVATIONS[name].items() if k != "value"
    }  # of the forward op only
    return (
        case(name, f"{before}: 4 8 -> {after}: 4 8", **ACTIVATIONS[name]),
        case(f"{name}_grad", f"dy_0: 4 8, {other}: 4 8 -> dx_0: 4 8", **backward),
    )


def _unary(name: str, **attrs: Any) -> tuple[OpView, OpView]:
    return (
        case(name, "x_0: 4 8 -> y_0: 4 8", **attrs),
        case(f"{name}_grad", "dy_0: 4 8, x_0: 4 8 -> dx_0: 4 8", **attrs),
    )


def _fill(kind: str, **attrs: Any) -> OpView:
    return case(
        kind, "-> out_0: 4 8",
        **{"dtype": 2, "floating_value": 0.0, "integer_value": 0, "shape": (4, 8), **attrs},
    )  # fmt: skip


_TRIANGLE = {"floating_fill_value": -9.0, "integer_fill_value": 0}
_ARANGE = {
    "dtype": 6, "integer_start": 3, "integer_delta": 2, "integer_limit": 19,
    "float_start": 0.0, "float_delta": 0.0, "float_limit": 0.0,
}  # fmt: skip

CASES: tuple[OpView, ...] = (
    *(view for name in ACTIVATIONS for view in _activation(name)),
    case("prelu", "alpha_0: 8, x_0: 4 8 12 -> y_0: 4 8 12"),
    case("prelu", "alpha_0: 1, x_0: 4 8 -> y_0: 4 8"),
    case("prelu_grad", "alpha_0: 8, dy_0: 4 8 4, x_0: 4 8 4 -> alpha_diff_0: 8, dx_0: 4 8 4"),
    case("prelu_grad", "alpha_0: 1, dy_0: 4 8, x_0: 4 8 -> alpha_diff_0: 1, dx_0: 4 8"),
    *(view for name in sorted(SMOOTH) for view in _unary(name)),
    *(view for name, attrs in CLIPS.items() for view in _unary(name, **attrs)),
    *(case(name, "x_0: 4 8 -> y_0: 4 8") for name in STEPS),
    case("trunc", "in_0: 4 8 -> out_0: 4 8"),
    *(
        case(name, "in_0: 4 8 -> out_0: 4 8", **number(value))
        for name, value in SCALARS.items()
    ),
    case("scalar_reverse_pow_grad", "dy_0: 4 8, x_0: 4 8 -> dx_0: 4 8", **number(2)),
    *(
        case(
            f"scalar_logical_{name.removeprefix('logical_')}", "in_0: 4 8 -> out_0: 4 8",
            **number(1 if name == "logical_and" else 0),
        )
        for name in COMPARISONS + LOGIC
    ),
    *(
        case(f"broadcast_{name}", text)
        for name in COMPARISONS + LOGIC + BROADCAST
        for text in {"maximum": PAIRS, "less": PAIRS[:5]}.get(name, PAIRS[:3])
    ),
    *(case(name, PAIRS[0]) for name in SAME_SHAPE),
    *(
        case(f"elementwise_{name}_backward", "dz_0: 4 8, x_0: 4 8, y_0: 4 8 -> dx_0: 4 8, dy_0: 4 8")
        for name in ("maximum", "minimum")
    ),
    *(
        case(f"{name}_{side}_grad", f"dz_0: 4 8, x_0: 4 8, y_0: 4 8 -> d{side}_0: 4 8")
        for name in ("pow", "atan2")
        for side in "xy"
    ),
    case("where", "condition_0: 4 8, x_0: 4 8, y_0: 4 8 -> out_0: 4 8"),
    case("where", "condition_0: 8, x_0: 4 8, y_0: 4 1 -> out_0: 4 8"),
    case("where", "condition_0: 4 8, x_0: 1 8, y_0: 4 1 -> out_0: 4 8"),
    case("where_scalar_x", "condition_0: 4 8, y_0: 4 8 -> out_0: 4 8", **operand(1.5)),
    case("where_scalar_x", "condition_0: 8, y_0: 4 8 -> out_0: 4 8", **operand(0.0)),
    case("where_scalar_y", "condition_0: 4 8, x_0: 4 8 -> out_0: 4 8", **operand(3)),
    case("where_scalar_y", "condition_0: 4 8, x_0: 4 8 -> out_0: 4 8", **operand(False)),
    case("where_scalar_xy", "condition_0: 4 8 -> out_0: 4 8", **_two(2.5, 3)),
    case("masked_fill", "mask_0: 4 8, x_0: 4 8 -> out_0: 4 8", **operand(-1e4)),
    case("masked_fill", "mask_0: 4 8 4, x_0: 4 8 4 -> out_0: 4 8 4", **operand(0.0)),
    case(
        "tril", "in_0: 4 8 12 -> out_0: 4 8 12", diagonal=1, is_floating_fill_value=False,
        **_TRIANGLE,
    ),
    case("tril", "in_0: 4 8 4 -> out_0: 4 8 4", diagonal=-1, is_floating_fill_value=True,
         **_TRIANGLE),
    case("triu", "in_0: 4 8 12 -> out_0: 4 8 12", diagonal=-1),
    case("cast_like", "in_0: 4 8, dtype_like_0: 4 8 -> out_0: 4 8"),
    _fill("constant", is_floating_value=True, floating_value=2.0),
    _fill("constant", is_floating_value=False, integer_value=0),
    case("arange", "-> out_0: 8", **_ARANGE),
)  # fmt: skip
