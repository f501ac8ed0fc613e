"""Activation functions beyond those in elementwise, and their gradients, linear in dy."""

from __future__ import annotations

import math

import numpy as np

from autoddl.sbp.rules.maps import dim_names, elements
from autoddl.sbp.rules.pointwise import Function, one_of, pointwise, within
from autoddl.sbp.rules.registry import (
    Array,
    Dims,
    IndexMap,
    LocalOp,
    OpRule,
    OpView,
    Sampler,
    linear,
    register,
)

_SELU_SCALE, _SELU_ALPHA = 1.0507009873554805, 1.6732632423543772
_QUICK = 1.702
_TANH_SCALE, _TANH_CUBE = math.sqrt(2 / math.pi), 0.044715


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _silu_slope(x: Array, steepness: float = 1.0) -> Array:
    s = _sigmoid(steepness * x)
    return np.asarray(s * (1 + steepness * x * (1 - s)))


def _fast_gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(_TANH_SCALE * (x + _TANH_CUBE * x**3))))


def _fast_gelu_slope(x: Array) -> Array:
    t = np.tanh(_TANH_SCALE * (x + _TANH_CUBE * x**3))
    inner = _TANH_SCALE * (1 + 3 * _TANH_CUBE * x**2)
    return np.asarray(0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner)


# Op type: NumPy reference, flop per element. The operands are called in and out or x and y.
_FROM_IN: dict[str, tuple[Function, float]] = {
    "silu": (lambda x: x * _sigmoid(x), 5),
    "elu": (lambda x, a: np.where(x > 0, x, a["alpha"] * np.expm1(x)), 5),
    "selu": (lambda x: _SELU_SCALE * np.where(x > 0, x, _SELU_ALPHA * np.expm1(x)), 6),
    "softplus": (
        lambda x, a: np.where(
            a["beta"] * x > a["threshold"], x, np.log1p(np.exp(a["beta"] * x)) / a["beta"]
        ),
        9,
    ),
    "softsign": (lambda x: x / (1 + np.abs(x)), 3),
    "hardsigmoid": (lambda x: np.clip(x / 6 + 0.5, 0, 1), 3),
    "hardswish": (lambda x: x * np.clip(x / 6 + 0.5, 0, 1), 4),
    "hardtanh": (lambda x, a: np.clip(x, a["min_val"], a["max_val"]), 2),
    "hardshrink": (lambda x, a: np.where(np.abs(x) > a["lambd"], x, 0), 2),
    "softshrink": (lambda x, a: np.sign(x) * np.maximum(np.abs(x) - a["alpha"], 0), 3),
    "threshold": (lambda x, a: np.where(x > a["threshold_val"], x, a["value"]), 1),
    "fast_gelu": (_fast_gelu, 12),
    "leaky_relu": (lambda x, a: np.where(x > 0, x, a["alpha"] * x), 2),
    "log_sigmoid": (lambda x: -np.log1p(np.exp(-x)), 9),
    "quick_gelu": (lambda x: x * _sigmoid(_QUICK * x), 6),
}

# Op type: NumPy reference of dy and x (or y, the result), flop per element.
_GRADIENTS: dict[str, tuple[Function, float]] = {
    "silu_grad": (lambda dy, x: dy * _silu_slope(x), 8),
    "elu_grad": (lambda dy, x, a: dy * np.where(x > 0, 1, a["alpha"] * np.exp(x)), 6),
    "selu_grad": (
        lambda dy, x: dy * _SELU_SCALE * np.where(x > 0, 1, _SELU_ALPHA * np.exp(x)), 7
    ),
    "softplus_grad": (
        lambda dy, x, a: dy
        * np.where(a["beta"] * x > a["threshold"], 1, _sigmoid(a["beta"] * x)),
        7,
    ),
    "softsign_grad": (lambda dy, x: dy / (1 + np.abs(x)) ** 2, 4),
    "hardsigmoid_grad": (lambda dy, x: dy * (np.abs(x) < 3) / 6, 3),
    "hardswish_grad": (
        lambda dy, x: dy * np.where(np.abs(x) < 3, x / 3 + 0.5, x > 0), 4
    ),
    "hardtanh_grad": (lambda dy, y, a: dy * ((y > a["min_val"]) & (y < a["max_val"])), 3),
    "hardshrink_grad": (lambda dy, y: dy * (y != 0), 1),
    "softshrink_grad": (lambda dy, y: dy * (y != 0), 1),
    "threshold_grad": (lambda dy, x, a: dy * (x > a["threshold_val"]), 1),
    "fast_gelu_grad": (lambda dy, x: dy * _fast_gelu_slope(x), 20),
    "leaky_relu_grad": (lambda dy, x, a: dy * np.where(x > 0, 1, a["alpha"]), 2),
    "log_sigmoid_grad": (lambda dy, x: dy * _sigmoid(-x), 5),
    "quick_gelu_grad": (lambda dy, x: dy * _silu_slope(x, _QUICK), 9),
}  # fmt: skip

# Where the values have to reach all branches.
_DOMAINS = {
    "hardsigmoid": within(-6.0, 6.0),
    "hardswish": within(-6.0, 6.0),
    "hardshrink_grad": one_of(-1.5, 0.0, 0.75),
    "softshrink_grad": one_of(-1.5, 0.0, 0.75),
}


def _samplers(op_type: str) -> dict[str, Sampler]:
    found = _DOMAINS.get(op_type) or _DOMAINS.get(op_type.removesuffix("_grad"))
    return {"in_0": found, "x_0": found, "y_0": found} if found else {}


def _prelu_dims(view: OpView, *like_x: str) -> dict[str, Dims]:
    """Name the dims of x; alpha has one slope for each channel (dim 1), or one for all.

    Engines may refuse to cut the channels then, so they are named s1.
    """
    names = dim_names(len(view.shape["x_0"]))
    shared = view.shape["alpha_0"] == (1,)
    x: Dims = tuple("s1" if shared and i == "d1" else i for i in names)
    alpha: Dims = (None,) if shared else ("d1",)
    named = {name: alpha for name in view.inputs + view.outputs if name.startswith("alpha")}
    return {**named, **dict.fromkeys(like_x, x)}


def _prelu_map(view: OpView) -> IndexMap:
    return IndexMap(_prelu_dims(view, "x_0", "y_0"))


def _slopes(op: LocalOp) -> Array:
    alpha, x = op.inputs["alpha_0"], op.inputs["x_0"]
    return alpha.reshape((-1,) + (1,) * max(x.ndim - 2, 0))


def _prelu(op: LocalOp) -> dict[str, Array]:
    x = op.inputs["x_0"]
    return {"y_0": np.where(x > 0, x, _slopes(op) * x)}


def _prelu_grad_map(view: OpView) -> IndexMap:
    """Map the gradients of x and of alpha, which is summed over all dims that alpha lacks."""
    dims = _prelu_dims(view, "dy_0", "x_0", "dx_0")
    summed = frozenset(i for i in dims["x_0"] if i is not None and i not in dims["alpha_0"])
    return IndexMap(dims, summed=summed, linear=(linear("dy_0"),))


def _prelu_grad(op: LocalOp) -> dict[str, Array]:
    x, dy, shape = op.inputs["x_0"], op.inputs["dy_0"], op.view.shape["alpha_0"]
    results = {"dx_0": dy * np.where(x > 0, 1, _slopes(op))}
    if "alpha_diff_0" in op.view.outputs:
        whole = dy * np.where(x > 0, 0, x)
        axes = tuple(i for i in range(x.ndim) if shape == (1,) or i != 1)
        results["alpha_diff_0"] = whole.sum(axis=axes).reshape(shape)
    return results


register(
    *(
        pointwise(name, function, flop=flop, samplers=_samplers(name))
        for name, (function, flop) in _FROM_IN.items()
    ),
    *(
        pointwise(name, function, flop=flop, linear_in=("dy_0",), samplers=_samplers(name))
        for name, (function, flop) in _GRADIENTS.items()
    ),
    OpRule("prelu", _prelu_map, _prelu, lambda view: 2 * elements(view.shape["x_0"])),
    OpRule(
        "prelu_grad", _prelu_grad_map, _prelu_grad, lambda view: 5 * elements(view.shape["x_0"])
    ),
)
