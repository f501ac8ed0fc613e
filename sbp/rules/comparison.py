"""Comparisons, logic and other functions of two operands that no P passes through."""

from __future__ import annotations

import operator

import numpy as np

from autoddl.sbp.rules.elementwise import scalar
from autoddl.sbp.rules.maps import positive
from autoddl.sbp.rules.pointwise import Function, one_of, pointwise, within
from autoddl.sbp.rules.registry import Sampler, register

_COMPARISONS: dict[str, Function] = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "logical_and": lambda x, y: (x != 0) & (y != 0),
    "logical_or": lambda x, y: (x != 0) | (y != 0),
    "logical_xor": lambda x, y: (x != 0) ^ (y != 0),
}

# Op type: NumPy reference, flop per element. "broadcast_" variants take operands of other shapes.
_FUNCTIONS: dict[str, tuple[Function, float]] = {
    "elementwise_maximum": (lambda x, y: np.maximum(x, y), 1),
    "elementwise_minimum": (lambda x, y: np.minimum(x, y), 1),
    "broadcast_maximum": (lambda x, y: np.maximum(x, y), 1),
    "broadcast_minimum": (lambda x, y: np.minimum(x, y), 1),
    "pow": (lambda x, y: x**y, 10),
    "broadcast_pow": (lambda x, y: x**y, 10),
    "broadcast_fmod": (lambda x, y: np.fmod(x, y), 3),
    "floordiv": (lambda x, y: np.floor(x / y), 2),
    "truncdiv": (lambda x, y: np.trunc(x / y), 2),
    "atan2": (lambda x, y: np.arctan2(x, y), 12),
}

# Op type: NumPy references of dz, x and y (one for each output), flop per element; linear in dz.
_GRADIENTS: dict[str, tuple[tuple[Function, ...], float]] = {
    "elementwise_maximum_backward": (
        (lambda dz, x, y: dz * (x > y), lambda dz, x, y: dz * (x <= y)), 2
    ),
    "elementwise_minimum_backward": (
        (lambda dz, x, y: dz * (x < y), lambda dz, x, y: dz * (x >= y)), 2
    ),
    "pow_x_grad": ((lambda dz, x, y: dz * y * x ** (y - 1),), 12),
    "pow_y_grad": ((lambda dz, x, y: dz * x**y * np.log(x),), 15),
    "atan2_x_grad": ((lambda dz, x, y: dz * y / (x * x + y * y),), 5),
    "atan2_y_grad": ((lambda dz, x, y: -dz * x / (x * x + y * y),), 6),
}  # fmt: skip

_FEW = one_of(-1.0, 0.0, 2.0)  # so that equal ones occur
_DOMAINS: dict[str, dict[str, Sampler]] = {
    "pow": {"x_0": positive},
    "broadcast_pow": {"x_0": positive},
    "pow_x_grad": {"x_0": positive},
    "pow_y_grad": {"x_0": positive},
    "broadcast_fmod": {"x_0": within(-9.0, 9.0), "y_0": positive},
    "floordiv": {"x_0": within(-9.0, 9.0), "y_0": positive},
    "truncdiv": {"x_0": within(-9.0, 9.0), "y_0": positive},
}


def _with_scalar(compare: Function) -> Function:
    return lambda x, a: compare(x, np.float64(scalar(a)))


def _with_array(compare: Function) -> Function:
    return lambda x, y: compare(x, y)


register(
    *(
        pointwise(f"broadcast_{name}", _with_array(compare), samplers={"x_0": _FEW, "y_0": _FEW})
        for name, compare in _COMPARISONS.items()
    ),
    *(
        pointwise(
            f"scalar_{name if logic else f'logical_{name}'}",
            _with_scalar(compare),
            samplers={"in_0": _FEW},
        )
        for name, compare in _COMPARISONS.items()
        for logic in (name.startswith("logical"),)
    ),
    *(
        pointwise(name, function, flop=flop, samplers=_DOMAINS.get(name))
        for name, (function, flop) in _FUNCTIONS.items()
    ),
    *(
        pointwise(name, functions, flop=flop, linear_in=("dz_0",), samplers=_DOMAINS.get(name))
        for name, (functions, flop) in _GRADIENTS.items()
    ),
)
