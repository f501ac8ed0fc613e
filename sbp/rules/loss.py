"""Negative log likelihood: the class dim may be cut, as each target lies in one device's range."""

from __future__ import annotations

import numpy as np

from autoddl.sbp.rules.maps import dim_names, elements, positive
from autoddl.sbp.rules.registry import (
    Array,
    Dims,
    IndexMap,
    LocalOp,
    OpRule,
    OpView,
    linear,
    register,
)

_FAMILY = "embedding"  # a look-up per row


def _nll_dims(view: OpView) -> dict[str, Dims]:
    """Name the dims of nll and nll_grad: classes are the last dim of the input."""
    rows = dim_names(len(view.shape["target_0"]))
    shapes: dict[str, Dims] = {
        "input_0": (*rows, "c"),
        "in_grad_0": (*rows, "c"),
        "weight_0": ("c",),
    }
    names = view.inputs + view.outputs
    return {name: shapes.get(name, rows) for name in names}


def _nll_map(view: OpView) -> IndexMap:
    """Map nll: it sums over the classes; the weight of a row does not depend on the input."""
    weight = (linear("weight_0"),) if "weight_0" in view.inputs else ()
    return IndexMap(
        _nll_dims(view),
        summed=frozenset({"c"}),
        linear=(linear("input_0 -> output_0"), *weight),
        in_order=frozenset({"c"}),
    )


def _nll_grad_map(view: OpView) -> IndexMap:
    groups = [linear(name) for name in ("out_grad_0", "weight_0") if name in view.inputs]
    return IndexMap(
        _nll_dims(view),
        linear=tuple(groups),
        shape_only=frozenset({"input_0"}),
        in_order=frozenset({"c"}),
    )


def _one_hot(op: LocalOp, like: str) -> Array:
    """Return the weight of each (row, class of `like`): zero but at the target of rows that count."""
    target, classes = op.inputs["target_0"], op.view.shape[like][-1]
    numbers = op.start[like][-1] + np.arange(classes)
    hot = (target[..., None] == numbers) & (target != op.view.attr["ignore_index"])[..., None]
    return np.asarray(hot * op.inputs.get("weight_0", np.ones(classes)))


def _nll(op: LocalOp) -> dict[str, Array]:
    hot = _one_hot(op, "input_0")
    return {
        "output_0": -(hot * op.inputs["input_0"]).sum(axis=-1),
        "out_weight_0": hot.sum(axis=-1),
    }


def _nll_grad(op: LocalOp) -> dict[str, Array]:
    return {"in_grad_0": -_one_hot(op, "in_grad_0") * op.inputs["out_grad_0"][..., None]}


def _class_number(view: OpView, operand: str, rng: np.random.Generator) -> Array:
    """Draw targets; the last row is one to ignore."""
    target = rng.integers(0, view.shape["input_0"][-1], view.shape[operand])
    target[-1] = view.attr["ignore_index"]
    return target


_SAMPLERS = {"target_0": _class_number, "weight_0": positive}
register(
    OpRule(
        "nll",
        _nll_map,
        _nll,
        lambda view: 2 * elements(view.shape["target_0"]),
        family=_FAMILY,
        samplers=_SAMPLERS,
    ),
    OpRule(
        "nll_grad",
        _nll_grad_map,
        _nll_grad,
        lambda view: elements(view.shape["target_0"]),
        family=_FAMILY,
        samplers=_SAMPLERS,
    ),
)
