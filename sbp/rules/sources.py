"""Ops without inputs: each device may make its own part; only zeros may also be made as P."""

from __future__ import annotations

import numpy as np

from autoddl.sbp.rules.elementwise import FLOATING
from autoddl.sbp.rules.maps import no_flops, same_dims
from autoddl.sbp.rules.registry import Array, IndexMap, LocalOp, OpRule, OpView, linear, register

_NOTE = (
    "the engine takes the state of the output from the op's attribute nd_sbp (empty: B), not from a "
    "planned signature"
)


def _value(view: OpView) -> float:
    attr = view.attr
    return float(attr["floating_value" if attr["is_floating_value"] else "integer_value"])


def _constant_map(view: OpView) -> IndexMap:
    groups = (linear("-> out_0"),) if _value(view) == 0 else ()
    return IndexMap(same_dims(view, ("out_0",)), linear=groups)


def _constant(op: LocalOp) -> dict[str, Array]:
    return {"out_0": np.full(op.view.shape["out_0"], _value(op.view))}


def _part_map(view: OpView) -> IndexMap:
    return IndexMap(same_dims(view, ("out_0",)))


def _arange_map(view: OpView) -> IndexMap:
    return IndexMap(same_dims(view, ("out_0",)), in_order=frozenset({"d0"}))


def _arange(op: LocalOp) -> dict[str, Array]:
    """Count from where the device's part starts; the limit follows from the shape."""
    kind = "float" if op.view.attr["dtype"] in FLOATING else "integer"
    start, step = op.view.attr[f"{kind}_start"], op.view.attr[f"{kind}_delta"]
    (first,), (count,) = op.start["out_0"], op.view.shape["out_0"]
    return {"out_0": start + step * np.arange(first, first + count)}


def _empty(op: LocalOp) -> dict[str, Array]:
    """Stand for values that nothing should read; zeros could be parts of a sum, too."""
    return {"out_0": np.ones(op.view.shape["out_0"])}


register(
    OpRule("constant", _constant_map, _constant, no_flops, family="memory", notes=_NOTE),
    OpRule("empty", _part_map, _empty, no_flops, family="memory", notes=_NOTE),
    OpRule("arange", _arange_map, _arange, no_flops, family="memory", notes=_NOTE),
)
