"""Dropout: drawing a mask is not cut, the same seed would repeat it on every shard.

What only applies a mask that is given (the gradient) is an ordinary pointwise op. An engine may
accept cuts of `dropout`, but draws other numbers then, and a plan is not to change results: that every
device draws the mask of its shard, as in usual data parallelism, `local_dropout` permits.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autoddl.sbp.rules.fused_softmax import random_mask
from autoddl.sbp.rules.maps import elements, same_dims
from autoddl.sbp.rules.registry import Array, IndexMap, LocalOp, OpRule, OpView, linear, register

LOCAL_MASKS = "local_dropout"
_NOTE = "Random: the same seed would repeat the same mask on different shards."


def _drawn(op: LocalOp, shape: tuple[int, ...]) -> Array:
    """Draw which elements are kept; all devices have the same seed."""
    rng = np.random.default_rng(op.view.attr.get("seed", 0))
    return np.asarray(rng.random(shape) >= op.view.attr["rate"])


def _dropout_map(view: OpView) -> IndexMap:
    """Map dropout uncut; with one mask on all devices it is linear in what it masks and adds."""
    terms = linear(f"{' '.join(view.inputs)} -> out_0")
    return replace(_drawn_map(view), linear=(terms,))


def _dropout(op: LocalOp) -> dict[str, Array]:
    x = op.inputs["in_0"]
    mask = _drawn(op, x.shape)
    kept = np.where(mask, x, 0.0) / (1 - op.view.attr["rate"])
    return {"out_0": kept + op.inputs.get("_add_to_output_0", 0.0), "mask_0": mask.astype(np.int64)}


def _mask_map(view: OpView) -> IndexMap:
    return replace(_drawn_map(view), shape_only=frozenset({"like_0"}))


def _drawn_map(view: OpView) -> IndexMap:
    """Map all dims alike; no cut is exact."""
    dims = same_dims(view, view.inputs + view.outputs)
    every = {index for named in dims.values() for index in named if index is not None}
    return IndexMap(dims, approximate=dict.fromkeys(every, LOCAL_MASKS))


def _mask(op: LocalOp) -> dict[str, Array]:
    return {"out_0": _drawn(op, op.view.shape["out_0"]).astype(np.int64)}


def _grad_map(view: OpView) -> IndexMap:
    return IndexMap(same_dims(view, view.inputs + view.outputs), linear=(linear("dy_0"),))


def _grad(op: LocalOp) -> dict[str, Array]:
    dy = op.inputs["dy_0"] * op.view.attr["scale"]
    return {"dx_0": np.where(op.inputs["mask_0"] != 0, dy, 0.0)}


register(
    OpRule(
        "dropout",
        _dropout_map,
        _dropout,
        lambda view: 2 * elements(view.shape["out_0"]),
        notes=_NOTE,
    ),
    OpRule("random_mask_like", _mask_map, _mask, notes=_NOTE),
    OpRule(
        "dropout_grad",
        _grad_map,
        _grad,
        lambda view: 2 * elements(view.shape["dx_0"]),
        samplers={"mask_0": random_mask},
    ),
)
