"""Softmax, variance and their kin: the normalised dims stay whole; gradients are linear in dy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autoddl.sbp.rules.maps import axes_of, dim_names, elements, reduced_dims
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


def _last_dim_whole(view: OpView) -> IndexMap:
    dims: Dims = (*dim_names(len(view.shape[view.inputs[0]]) - 1), None)
    groups = (linear("dy_0"),) if "dy_0" in view.inputs else ()
    return IndexMap(dict.fromkeys(view.inputs + view.outputs, dims), linear=groups)


def _log_softmax(x: Array) -> Array:
    shifted = x - x.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def _softmax_reference(op: LocalOp) -> dict[str, Array]:
    return {"out_0": np.exp(_log_softmax(op.inputs["in_0"]))}


def _log_softmax_reference(op: LocalOp) -> dict[str, Array]:
    return {"prob_0": _log_softmax(op.inputs["in_0"])}


def _softmax_grad(op: LocalOp) -> dict[str, Array]:
    y, dy = op.inputs["y_0"], op.inputs["dy_0"]
    return {"dx_0": y * (dy - (dy * y).sum(axis=-1, keepdims=True))}


def _log_softmax_grad(op: LocalOp) -> dict[str, Array]:
    # `prob` is the op's output, so it holds logarithms.
    prob, dy = op.inputs["prob_0"], op.inputs["dy_0"]
    return {"dx_0": dy - np.exp(prob) * dy.sum(axis=-1, keepdims=True)}


def _var_map(view: OpView) -> IndexMap:
    """Map var: the dims it runs over stay whole (a variance of parts doesn't add up)."""
    shape, axes = view.shape["input_0"], axes_of(view, "dim", "input_0")
    dims = tuple(None if i in axes else f"d{i}" for i in range(len(shape)))
    return IndexMap(
        {"input_0": dims, "output_0": reduced_dims(view.shape["output_0"], shape, axes)}
    )


def _var(op: LocalOp) -> dict[str, Array]:
    axes = axes_of(op.view, "dim", "input_0")
    variance = op.inputs["input_0"].var(axis=axes, ddof=int(op.view.attr["unbiased"]))
    return {"output_0": np.asarray(variance).reshape(op.view.shape["output_0"])}


def _per_input_element(flop: float) -> Callable[[OpView], float]:
    return lambda view: flop * elements(view.shape[view.inputs[0]])


_FAMILY = "normalisation"
register(
    OpRule("softmax", _last_dim_whole, _softmax_reference, _per_input_element(5), family=_FAMILY),
    OpRule(
        "log_softmax",
        _last_dim_whole,
        _log_softmax_reference,
        _per_input_element(5),
        family=_FAMILY,
    ),
    OpRule("softmax_grad", _last_dim_whole, _softmax_grad, _per_input_element(4), family=_FAMILY),
    OpRule(
        "log_softmax_grad",
        _last_dim_whole,
        _log_softmax_grad,
        _per_input_element(5),
        family=_FAMILY,
    ),
    OpRule("var", _var_map, _var, _per_input_element(4), family=_FAMILY),
)
