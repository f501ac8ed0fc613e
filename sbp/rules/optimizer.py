"""Optimizer updates: pointwise in the parameter, its gradient and its states, all cut alike.

The engine's update ops have no outputs, they write their inputs. So the references return the new
values of model and states under the names of those inputs; they have the inputs' states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autoddl.sbp.rules.maps import elements, positive, same_dims, uncut
from autoddl.sbp.rules.registry import (
    Array,
    IndexMap,
    Linear,
    LocalOp,
    OpRule,
    OpView,
    linear,
    register,
)

_CUT_ALIKE = ("model_0", "model_diff_0", "m_0", "v_0", "max_v_0", "momentum_0")


def _update_map(view: OpView) -> IndexMap:
    """Map an update; step size, bias corrections and switches are scalars and stay whole."""
    alike = [name for name in view.inputs if name in _CUT_ALIKE]
    rest = [name for name in view.inputs if name not in _CUT_ALIKE]
    return IndexMap(same_dims(view, alike) | uncut(view, rest), linear=_linearities(view, alike))


def _linearities(view: OpView, alike: Sequence[str]) -> tuple[Linear, ...]:
    """Return what an update is linear in; the sign that l1 takes and Adam's root are not linear."""
    l1, *rest = (view.attr.get(name) for name in ("l1", "l2", "weight_decay"))
    groups = []
    if l1 == 0 and view.type != "adam_update":
        groups.append(linear(" ".join(alike)))
    if l1 == 0 and rest == [0, 0] and "learning_rate_0" in view.inputs:
        groups.append(linear("model_0 learning_rate_0"))
    return tuple(groups)


def _scalar(op: LocalOp, name: str) -> float:
    """Return an operand of one element, or the attribute that stands in for it."""
    operand = op.inputs.get(f"{name}_0")
    return float(op.view.attr[f"{name}_val"]) if operand is None else float(operand.item())


def _step_size(op: LocalOp) -> float:
    return _scalar(op, "learning_rate") * float(op.view.attr["learning_rate_scale"])


def _regularised(op: LocalOp) -> Array:
    """Return the gradient with its scale and the l1 and l2 terms."""
    attr, model = op.view.attr, op.inputs["model_0"]
    scaled = op.inputs["model_diff_0"] * attr["scale"]
    return np.asarray(scaled + attr["l1"] * np.sign(model) + attr["l2"] * model)


def _stepped(op: LocalOp, direction: Array) -> Array:
    """Return the model after a step, with decoupled weight decay."""
    model = op.inputs["model_0"]
    decay = op.view.attr["weight_decay"] * model
    return np.asarray(model - _step_size(op) * (direction + decay))


def sgd(op: LocalOp) -> dict[str, Array]:
    """Return the model after a step of gradient descent."""
    return {"model_0": _stepped(op, _regularised(op))}


def momentum(op: LocalOp) -> dict[str, Array]:
    """Return model and momentum after a step of gradient descent with momentum."""
    attr, gradient = op.view.attr, _regularised(op)
    average = attr["beta"] * op.inputs["momentum_0"] + (1 - attr["dampening"]) * gradient
    direction = gradient + attr["beta"] * average if attr["nesterov"] else average
    if attr["maximize"]:
        direction = -direction
    return {"model_0": _stepped(op, direction), "momentum_0": average}


def adam(op: LocalOp) -> dict[str, Array]:
    """Return model and moments after a step of Adam."""
    attr, gradient = op.view.attr, _regularised(op)
    m = attr["beta1"] * op.inputs["m_0"] + (1 - attr["beta1"]) * gradient
    v = attr["beta2"] * op.inputs["v_0"] + (1 - attr["beta2"]) * gradient**2
    new = {"m_0": m, "v_0": v}
    if attr["amsgrad"]:
        new["max_v_0"] = v = np.maximum(op.inputs["max_v_0"], v)
    root = np.sqrt(v) / np.sqrt(_scalar(op, "bias_correction2")) + attr["epsilon"]
    return {"model_0": _stepped(op, m / root / _scalar(op, "bias_correction1")), **new}


def _bias_correction_map(view: OpView) -> IndexMap:
    return IndexMap(uncut(view, view.inputs + view.outputs))


def _bias_correction(op: LocalOp) -> dict[str, Array]:
    return {"out_0": 1 - op.view.attr["beta"] ** (op.inputs["train_step_0"] + 1)}


def _per_parameter(flop: float) -> Callable[[OpView], float]:
    return lambda view: flop * elements(view.shape["model_0"])


_POSITIVE = dict.fromkeys(
    ("v_0", "max_v_0", "learning_rate_0", "bias_correction1_0", "bias_correction2_0"), positive
)
register(
    OpRule(
        "sgd_update",
        _update_map,
        sgd,
        _per_parameter(4),
        family="optimizer",
        samplers=_POSITIVE,
        writes=frozenset({"model_0"}),
    ),
    OpRule(
        "momentum_update",
        _update_map,
        momentum,
        _per_parameter(6),
        family="optimizer",
        samplers=_POSITIVE,
    ),
    OpRule(
        "adam_update", _update_map, adam, _per_parameter(12), family="optimizer", samplers=_POSITIVE
    ),
    OpRule(
        "adam_bias_correction_factor",
        _bias_correction_map,
        _bias_correction,
        lambda view: 3.0,
        family="optimizer",
        samplers={"train_step_0": positive},
    ),
)
