"""Choices by a mask: linear in what is chosen from, together, where nothing constant is mixed in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from autoddl.sbp.rules.maps import dim_names, no_flops
from autoddl.sbp.rules.pointwise import Function, one_of, pointwise
from autoddl.sbp.rules.registry import Array, IndexMap, LocalOp, OpRule, OpView, linear, register


def operand(attr: Mapping[str, Any], prefix: str = "") -> float:
    """Return the scalar that an op was given as a bool, int or float, named with a prefix."""
    kinds = ("bool", "int", "float")
    return next(
        float(attr[f"{prefix}{kind}_operand"])
        for kind in kinds
        if attr[f"has_{prefix}{kind}_operand"]
    )


def _linear_beside_zero(name: str) -> Any:
    """Return `linear_in`: the op is linear in `name` where its scalar is 0."""
    return lambda view: (name,) if operand(view.attr) == 0 else ()


_MASK = one_of(0.0, 1.0)
# Op type: NumPy reference, what it is linear in. The mask is called condition or mask.
_SELECTIONS: dict[str, tuple[Function, Any]] = {
    "where": (lambda condition, x, y: np.where(condition != 0, x, y), ("x_0 y_0",)),
    "where_scalar_x": (
        lambda condition, y, a: np.where(condition != 0, operand(a), y), _linear_beside_zero("y_0")
    ),
    "where_scalar_y": (
        lambda condition, x, a: np.where(condition != 0, x, operand(a)), _linear_beside_zero("x_0")
    ),
    "where_scalar_xy": (
        lambda x, a: np.where(x != 0, operand(a, "x_"), operand(a, "y_")), ()
    ),
    "masked_fill": (
        lambda x, mask, a: np.where(mask != 0, operand(a), x), _linear_beside_zero("x_0")
    ),
}  # fmt: skip


def _fill_value(view: OpView) -> float:
    attr = view.attr
    if "integer_fill_value" not in attr:  # triu knows zeros only
        return 0.0
    floating = attr["is_floating_fill_value"]
    return float(attr["floating_fill_value" if floating else "integer_fill_value"])


def _triangle_map(view: OpView) -> IndexMap:
    """Map tril and triu: rows and columns stay whole, for a device would cut out its own triangle."""
    dims = (*dim_names(len(view.shape["in_0"]) - 2), None, None)
    groups = (linear("in_0"),) if _fill_value(view) == 0 else ()
    return IndexMap({"in_0": dims, "out_0": dims}, linear=groups)


def _triangle(op: LocalOp) -> dict[str, Array]:
    x, diagonal = op.inputs["in_0"], op.view.attr["diagonal"]
    ones = np.ones(x.shape[-2:], dtype=bool)
    kept = np.tril(ones, diagonal) if op.view.type == "tril" else np.triu(ones, diagonal)
    return {"out_0": np.where(kept, x, _fill_value(op.view))}


register(
    *(
        pointwise(
            name,
            function,
            flop=0,
            linear_in=linear_in,
            samplers={"condition_0": _MASK, "mask_0": _MASK},
        )
        for name, (function, linear_in) in _SELECTIONS.items()
    ),
    *(
        OpRule(name, _triangle_map, _triangle, no_flops, family="memory")
        for name in ("tril", "triu")
    ),
)
