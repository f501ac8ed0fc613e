"""Choices along a dim: that dim stays whole, all others may be cut. Also one-hot, cumsum and flip."""

from __future__ import annotations

import math

import numpy as np

from autoddl.sbp.rules.elementwise import FLOATING
from autoddl.sbp.rules.maps import dim_names, elements, no_flops
from autoddl.sbp.rules.registry import Array, IndexMap, LocalOp, OpRule, OpView, linear, register


def _last_whole(view: OpView) -> IndexMap:
    """Map ops that choose along the last dim of in; the output may lack it."""
    rows = dim_names(len(view.shape["in_0"]) - 1)
    missing = len(view.shape["in_0"]) - len(view.shape["out_0"])
    return IndexMap({"in_0": (*rows, None), "out_0": rows if missing else (*rows, None)})


def _argmax(op: LocalOp) -> dict[str, Array]:
    return {"out_0": op.inputs["in_0"].argmax(axis=-1)}


def _top_k(op: LocalOp) -> dict[str, Array]:
    order = np.argsort(-op.inputs["in_0"], axis=-1, kind="stable")
    return {"out_0": order[..., : op.view.attr["k"]]}


def _arg_sort(op: LocalOp) -> dict[str, Array]:
    sign = -1 if op.view.attr["direction"] == "DESCENDING" else 1
    return {"out_0": np.argsort(sign * op.inputs["in_0"], axis=-1, kind="stable")}


def _sort_flops(view: OpView) -> float:
    """Count n log2 n comparisons for every n elements of the last dim."""
    shape = view.shape["in_0"]
    return elements(shape) * max(1.0, math.log2(shape[-1]))


def _in_top_k_map(view: OpView) -> IndexMap:
    return IndexMap({"predictions_0": ("n", None), "targets_0": ("n",), "out_0": ("n",)})


def _in_top_k(op: LocalOp) -> dict[str, Array]:
    """Tell whether fewer than k predictions of a row are larger than that of its target."""
    predictions = op.inputs["predictions_0"]
    own = np.take_along_axis(predictions, op.inputs["targets_0"][:, None], axis=1)
    return {"out_0": (predictions > own).sum(axis=1) < op.view.attr["k"]}


def _class_number(view: OpView, operand: str, rng: np.random.Generator) -> Array:
    classes = view.attr["depth"] if view.type == "one_hot" else view.shape["predictions_0"][-1]
    return rng.integers(0, classes, view.shape[operand])


def _one_hot_map(view: OpView) -> IndexMap:
    """Map one_hot: a device may also answer for some of the numbers (index c) only."""
    rows = dim_names(len(view.shape["indices_0"]))
    return IndexMap({"indices_0": rows, "out_0": (*rows, "c")}, in_order=frozenset({"c"}))


def _one_hot(op: LocalOp) -> dict[str, Array]:
    attr = op.view.attr
    kind = "floating" if attr["dtype"] in FLOATING else "integer"
    numbers = op.start["out_0"][-1] + np.arange(op.view.shape["out_0"][-1])
    hot = op.inputs["indices_0"][..., None] == numbers
    return {"out_0": np.where(hot, attr[f"{kind}_on_value"], attr[f"{kind}_off_value"])}


def _cumsum_map(view: OpView) -> IndexMap:
    """Map cumsum; dims before the summed one are named r0, …, as the engine treats them apart."""
    ndim = len(view.shape["x_0"])
    dim = view.attr["dim"] % ndim
    names = (*dim_names(dim, "r"), None, *dim_names(ndim)[dim + 1 :])
    return IndexMap({"x_0": names, "y_0": names}, linear=(linear("x_0"),))


def _cumsum(op: LocalOp) -> dict[str, Array]:
    return {"y_0": op.inputs["x_0"].cumsum(axis=op.view.attr["dim"])}


def _flipped(view: OpView) -> frozenset[int]:
    return frozenset(dim % len(view.shape["x_0"]) for dim in view.attr["dims"])


def _flip_map(view: OpView) -> IndexMap:
    flipped = _flipped(view)
    names = tuple(
        None if i in flipped else name for i, name in enumerate(dim_names(len(view.shape["x_0"])))
    )
    return IndexMap({"x_0": names, "y_0": names}, linear=(linear("x_0"),))


def _flip(op: LocalOp) -> dict[str, Array]:
    return {"y_0": np.flip(op.inputs["x_0"], tuple(_flipped(op.view)))}


register(
    OpRule(
        "argmax",
        _last_whole,
        _argmax,
        lambda view: elements(view.shape["in_0"]),
        family="reduction",
    ),
    OpRule("top_k", _last_whole, _top_k, _sort_flops, family="reduction"),
    OpRule("arg_sort", _last_whole, _arg_sort, _sort_flops, family="reduction"),
    OpRule(
        "in_top_k",
        _in_top_k_map,
        _in_top_k,
        lambda view: elements(view.shape["predictions_0"]),
        family="reduction",
        samplers={"targets_0": _class_number},
    ),
    OpRule(
        "one_hot",
        _one_hot_map,
        _one_hot,
        no_flops,
        family="memory",
        samplers={"indices_0": _class_number},
    ),
    OpRule("cumsum", _cumsum_map, _cumsum, family="reduction"),
    OpRule("flip", _flip_map, _flip, no_flops, family="memory"),
)
