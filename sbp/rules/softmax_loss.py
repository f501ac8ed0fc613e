"""Cross-entropy of a softmax over the last dim: classes stay whole but for the gradients."""

from __future__ import annotations

import numpy as np

from autoddl.sbp.rules.maps import dim_names, elements
from autoddl.sbp.rules.registry import Array, IndexMap, LocalOp, OpRule, OpView, linear, register


def _forward_map(view: OpView) -> IndexMap:
    """Map the loss; with dense labels it is linear in them."""
    rows = dim_names(len(view.shape["out_0"]))
    dense = len(view.shape["label_0"]) > len(rows)
    return IndexMap(
        {
            "prediction_0": (*rows, None),
            "label_0": (*rows, None) if dense else rows,
            "prob_0": (*rows, None),
            "out_0": rows,
        },
        linear=(linear("label_0 -> out_0"),) if dense else (),
    )


def _softmax(op: LocalOp) -> tuple[Array, Array]:
    x = op.inputs["prediction_0"]
    shifted = x - x.max(axis=-1, keepdims=True)
    logarithm = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return logarithm, np.exp(logarithm)


def _sparse(op: LocalOp) -> dict[str, Array]:
    logarithm, probability = _softmax(op)
    labels = op.inputs["label_0"][..., None]
    loss = -np.take_along_axis(logarithm, labels, axis=-1)[..., 0]
    return {"out_0": loss, "prob_0": probability}


def _dense(op: LocalOp) -> dict[str, Array]:
    logarithm, probability = _softmax(op)
    return {"out_0": -(op.inputs["label_0"] * logarithm).sum(axis=-1), "prob_0": probability}


def _grad_map(view: OpView) -> IndexMap:
    """Map dy * (prob - label): each class is its own, and one-hot labels know their numbers."""
    rows = dim_names(len(view.shape["dy_0"]))
    dense = len(view.shape["label_0"]) > len(rows)
    return IndexMap(
        {
            "dy_0": rows,
            "label_0": (*rows, "c") if dense else rows,
            "prob_0": (*rows, "c"),
            "prediction_diff_0": (*rows, "c"),
        },
        linear=(linear("dy_0"), linear("label_0 prob_0")) if dense else (linear("dy_0"),),
        in_order=frozenset() if dense else frozenset({"c"}),
    )


def _sparse_grad(op: LocalOp) -> dict[str, Array]:
    probability = op.inputs["prob_0"]
    numbers = op.start["prob_0"][-1] + np.arange(probability.shape[-1])
    hot = op.inputs["label_0"][..., None] == numbers
    return {"prediction_diff_0": op.inputs["dy_0"][..., None] * (probability - hot)}


def _dense_grad(op: LocalOp) -> dict[str, Array]:
    difference = op.inputs["prob_0"] - op.inputs["label_0"]
    return {"prediction_diff_0": op.inputs["dy_0"][..., None] * difference}


def _class_number(view: OpView, operand: str, rng: np.random.Generator) -> Array:
    classes = view.shape["prediction_0" if "prediction_0" in view.shape else "prob_0"][-1]
    return rng.integers(0, classes, view.shape[operand])


def _flops(view: OpView) -> float:
    return 6 * elements(view.shape["prob_0"])


_FAMILY = "normalisation"
_SAMPLERS = {"label_0": _class_number}
register(
    OpRule(
        "sparse_softmax_cross_entropy",
        _forward_map,
        _sparse,
        _flops,
        family=_FAMILY,
        samplers=_SAMPLERS,
    ),
    OpRule(
        "sparse_softmax_cross_entropy_grad",
        _grad_map,
        _sparse_grad,
        lambda view: 2 * elements(view.shape["prob_0"]),
        family=_FAMILY,
        samplers=_SAMPLERS,
    ),
    OpRule("softmax_cross_entropy", _forward_map, _dense, _flops, family=_FAMILY),
    OpRule(
        "softmax_cross_entropy_grad",
        _grad_map,
        _dense_grad,
        lambda view: 2 * elements(view.shape["prob_0"]),
        family=_FAMILY,
    ),
)
