"""Table look-ups and their gradient: a device that holds some rows answers for those only, so P."""

from __future__ import annotations

import numpy as np

from autoddl.sbp.rules.maps import dim_names, elements, no_flops
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


def _look_up_dims(view: OpView, table: str, ids: str) -> tuple[Dims, Dims, Dims]:
    """Return the dims of the table, of the ids and of the looked-up rows."""
    ndim = len(view.shape[table])
    axis = view.attr["axis"] % ndim
    ids_dims = dim_names(len(view.shape[ids]), "i")
    table_dims = dim_names(ndim)
    return table_dims, ids_dims, table_dims[:axis] + ids_dims + table_dims[axis + 1 :]


def _gather_map(view: OpView) -> IndexMap:
    """Map gather: rows that a device lacks count as zero there, so cutting the rows gives P."""
    table, ids, rows = _look_up_dims(view, "in_0", "indices_0")
    axis = view.attr["axis"] % len(table)
    return IndexMap(
        {"in_0": table, "indices_0": ids, "out_0": rows},
        summed=frozenset({f"d{axis}"}),
        linear=(linear("in_0"),),
        in_order=frozenset({f"d{axis}"}),
    )


def _gather(op: LocalOp) -> dict[str, Array]:
    """Look up the rows held here; rows of other devices count as zero."""
    table, axis = op.inputs["in_0"], op.view.attr["axis"] % op.inputs["in_0"].ndim
    rows = op.inputs["indices_0"] - op.start["in_0"][axis]
    here = (rows >= 0) & (rows < table.shape[axis])
    found = np.take(table, np.where(here, rows, 0), axis=axis)
    mask = here.reshape((1,) * axis + here.shape + (1,) * (table.ndim - axis - 1))
    return {"out_0": found * mask}


def _segment_sum_map(view: OpView) -> IndexMap:
    """Map unsorted_segment_sum_like: rows of data are added to the row of out that their id names."""
    table, ids, rows = _look_up_dims(view, "like_0", "segment_ids_0")
    return IndexMap(
        {"data_0": rows, "segment_ids_0": ids, "like_0": table, "out_0": table},
        summed=frozenset(name for name in ids if name is not None),
        linear=(linear("data_0"),),
        shape_only=frozenset({"like_0"}),
        in_order=frozenset({f"d{view.attr['axis'] % len(table)}"}),
    )


def _segment_sum(op: LocalOp) -> dict[str, Array]:
    out = np.zeros(op.view.shape["out_0"])
    axis = op.view.attr["axis"] % out.ndim
    ids = op.inputs["segment_ids_0"]
    rows = np.ravel(ids) - op.start["out_0"][axis]
    here = (rows >= 0) & (rows < out.shape[axis])
    data = op.inputs["data_0"]
    flat = data.reshape(*data.shape[:axis], ids.size, *data.shape[axis + ids.ndim :])
    np.add.at(np.moveaxis(out, axis, 0), rows[here], np.moveaxis(flat, axis, 0)[here])
    return {"out_0": out}


def row_number(view: OpView, operand: str, rng: np.random.Generator) -> Array:
    """Draw rows of the table, which is along dim 0 where no attribute tells."""
    table = next(name for name in ("in_0", "like_0", "model_0") if name in view.shape)
    return rng.integers(0, view.shape[table][view.attr.get("axis", 0)], view.shape[operand])


register(
    OpRule(
        "gather",
        _gather_map,
        _gather,
        no_flops,
        family="embedding",
        samplers={"indices_0": row_number},
    ),
    OpRule(
        "unsorted_segment_sum_like",
        _segment_sum_map,
        _segment_sum,
        lambda view: elements(view.shape["data_0"]),
        family="embedding",
        samplers={"segment_ids_0": row_number},
    ),
)
