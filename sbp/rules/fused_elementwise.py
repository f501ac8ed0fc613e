"""Pointwise ops fused with a bias, a mask or a second factor: every dim may be cut."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from autoddl.sbp.rules.fused_softmax import random_mask
from autoddl.sbp.rules.maps import elements, same_dims
from autoddl.sbp.rules.registry import Array, IndexMap, LocalOp, OpRule, OpView, linear, register

_erf = np.vectorize(math.erf, otypes=[float])
_TANH_SCALE, _TANH_CUBE = 0.7978845608028654, 0.044714998453855515  # as the kernels have them


def _pointwise(*texts: str) -> Callable[[OpView], IndexMap]:
    """Map operands of one shape, and a bias `b_0` along the dim `axis`."""

    def indices(view: OpView) -> IndexMap:
        groups = tuple(linear(text) for text in texts if linear(text).inputs <= {*view.inputs})
        large = [name for name in view.inputs + view.outputs if name != "b_0"]
        dims = same_dims(view, large)
        if "b_0" in view.inputs:
            dims["b_0"] = (dims["a_0"][_axis(view)],)
        return IndexMap(dims, linear=groups)

    return indices


def _axis(view: OpView) -> int:
    return int(view.attr["axis"]) % len(view.shape["a_0"])


def _biased(op: LocalOp) -> Array:
    a, shape = op.inputs["a_0"], [1] * len(op.view.shape["a_0"])
    shape[_axis(op.view)] = -1
    return np.asarray(a + op.inputs["b_0"].reshape(shape))


def _cdf(x: Array) -> Array:
    return np.asarray(0.5 * (1 + _erf(x / math.sqrt(2))))


def _bias_gelu(op: LocalOp) -> dict[str, Array]:
    x = _biased(op)
    return {"out_0": x * _cdf(x)}


def _bias_gelu_grad(op: LocalOp) -> dict[str, Array]:
    x = _biased(op)
    slope = _cdf(x) + x * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return {"dx_0": op.inputs["dy_0"] * slope}


def _bias_mask_map(view: OpView) -> IndexMap:
    """Map (a + b) * mask * scale: linear in all terms together, the mask is given."""
    terms = [name for name in view.inputs if name != "mask_0"]
    return _pointwise(" ".join(terms))(view)


def _bias_mask(op: LocalOp) -> dict[str, Array]:
    kept = np.where(op.inputs["mask_0"] != 0, _biased(op) * op.view.attr["scale"], 0.0)
    return {"out_0": kept + op.inputs.get("_add_to_output_0", 0.0)}


def _fast_gelu(x: Array) -> tuple[Array, Array]:
    """Return the tanh approximation of GELU and its slope."""
    inner = np.tanh(_TANH_SCALE * (x + _TANH_CUBE * x**3))
    slope = (1 - inner**2) * _TANH_SCALE * (1 + 3 * _TANH_CUBE * x * x)
    return 0.5 * x * (1 + inner), 0.5 * (1 + inner + x * slope)


def _gelu_mul(op: LocalOp) -> dict[str, Array]:
    return {"out_0": _fast_gelu(op.inputs["in_0"])[0] * op.inputs["multiplier_0"]}


def _gelu_mul_grad(op: LocalOp) -> dict[str, Array]:
    value, slope = _fast_gelu(op.inputs["in_0"])
    dy = op.inputs["out_diff_0"]
    return {"in_diff_0": dy * op.inputs["multiplier_0"] * slope, "multiplier_diff_0": dy * value}


def _weighted_sum_map(view: OpView) -> IndexMap:
    return _pointwise(" ".join(view.inputs))(view)


def _weighted_sum(op: LocalOp) -> dict[str, Array]:
    attr, names = op.view.attr, op.view.inputs
    parts = [w * op.inputs[name] for w, name in zip(attr["weights"], names, strict=True)]
    return {"out_0": attr["alpha"] * np.sum(parts, axis=0)}


def _per_element(flop: float) -> Callable[[OpView], float]:
    return lambda view: flop * elements(view.shape[view.outputs[0]])


register(
    OpRule("fused_bias_add_gelu", _pointwise(), _bias_gelu, _per_element(9)),
    OpRule("fused_bias_add_gelu_grad", _pointwise("dy_0"), _bias_gelu_grad, _per_element(13)),
    OpRule(
        "fused_bias_add_mask_scale",
        _bias_mask_map,
        _bias_mask,
        _per_element(3),
        samplers={"mask_0": random_mask},
    ),
    OpRule("fused_fast_gelu_mul", _pointwise("multiplier_0"), _gelu_mul, _per_element(9)),
    OpRule(
        "fused_fast_gelu_mul_grad",
        _pointwise("out_diff_0", "multiplier_0 -> in_diff_0"),
        _gelu_mul_grad,
        _per_element(17),
    ),
    OpRule(
        "fused_weighted_sum",
        _weighted_sum_map,
        _weighted_sum,
        lambda view: 2 * len(view.inputs) * elements(view.shape["out_0"]),
    ),
)
