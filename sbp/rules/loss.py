"""Negative log likelihood: the class dim may be cut, as each target lies in one device's range."""

from __future__ import annotations

import numpy as np

from autoddl.sbp.rules.maps import dim_names, elements, positive
from autoddl.sbp.rules.registry import Array, Dims, IndexMap, LocalOp, OpRule, OpView, register

_FAMILY = "embedding"  # a look-up per row


def _nll_map(view: OpView) -> IndexMap:
    """Map nll and nll_grad: classes are the last dim of the input, and nll sums over them."""
    rows = dim_names(len(view.shape["target_0"]))
    shapes: dict[str, Dims] = {
        "input_0": (*rows, "c"),
        "in_grad_0": (*rows, "c"),
        "weight_0": ("c",),
    }
    names = view.inputs + view.outputs
    return IndexMap({name: shapes.get(name, rows) for name in names}, summed=frozenset({"c"}))


def _one_hot(op: LocalOp) -> Array:
    """Return the weight of each (row, local class): zero but at the target of rows that count."""
    target, classes = op.inputs["target_0"], op.view.shape["input_0"][-1]
    numbers = op.start["input_0"][-1] + np.arange(classes)
    hot = (target[..., None] == numbers) & (target != op.view.attr["ignore_index"])[..., None]
    return np.asarray(hot * op.inputs.get("weight_0", np.ones(classes)))


def _nll(op: LocalOp) -> dict[str, Array]:
    hot = _one_hot(op)
    return {
        "output_0": -(hot * op.inputs["input_0"]).sum(axis=-1),
        "out_weight_0": hot.sum(axis=-1),
    }


def _nll_grad(op: LocalOp) -> dict[str, Array]:
    return {"in_grad_0": -_one_hot(op) * op.inputs["out_grad_0"][..., None]}


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
        _nll_map,
        _nll_grad,
        lambda view: elements(view.shape["target_0"]),
        family=_FAMILY,
        samplers=_SAMPLERS,
    ),
)
