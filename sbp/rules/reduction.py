"""Sums: cutting a summed dim gives P, and sums are linear."""

from __future__ import annotations

import numpy as np

from autoddl.sbp.rules.maps import axes_of, dim_names, elements, reduced_dims
from autoddl.sbp.rules.registry import Array, IndexMap, LocalOp, OpRule, OpView, linear, register


def _reduce_sum_map(view: OpView) -> IndexMap:
    """Map reduce_sum; a summed dim that is kept with size 1 can't be cut in the output."""
    shape, axes = view.shape["input_tensor_0"], axes_of(view, "axis", "input_tensor_0")
    names = dim_names(len(shape))
    return IndexMap(
        {
            "input_tensor_0": names,
            "output_tensor_0": reduced_dims(view.shape["output_tensor_0"], shape, axes),
        },
        summed=frozenset(f"d{axis}" for axis in axes),
        linear=(linear("input_tensor_0"),),
    )


def _reduce_sum(op: LocalOp) -> dict[str, Array]:
    axes = axes_of(op.view, "axis", "input_tensor_0")
    total = np.asarray(op.inputs["input_tensor_0"].sum(axis=axes))
    return {"output_tensor_0": total.reshape(op.view.shape["output_tensor_0"])}


def _reduce_sum_like_map(view: OpView) -> IndexMap:
    """Map reduce_sum_like, the gradient of broadcasting. It is linear, but the engine refuses P."""
    shape, axes = view.shape["x_0"], _like_axes(view)
    small = reduced_dims(view.shape["like_0"], shape, axes)
    return IndexMap(
        {"x_0": dim_names(len(shape)), "like_0": small, "y_0": small},
        summed=frozenset(f"d{axis}" for axis in axes),
        shape_only=frozenset({"like_0"}),
    )


def _like_axes(view: OpView) -> tuple[int, ...]:
    # An empty list means that nothing is summed: the shapes were equal.
    return axes_of(view, "axis", "x_0") if view.attr["axis"] else ()


def _reduce_sum_like(op: LocalOp) -> dict[str, Array]:
    total = op.inputs["x_0"].sum(axis=_like_axes(op.view))
    return {"y_0": np.asarray(total).reshape(op.view.shape["y_0"])}


register(
    OpRule(
        "reduce_sum",
        _reduce_sum_map,
        _reduce_sum,
        lambda view: elements(view.shape["input_tensor_0"]),
        family="reduction",
    ),
    OpRule(
        "reduce_sum_like",
        _reduce_sum_like_map,
        _reduce_sum_like,
        lambda view: elements(view.shape["x_0"]),
        family="reduction",
    ),
)
