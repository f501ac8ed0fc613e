"""Mathematical functions of one operand and their gradients, linear in dy."""

from __future__ import annotations

import math

import numpy as np

from autoddl.sbp.rules.elementwise import scalar
from autoddl.sbp.rules.maps import positive
from autoddl.sbp.rules.pointwise import Function, one_of, pointwise, within
from autoddl.sbp.rules.registry import Array, Sampler, register

_erf = np.vectorize(math.erf, otypes=[float])
_ERF_SLOPE = 2 / math.sqrt(math.pi)


def _clip_slope(x: Array, low: float, high: float) -> Array:
    return np.asarray((x >= low) & (x <= high), dtype=float)


# Op type: NumPy reference, flop per element.
_FUNCTIONS: dict[str, tuple[Function, float]] = {
    "sin": (lambda x: np.sin(x), 8),
    "cos": (lambda x: np.cos(x), 8),
    "tan": (lambda x: np.tan(x), 10),
    "asin": (lambda x: np.arcsin(x), 10),
    "acos": (lambda x: np.arccos(x), 10),
    "atan": (lambda x: np.arctan(x), 10),
    "sinh": (lambda x: np.sinh(x), 8),
    "cosh": (lambda x: np.cosh(x), 8),
    "asinh": (lambda x: np.arcsinh(x), 8),
    "acosh": (lambda x: np.arccosh(x), 8),
    "atanh": (lambda x: np.arctanh(x), 8),
    "erf": (lambda x: _erf(x), 8),
    "erfc": (lambda x: 1 - _erf(x), 9),
    "expm1": (lambda x: np.expm1(x), 5),
    "log1p": (lambda x: np.log1p(x), 5),
    "log2": (lambda x: np.log2(x), 5),
    "log10": (lambda x: np.log10(x), 5),
    "reciprocal": (lambda x: 1 / x, 1),
    "reciprocal_no_nan": (lambda x: np.where(x == 0, 0, 1 / np.where(x == 0, 1, x)), 2),
    "floor": (lambda x: np.floor(x), 1),
    "ceil": (lambda x: np.ceil(x), 1),
    "round": (lambda x: np.rint(x), 1),
    "rint": (lambda x: np.rint(x), 1),
    "trunc": (lambda x: np.trunc(x), 1),
    "sign": (lambda x: np.sign(x), 1),
    "logical_not": (lambda x: x == 0, 1),
    "scalar_reverse_pow": (lambda x, a: scalar(a) ** x, 5),
    "scalar_fmod": (lambda x, a: np.fmod(x, scalar(a)), 3),
    "scalar_floordiv": (lambda x, a: np.floor(x / scalar(a)), 2),
    "clip_by_scalar": (lambda x, a: np.clip(x, a["floating_min"], a["floating_max"]), 2),
    "clip_by_scalar_min": (lambda x, a: np.maximum(x, a["floating_min"]), 1),
    "clip_by_scalar_max": (lambda x, a: np.minimum(x, a["floating_max"]), 1),
}

# Op type: NumPy reference of dy and x, flop per element.
_GRADIENTS: dict[str, tuple[Function, float]] = {
    "sin_grad": (lambda dy, x: dy * np.cos(x), 9),
    "cos_grad": (lambda dy, x: -dy * np.sin(x), 10),
    "tan_grad": (lambda dy, x: dy / np.cos(x) ** 2, 10),
    "asin_grad": (lambda dy, x: dy / np.sqrt(1 - x * x), 5),
    "acos_grad": (lambda dy, x: -dy / np.sqrt(1 - x * x), 6),
    "atan_grad": (lambda dy, x: dy / (1 + x * x), 3),
    "sinh_grad": (lambda dy, x: dy * np.cosh(x), 9),
    "cosh_grad": (lambda dy, x: dy * np.sinh(x), 9),
    "asinh_grad": (lambda dy, x: dy / np.sqrt(1 + x * x), 5),
    "acosh_grad": (lambda dy, x: dy / np.sqrt(x * x - 1), 5),
    "atanh_grad": (lambda dy, x: dy / (1 - x * x), 3),
    "erf_grad": (lambda dy, x: dy * _ERF_SLOPE * np.exp(-x * x), 7),
    "erfc_grad": (lambda dy, x: -dy * _ERF_SLOPE * np.exp(-x * x), 8),
    "expm1_grad": (lambda dy, x: dy * np.exp(x), 5),
    "log1p_grad": (lambda dy, x: dy / (1 + x), 2),
    "log2_grad": (lambda dy, x: dy / (x * math.log(2)), 2),
    "log10_grad": (lambda dy, x: dy / (x * math.log(10)), 2),
    "reciprocal_grad": (lambda dy, x: -dy / (x * x), 3),
    "reciprocal_no_nan_grad": (
        lambda dy, x: np.where(x == 0, 0, -dy / np.where(x == 0, 1, x) ** 2), 4
    ),
    "scalar_reverse_pow_grad": (
        lambda dy, x, a: dy * scalar(a) ** x * math.log(scalar(a)), 7
    ),
    "clip_by_scalar_grad": (
        lambda dy, x, a: dy * _clip_slope(x, a["floating_min"], a["floating_max"]), 3
    ),
    "clip_by_scalar_min_grad": (
        lambda dy, x, a: dy * _clip_slope(x, a["floating_min"], math.inf), 2
    ),
    "clip_by_scalar_max_grad": (
        lambda dy, x, a: dy * _clip_slope(x, -math.inf, a["floating_max"]), 2
    ),
}  # fmt: skip

_SMALL = within(-0.9, 0.9)
# Where the values of x may not be just any number: forward op type → sampler.
_DOMAINS: dict[str, Sampler] = {
    "tan": _SMALL, "asin": _SMALL, "acos": _SMALL, "atanh": _SMALL, "acosh": within(1.2, 3.0),
    "log1p": positive, "log2": positive, "log10": positive, "reciprocal": positive,
    "reciprocal_no_nan": one_of(-2.0, 0.0, 0.5), "logical_not": one_of(-2.0, 0.0, 0.5),
}  # fmt: skip


def _samplers(op_type: str) -> dict[str, Sampler]:
    sampler = _DOMAINS.get(op_type.removesuffix("_grad"))
    return {"x_0": sampler} if sampler else {}


register(
    *(
        pointwise(name, function, flop=flop, samplers=_samplers(name))
        for name, (function, flop) in _FUNCTIONS.items()
    ),
    *(
        pointwise(name, function, flop=flop, linear_in=("dy_0",), samplers=_samplers(name))
        for name, (function, flop) in _GRADIENTS.items()
    ),
)
