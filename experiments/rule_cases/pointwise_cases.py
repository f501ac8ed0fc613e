"""Cases of activation, cast_like, comparison, random_draws, select, sources and unary."""

from __future__ import annotations

from typing import Any

from autoddl.sbp.rules.registry import OpView
from experiments.rule_cases.elementwise_cases import PAIRS, number
from experiments.rule_cases.reading import case, each

ACTIVATIONS: dict[str, dict[str, Any]] = {
    "silu": {}, "elu": {"alpha": 0.5}, "selu": {}, "softplus": {"beta": 2.0, "threshold": 1.5},
    "softsign": {}, "hardsigmoid": {}, "hardswish": {}, "fast_gelu": {},
    "hardtanh": {"min_val": -0.5, "max_val": 1.0}, "hardshrink": {"lambd": 0.5},
    "softshrink": {"alpha": 0.5}, "threshold": {"threshold_val": 0.5, "value": 0.1},
    "leaky_relu": {"alpha": 0.1}, "log_sigmoid": {}, "quick_gelu": {},
}  # fmt: skip
FROM_X = {"leaky_relu", "log_sigmoid", "quick_gelu"}  # their operands are called x and y
FROM_Y = {"hardtanh", "hardshrink", "softshrink"}  # their gradients read the result

SMOOTH = (
    "acos acosh asin asinh atan atanh cos cosh erf erfc expm1 log10 log1p log2 reciprocal "
    "reciprocal_no_nan sin sinh tan"
)
CLIPS: dict[str, dict[str, Any]] = {
    "clip_by_scalar": {"floating_min": -0.2, "floating_max": 0.8},
    "clip_by_scalar_min": {"floating_min": 0.2},
    "clip_by_scalar_max": {"floating_max": 0.8},
}  # fmt: skip
SCALARS = {"scalar_reverse_pow": 2, "scalar_fmod": 0.3, "scalar_floordiv": 0.3}

COMPARISONS = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]
LOGIC = ["logical_and", "logical_or", "logical_xor"]
BROADCAST = ["maximum", "minimum", "pow", "fmod"]
SAME_SHAPE = "elementwise_maximum elementwise_minimum pow floordiv truncdiv atan2"


def operand(value: float | bool) -> dict[str, Any]:
    """Return the attributes of an op with a scalar that may be a bool, too."""
    is_bool = isinstance(value, bool)
    attrs = number(1 if is_bool else value)
    kind = {"bool_operand": value is True, "has_bool_operand": is_bool}
    return attrs | kind | ({"has_int_operand": False} if is_bool else {})


def _two(x: float, y: int) -> dict[str, Any]:
    return {
        f"has_{side}_{name.removeprefix('has_')}"
        if name.startswith("has_")
        else f"{side}_{name}": n
        for side, value in (("x", x), ("y", y))
        for name, n in operand(value).items()
    }


def _activation(name: str) -> tuple[OpView, OpView]:
    before, after = ("x_0", "y_0") if name in FROM_X else ("in_0", "out_0")
    other = "y_0" if name in FROM_Y else "x_0"
    backward = {k: v for k, v in ACTIVATIONS[name].items() if k != "value"}  # the forward op's own
    return (
        case(name, f"{before}: 4 8 -> {after}: 4 8", **ACTIVATIONS[name]),
        case(f"{name}_grad", f"dy: 4 8, {other}: 4 8 -> dx: 4 8", **backward),
    )


def _unary(name: str, **attrs: Any) -> tuple[OpView, OpView]:
    return (
        case(name, "x: 4 8 -> y: 4 8", **attrs),
        case(f"{name}_grad", "dy: 4 8, x: 4 8 -> dx: 4 8", **attrs),
    )


def _constant(**more: Any) -> OpView:
    attrs = {"dtype": 2, "floating_value": 0.0, "integer_value": 0, "shape": (4, 8), **more}
    return case("constant", "-> out: 4 8", **attrs)


_TRIANGLE = {"floating_fill_value": -9.0, "integer_fill_value": 0}
_ARANGE = {
    "dtype": 6, "integer_start": 3, "integer_delta": 2, "integer_limit": 19,
    "float_start": 0.0, "float_delta": 0.0, "float_limit": 0.0,
}  # fmt: skip

_SEED = {"seed": 3, "dtype": 2}

CASES: tuple[OpView, ...] = (
    *(view for name in ACTIVATIONS for view in _activation(name)),
    *each("prelu", "alpha: 8, x: 4 8 12 -> y: 4 8 12", "alpha: 1, x: 4 8 -> y: 4 8"),
    case("prelu_grad", "alpha: 8, dy: 4 8 4, x: 4 8 4 -> alpha_diff: 8, dx: 4 8 4"),
    case("prelu_grad", "alpha: 1, dy: 4 8, x: 4 8 -> alpha_diff: 1, dx: 4 8"),
    *(view for name in SMOOTH.split() for view in _unary(name)),
    *(view for name, attrs in CLIPS.items() for view in _unary(name, **attrs)),
    *each("floor ceil round rint sign logical_not", "x: 4 8 -> y: 4 8"),
    case("trunc", "in: 4 8 -> out: 4 8"),
    *(case(name, "in: 4 8 -> out: 4 8", **number(value)) for name, value in SCALARS.items()),
    case("scalar_reverse_pow_grad", "dy: 4 8, x: 4 8 -> dx: 4 8", **number(2)),
    *(
        case(f"scalar_logical_{name.removeprefix('logical_')}", "in: 4 8 -> out: 4 8",
             **number(1 if name == "logical_and" else 0))
        for name in COMPARISONS + LOGIC
    ),
    *(
        case(f"broadcast_{name}", text)
        for name in COMPARISONS + LOGIC + BROADCAST
        for text in {"maximum": PAIRS, "less": PAIRS[:5]}.get(name, PAIRS[:3])
    ),
    *each(SAME_SHAPE, PAIRS[0]),
    *each("elementwise_maximum_backward elementwise_minimum_backward",
          "dz: 4 8, x: 4 8, y: 4 8 -> dx: 4 8, dy: 4 8"),
    *each("pow_x_grad atan2_x_grad", "dz: 4 8, x: 4 8, y: 4 8 -> dx: 4 8"),
    *each("pow_y_grad atan2_y_grad", "dz: 4 8, x: 4 8, y: 4 8 -> dy: 4 8"),
    *each("where", "condition: 4 8, x: 4 8, y: 4 8 -> out: 4 8",
          "condition: 8, x: 4 8, y: 4 1 -> out: 4 8", "condition: 4 8, x: 1 8, y: 4 1 -> out: 4 8"),
    case("where_scalar_x", "condition: 4 8, y: 4 8 -> out: 4 8", **operand(1.5)),
    case("where_scalar_x", "condition: 8, y: 4 8 -> out: 4 8", **operand(0.0)),
    case("where_scalar_y", "condition: 4 8, x: 4 8 -> out: 4 8", **operand(3)),
    case("where_scalar_y", "condition: 4 8, x: 4 8 -> out: 4 8", **operand(False)),
    case("where_scalar_xy", "condition: 4 8 -> out: 4 8", **_two(2.5, 3)),
    case("masked_fill", "mask: 4 8, x: 4 8 -> out: 4 8", **operand(-1e4)),
    case("masked_fill", "mask: 4 8 4, x: 4 8 4 -> out: 4 8 4", **operand(0.0)),
    case("tril", "in: 4 8 12 -> out: 4 8 12",
         diagonal=1, is_floating_fill_value=False, **_TRIANGLE),
    case("tril", "in: 4 8 4 -> out: 4 8 4", diagonal=-1, is_floating_fill_value=True, **_TRIANGLE),
    case("triu", "in: 4 8 12 -> out: 4 8 12", diagonal=-1),
    case("cast_like", "in: 4 8, dtype_like: 4 8 -> out: 4 8"),
    _constant(is_floating_value=True, floating_value=2.0),
    _constant(is_floating_value=False, integer_value=0),
    case("arange", "-> out: 8", **_ARANGE),
    case("empty", "-> out: 4 8", dtype=2, shape=(4, 8)),
    case("uniform", "-> out: 4 8", **_SEED, **{"from": -1.0, "to": 2.0}, shape=(4, 8)),
    case("uniform_int", "-> out: 4 8", **_SEED, **{"from": 2, "to": 9}, shape=(4, 8)),
    case("normal", "-> out: 4 8", **_SEED, mean=1.0, std=0.5, shape=(4, 8)),
    case("exponential", "-> out: 4 8", **_SEED, lambd=2.0, out_shape=(4, 8)),
    case("randperm", "-> out: 8", seed=3, n=8),
    case("bernoulli", "in: 4 8 -> out: 4 8", **_SEED),
)  # fmt: skip
