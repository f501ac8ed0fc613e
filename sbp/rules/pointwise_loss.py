"""Losses per element and their gradients: every dim may be cut, gradients are linear in dy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from autoddl.sbp.rules.maps import align, elements, positive, uncut
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

Inputs = Mapping[str, Array]
Attr = Mapping[str, Any]


def _sigmoid(x: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))


def _weight(of: Inputs) -> Array:
    return np.asarray(of.get("weight_0", 1.0))


def _logits_loss(of: Inputs, attr: Attr) -> Array:
    """Return w * ((1 - t) x + (1 + (p - 1) t) log(1 + exp(-x))), p the weight of positives."""
    x, t, p = of["input_0"], of["target_0"], of.get("pos_weight_0", np.ones(()))
    return np.asarray(_weight(of) * ((1 - t) * x + (1 + (p - 1) * t) * np.logaddexp(0, -x)))


def _logits_slope(of: Inputs, attr: Attr) -> Array:
    x, t, p = of["input_0"], of["target_0"], of.get("pos_weight_0", np.ones(()))
    return np.asarray(_weight(of) * (1 - t - (1 + (p - 1) * t) * _sigmoid(-x)))


def _probability_loss(of: Inputs, attr: Attr) -> Array:
    x, t = of["input_0"], of["target_0"]
    return np.asarray(-_weight(of) * (t * np.log(x) + (1 - t) * np.log(1 - x)))


def _probability_slope(of: Inputs, attr: Attr) -> Array:
    x, t = of["input_0"], of["target_0"]
    return np.asarray(_weight(of) * (x - t) / (x * (1 - x)))


def _smooth_l1(of: Inputs, attr: Attr) -> Array:
    distance, beta = np.abs(of["input_0"] - of["target_0"]), attr["beta"]
    near = distance < beta
    return np.where(near, 0.5 * distance**2 / (beta or 1.0), distance - 0.5 * beta)


def _smooth_l1_slope(of: Inputs, attr: Attr) -> Array:
    difference, beta = of["input_0"] - of["target_0"], attr["beta"]
    near = np.abs(difference) < beta
    return np.where(near, difference / (beta or 1.0), np.sign(difference))


def _kl_div(of: Inputs, attr: Attr) -> Array:
    """Return t (log t - x), 0 where t is; x and, by attribute, t are logarithms."""
    x, t = of["input_0"], of["target_0"]
    if attr["log_target"]:
        return np.asarray(np.exp(t) * (t - x))
    return np.where(t > 0, t * (np.log(np.where(t > 0, t, 1.0)) - x), 0.0)


def _kl_div_slope(of: Inputs, attr: Attr) -> Array:
    t = of["target_0"]
    return -np.exp(t) if attr["log_target"] else np.where(t > 0, -t, 0.0)


def _map(view: OpView) -> IndexMap:
    """Map operands that broadcast to the input (pos_weight may); weights and dy pass P."""
    shape = view.shape["input_0"]
    dims = {name: align(view.shape[name], shape) for name in view.inputs + view.outputs}
    if "d0" in dims.get("pos_weight_0", ()):  # the engine refuses to cut pos_weight
        dims = {name: tuple("r0" if i == "d0" else i for i in own) for name, own in dims.items()}
    groups = tuple(linear(name) for name in ("weight_0", "dy_0") if name in view.inputs)
    unread = frozenset({"input_0"}) if view.type == "kl_div_loss_grad" else frozenset()
    return IndexMap(dims, linear=groups, shape_only=unread)


def _unit(view: OpView, operand: str, rng: np.random.Generator) -> Array:
    """Draw probabilities that are not close to 0 or 1."""
    return rng.uniform(0.1, 0.9, view.shape[operand])


def _rules(
    op_type: str,
    value: Callable[[Inputs, Attr], Array],
    slope: Callable[[Inputs, Attr], Array],
    flop: float,
    samplers: Mapping[str, Sampler],
) -> tuple[OpRule, OpRule]:
    """Return the rules of a loss and of its gradient."""

    def forward(op: LocalOp) -> dict[str, Array]:
        return {"out_0": value(op.inputs, op.view.attr)}

    def backward(op: LocalOp) -> dict[str, Array]:
        return {"dx_0": op.inputs["dy_0"] * slope(op.inputs, op.view.attr)}

    def flops(view: OpView) -> float:
        return flop * elements(view.shape["input_0"])

    return (
        OpRule(op_type, _map, forward, flops, samplers=samplers),
        OpRule(f"{op_type}_grad", _map, backward, flops, samplers=samplers),
    )


# --- means over all elements ---------------------------------------------------------------------

_MEAN_NOTE = (
    "a mean: one device divides by the number of its own elements, so that no cut adds up right; "
    "the engine's kernel divides by the logical number and allows S0, S0 -> P"
)


def _mean_map(view: OpView) -> IndexMap:
    groups = (linear("dy_0"),) if "dy_0" in view.inputs else ()
    return IndexMap(uncut(view, view.inputs + view.outputs), linear=groups)


def _mean(op: LocalOp) -> dict[str, Array]:
    return {"out_0": np.asarray(_logits_loss(op.inputs, {}).mean())}


def _mean_grad(op: LocalOp) -> dict[str, Array]:
    slope = _logits_slope(op.inputs, {})
    return {"dx_0": op.inputs["dy_0"] * slope / slope.size}


def _mean_flops(view: OpView) -> float:
    return 10 * elements(view.shape["input_0"])


_TARGETS: dict[str, Sampler] = {"target_0": _unit, "weight_0": positive, "pos_weight_0": positive}
_MEAN = "binary_cross_entropy_with_logits_reduce_mean"
register(
    *_rules("binary_cross_entropy_with_logits", _logits_loss, _logits_slope, 10, _TARGETS),
    *_rules(
        "binary_cross_entropy",
        _probability_loss,
        _probability_slope,
        10,
        {**_TARGETS, "input_0": _unit},
    ),
    *_rules("smooth_l1_loss", _smooth_l1, _smooth_l1_slope, 5, {}),
    *_rules("kl_div_loss", _kl_div, _kl_div_slope, 6, {}),
    OpRule(_MEAN, _mean_map, _mean, _mean_flops, samplers=_TARGETS, notes=_MEAN_NOTE),
    OpRule(
        f"{_MEAN}_grad", _mean_map, _mean_grad, _mean_flops, samplers=_TARGETS, notes=_MEAN_NOTE
    ),
)
