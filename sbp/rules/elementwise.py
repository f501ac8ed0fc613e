"""Pointwise ops: every dim may be cut; P passes only where the op is linear."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from autoddl.sbp.rules.maps import (
    align,
    dim_names,
    elements,
    no_flops,
    positive,
    renamed,
    same_dims,
)
from autoddl.sbp.rules.registry import (
    Array,
    IndexMap,
    LocalOp,
    OpRule,
    OpView,
    Sampler,
    linear,
    register,
)

Attr = Mapping[str, Any]
FLOATING = frozenset({2, 3, 9, 11})  # DataType numbers of float32, float64, float16, bfloat16
INTEGRAL = frozenset({1, 4, 5, 6, 7})  # char, int8, int32, int64, uint8


def scalar(attr: Attr) -> float:
    """Return the operand of a scalar op, whichever kind it was given as."""
    return float(attr["float_operand" if attr["has_float_operand"] else "int_operand"])


_erf = np.vectorize(math.erf, otypes=[float])


def _cdf(x: Array) -> Array:
    return np.asarray(0.5 * (1 + _erf(x / math.sqrt(2))))


def _gelu_slope(x: Array) -> Array:
    return np.asarray(_cdf(x) + x * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi))


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _cast(x: Array, attr: Attr) -> Array:
    if attr["dtype"] in FLOATING:
        return x
    return np.trunc(x) if attr["dtype"] in INTEGRAL else (x != 0).astype(float)


Unary = Callable[[Array, Attr], Array]
Gradient = Callable[[Array, Array, Attr], Array]
Binary = Callable[[Array, Array], Array]

# Op type: NumPy reference, is P passed on, flop per element.
_UNARY: dict[str, tuple[Unary, bool, float]] = {
    "relu": (lambda x, a: np.maximum(x, 0), False, 1),
    "gelu": (lambda x, a: x * _cdf(x), False, 8),
    "tanh": (lambda x, a: np.tanh(x), False, 5),
    "sigmoid": (lambda x, a: _sigmoid(x), False, 4),
    "exp": (lambda x, a: np.exp(x), False, 4),
    "log": (lambda x, a: np.log(x), False, 4),
    "sqrt": (lambda x, a: np.sqrt(x), False, 2),
    "rsqrt": (lambda x, a: 1 / np.sqrt(x), False, 3),
    "square": (lambda x, a: x * x, False, 1),
    "abs": (lambda x, a: np.abs(x), False, 1),
    "negative": (lambda x, a: -x, True, 1),
    "scalar_add": (lambda x, a: x + scalar(a), False, 1),  # P + c would add c on every device
    "scalar_mul": (lambda x, a: x * scalar(a), True, 1),
    "scalar_div": (lambda x, a: x / scalar(a), True, 1),
    "scalar_pow": (lambda x, a: x ** scalar(a), False, 4),
    "identity": (lambda x, a: x, True, 0),
    "copy": (lambda x, a: x, True, 0),
}

# Op type: the operand beside dy, NumPy reference of (dy, that operand), flop. All are linear in dy.
_GRADIENTS: dict[str, tuple[str, Gradient, float]] = {
    "relu_grad": ("y_0", lambda dy, y, a: dy * (y > 0), 1),
    "gelu_grad": ("x_0", lambda dy, x, a: dy * _gelu_slope(x), 12),
    "tanh_grad": ("x_0", lambda dy, x, a: dy * (1 - np.tanh(x) ** 2), 7),
    "sigmoid_grad": ("y_0", lambda dy, y, a: dy * y * (1 - y), 3),
    "exp_grad": ("x_0", lambda dy, x, a: dy * np.exp(x), 5),
    "log_grad": ("x_0", lambda dy, x, a: dy / x, 1),
    "sqrt_grad": ("x_0", lambda dy, x, a: 0.5 * dy / np.sqrt(x), 3),
    "rsqrt_grad": ("x_0", lambda dy, x, a: -0.5 * dy * x**-1.5, 5),
    "square_grad": ("x_0", lambda dy, x, a: 2 * dy * x, 2),
    "abs_grad": ("x_0", lambda dy, x, a: dy * np.sign(x), 1),
    "scalar_pow_grad": (
        "x_0", lambda dy, x, a: dy * scalar(a) * x ** (scalar(a) - 1), 6
    ),
}  # fmt: skip

# Op type: NumPy reference of (x, y), sets of operands in which it is linear.
_BINARY: dict[str, tuple[Binary, tuple[str, ...]]] = {
    "broadcast_add": (np.add, ("x_0 y_0",)),  # jointly: B + P would add B once per device
    "broadcast_sub": (np.subtract, ("x_0 y_0",)),
    "broadcast_mul": (np.multiply, ("x_0", "y_0")),  # bilinear: P times P is not P
    "broadcast_div": (np.divide, ("x_0",)),
}

_POSITIVE = {
    "log", "sqrt", "rsqrt", "scalar_pow", "log_grad", "sqrt_grad", "rsqrt_grad", "scalar_pow_grad"
}  # fmt: skip


def _pointwise(*groups_: str) -> Callable[[OpView], IndexMap]:
    """Map operands of one shape; `groups_` as in `index_map`, "*" for all inputs together."""

    def indices(view: OpView) -> IndexMap:
        groups = tuple(linear(" ".join(view.inputs) if g == "*" else g) for g in groups_)
        return IndexMap(same_dims(view, view.inputs + view.outputs), linear=groups)

    return indices


def _cast_map(view: OpView) -> IndexMap:
    # Rounding and comparing with zero are not linear.
    return (_pointwise("*") if view.attr["dtype"] in FLOATING else _pointwise())(view)


def _like_map(view: OpView) -> IndexMap:
    dims = same_dims(view, view.inputs + view.outputs)
    zeros_add_up = (linear("-> out_0"),) if view.type == "zero_like" else ()
    return IndexMap(dims, linear=zeros_add_up, shape_only=frozenset({"like_0"}))


def _binary_map(texts: tuple[str, ...]) -> Callable[[OpView], IndexMap]:
    groups = tuple(map(linear, texts))

    def indices(view: OpView) -> IndexMap:
        x, y, z = (align(view.shape[name], view.shape["z_0"]) for name in ("x_0", "y_0", "z_0"))
        if len(x) != len(y):
            # A dim that one operand has with size 1, where the other has fewer dims, gets another
            # name: engines may cut it only where both operands have equally many.
            common = min(len(x), len(y))
            repeated = set(x[-common:]) ^ set(y[-common:]) if common else set()
            x, y, z = (renamed(dims, repeated) for dims in (x, y, z))
        return IndexMap({"x_0": x, "y_0": y, "z_0": z}, linear=groups)

    return indices


def _bias_add_map(view: OpView) -> IndexMap:
    axis = view.attr["axis"] % len(view.shape["a_0"])
    dims = {**same_dims(view, ("a_0", "out_0")), "b_0": (f"d{axis}",)}
    return IndexMap(dims, linear=(linear("a_0 b_0"),))


def _bias_add(op: LocalOp) -> dict[str, Array]:
    a, b = op.inputs["a_0"], op.inputs["b_0"]
    shape = [1] * a.ndim
    shape[op.view.attr["axis"] % a.ndim] = -1
    return {"out_0": a + b.reshape(shape)}


def _div_grad_map(view: OpView) -> IndexMap:
    """Map dy = -sum(dz * z / y), summed over the dims in which y was broadcast.

    Dims that y lacks altogether are named r0, r1, …: engines may refuse to cut them.
    """
    z, y = view.shape["z_0"], view.shape["y_0"]
    missing = dim_names(len(z) - len(y))
    large, small = renamed(dim_names(len(z)), missing), align(y, z)
    return IndexMap(
        {"z_0": large, "dz_0": large, "y_0": small, "dy_0": small},
        summed=frozenset(name for name in large if name is not None and name not in small),
        linear=(linear("z_0"), linear("dz_0")),
    )


def _div_grad(op: LocalOp) -> dict[str, Array]:
    whole = -op.inputs["dz_0"] * op.inputs["z_0"] / op.inputs["y_0"]
    shape = op.view.shape["dy_0"]
    summed = whole.sum(axis=tuple(range(whole.ndim - len(shape))))
    ones = tuple(i for i, size in enumerate(shape) if size == 1)
    return {"dy_0": np.asarray(summed.sum(axis=ones, keepdims=True))}


def _per_element(flop: float) -> Callable[[OpView], float]:
    return lambda view: flop * elements(view.shape[view.outputs[0]])


def _unary(op_type: str, function: Unary, is_linear: bool, flop: float) -> OpRule:
    def reference(op: LocalOp) -> dict[str, Array]:
        return {op.view.outputs[0]: function(op.inputs[op.view.inputs[0]], op.view.attr)}

    samplers: dict[str, Sampler] = {}
    if op_type in _POSITIVE:
        samplers = {"x_0": positive, "in_0": positive}
    return OpRule(
        op_type,
        _pointwise("*") if is_linear else _pointwise(),
        reference,
        _per_element(flop),
        family="elementwise" if flop else "memory",
        samplers=samplers,
    )


def _gradient(op_type: str, other: str, function: Gradient, flop: float) -> OpRule:
    def reference(op: LocalOp) -> dict[str, Array]:
        return {"dx_0": function(op.inputs["dy_0"], op.inputs[other], op.view.attr)}

    return OpRule(
        op_type,
        _pointwise("dy_0", "x_0") if op_type == "square_grad" else _pointwise("dy_0"),
        reference,
        _per_element(flop),
        samplers={other: positive} if op_type in _POSITIVE else {},
    )


def _binary(op_type: str, function: Binary, texts: tuple[str, ...]) -> OpRule:
    def reference(op: LocalOp) -> dict[str, Array]:
        return {"z_0": function(op.inputs["x_0"], op.inputs["y_0"])}

    samplers: dict[str, Sampler] = {"y_0": positive} if op_type == "broadcast_div" else {}
    return OpRule(op_type, _binary_map(texts), reference, samplers=samplers)


def _fill(op_type: str, value: float) -> OpRule:
    def reference(op: LocalOp) -> dict[str, Array]:
        return {"out_0": np.full(op.view.shape["out_0"], value)}

    return OpRule(op_type, _like_map, reference, no_flops, family="memory")


def _cast_reference(op: LocalOp) -> dict[str, Array]:
    return {"out_0": _cast(op.inputs["in_0"], op.view.attr)}


def _with_zeros(view: OpView, operand: str, rng: np.random.Generator) -> Array:
    """Draw values whose truth and integer parts differ."""
    return rng.choice(np.array([-1.75, 0.0, 0.5, 2.25]), view.shape[operand])


def _add_n(op: LocalOp) -> dict[str, Array]:
    return {"out_0": np.sum([op.inputs[name] for name in op.view.inputs], axis=0)}


def _add_n_flops(view: OpView) -> float:
    return (len(view.inputs) - 1) * elements(view.shape["out_0"])


register(
    *(_unary(name, *row) for name, row in _UNARY.items()),
    *(_gradient(name, *row) for name, row in _GRADIENTS.items()),
    *(_binary(name, *row) for name, row in _BINARY.items()),
    _fill("ones_like", 1.0),
    _fill("zero_like", 0.0),
    OpRule(
        "cast",
        _cast_map,
        _cast_reference,
        no_flops,
        family="memory",
        samplers={"in_0": _with_zeros},
    ),
    OpRule("add_n", _pointwise("*"), _add_n, _add_n_flops),
    OpRule("bias_add", _bias_add_map, _bias_add),
    OpRule(
        "broadcast_div_grad",
        _div_grad_map,
        _div_grad,
        lambda view: 3 * elements(view.shape["z_0"]),
        samplers={"y_0": positive},
    ),
)
