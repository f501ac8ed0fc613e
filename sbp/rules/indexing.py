"""Look-ups by index tensors and their gradients: a device answers for the rows that it holds, so P.

The indexed dims may be cut, as references know where a shard starts; engines often do not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autoddl.sbp.rules.maps import dim_names, elements, no_flops
from autoddl.sbp.rules.registry import (
    Array,
    Dims,
    IndexMap,
    LocalOp,
    OpRule,
    OpView,
    Sampler,
    linear,
    register,
)


def _own(ids: Array, start: int, size: int) -> tuple[Array, Array]:
    """Return ids counted from `start` (0 where they lie outside) and which lie inside."""
    local = ids - start
    here = (local >= 0) & (local < size)
    return np.where(here, local, 0), here


# --- one row number per element: dim_gather ----------------------------------------------------


def _along_dim(table: str, ids: str, rows: str) -> Callable[[OpView], IndexMap]:
    """Map rows[…, j, …] = table[…, ids[…, j, …], …] along attribute dim, or its gradient.

    Where the table is larger than the ids in another dim, its surplus is never read and the dim
    stays whole.
    """

    def indices(view: OpView) -> IndexMap:
        large, small = view.shape[table], view.shape[ids]
        dim = view.attr["dim"] % len(large)
        names = tuple(
            name if small[i] == large[i] else None for i, name in enumerate(dim_names(len(large)))
        )
        table_dims: Dims = (*names[:dim], "row", *names[dim + 1 :])
        ids_dims: Dims = (*names[:dim], "i", *names[dim + 1 :])
        dims = {table: table_dims, ids: ids_dims, rows: ids_dims}
        is_gather = rows in view.outputs
        likes = frozenset({"like_0"} & set(view.inputs))
        return IndexMap(
            dims | ({} if is_gather else {"output_0": table_dims}),
            summed=frozenset({"row" if is_gather else "i"}),
            linear=(linear(table if is_gather else rows),),
            shape_only=likes,
            in_order=frozenset({"row"}),
        )

    return indices


def _dim_gather(op: LocalOp) -> dict[str, Array]:
    table, dim = op.inputs["input_0"], op.view.attr["dim"]
    ids, here = _own(op.inputs["index_0"], op.start["input_0"][dim], table.shape[dim])
    cut = tuple(slice(None) if i == dim % table.ndim else slice(n) for i, n in enumerate(ids.shape))
    return {"output_0": np.take_along_axis(table[cut], ids, axis=dim) * here}


def _dim_scatter_add(op: LocalOp) -> dict[str, Array]:
    out = np.zeros(op.view.shape["output_0"])
    dim = op.view.attr["dim"] % out.ndim
    ids, here = _own(op.inputs["index_0"], op.start["output_0"][dim], out.shape[dim])
    place = list(np.indices(ids.shape))
    place[dim] = ids
    np.add.at(out, tuple(place), op.inputs["src_0"] * here)
    return {"output_0": out}


def _dim_row(view: OpView, operand: str, rng: np.random.Generator) -> Array:
    table = view.shape["input_0" if "input_0" in view.shape else "like_0"]
    return rng.integers(0, table[view.attr["dim"]], view.shape[operand])


# --- several leading row numbers in the last dim of the ids: gather_nd -------------------------


def _nd_dims(table: tuple[int, ...], ids: tuple[int, ...]) -> tuple[Dims, Dims, Dims]:
    """Return the dims of the table, of the ids and of the rows."""
    places = dim_names(len(ids) - 1, "i")
    indexed, rest = dim_names(ids[-1], "row"), dim_names(len(table))[ids[-1] :]
    return indexed + rest, (*places, None), places + rest


def _gather_nd_map(view: OpView) -> IndexMap:
    ids = view.shape["indices_0"]
    table, places, rows = _nd_dims(view.shape["params_0"], ids)
    return IndexMap(
        {"params_0": table, "indices_0": places, "out_0": rows},
        summed=frozenset(name for name in dim_names(ids[-1], "row") if name is not None),
        linear=(linear("params_0"),),
        in_order=frozenset(name for name in dim_names(ids[-1], "row") if name is not None),
    )


def _nd_place(op: LocalOp, table: str) -> tuple[tuple[Array, ...], Array]:
    """Return the place of every row in the local table, and whether it lies inside."""
    ids = op.inputs["indices_0"]
    inside = np.ones(ids.shape[:-1], bool)
    place = []
    for i in range(ids.shape[-1]):
        local, here = _own(ids[..., i], op.start[table][i], op.view.shape[table][i])
        place.append(local)
        inside &= here
    return tuple(place), inside


def _gather_nd(op: LocalOp) -> dict[str, Array]:
    place, inside = _nd_place(op, "params_0")
    rows = op.inputs["params_0"][place]
    return {"out_0": rows * inside.reshape(inside.shape + (1,) * (rows.ndim - inside.ndim))}


def _scatter_nd_map(view: OpView) -> IndexMap:
    """Map scatter_nd and its like form: rows that name one place are added up."""
    ids = view.shape["indices_0"]
    table, places, rows = _nd_dims(view.shape["out_0"], ids)
    likes = frozenset({"like_0"} & set(view.inputs))
    return IndexMap(
        {"indices_0": places, "updates_0": rows, "out_0": table} | dict.fromkeys(likes, table),
        summed=frozenset(name for name in places if name is not None),
        linear=(linear("updates_0"),),
        shape_only=likes,
        in_order=frozenset(name for name in dim_names(ids[-1], "row") if name is not None),
    )


def _scatter_nd(op: LocalOp) -> dict[str, Array]:
    out, updates = np.zeros(op.view.shape["out_0"]), op.inputs["updates_0"]
    place, inside = _nd_place(op, "out_0")
    mask = inside.reshape(inside.shape + (1,) * (updates.ndim - inside.ndim))
    np.add.at(out, place, updates * mask)
    return {"out_0": out}


def _nd_row(view: OpView, operand: str, rng: np.random.Generator) -> Array:
    table = view.shape["params_0" if "params_0" in view.shape else "out_0"]
    shape = view.shape[operand]
    return np.stack([rng.integers(0, table[i], shape[:-1]) for i in range(shape[-1])], axis=-1)


# --- row numbers per batch: batch_gather -------------------------------------------------------


def _batch_dims(table: tuple[int, ...], ids: tuple[int, ...]) -> tuple[Dims, Dims, Dims]:
    batch, rest = dim_names(len(ids) - 1), dim_names(len(table))[len(ids) :]
    return (*batch, "row", *rest), (*batch, "i"), (*batch, "i", *rest)


def _batch_gather_map(view: OpView) -> IndexMap:
    table, ids, rows = _batch_dims(view.shape["in_0"], view.shape["indices_0"])
    return IndexMap(
        {"in_0": table, "indices_0": ids, "out_0": rows},
        summed=frozenset({"row"}),
        linear=(linear("in_0"),),
        in_order=frozenset({"row"}),
    )


def _batch_gather(op: LocalOp) -> dict[str, Array]:
    table, ids = op.inputs["in_0"], op.inputs["indices_0"]
    axis = ids.ndim - 1
    local, here = _own(ids, op.start["in_0"][axis], table.shape[axis])
    tail = (1,) * (table.ndim - ids.ndim)
    rows = np.take_along_axis(table, local.reshape(local.shape + tail), axis=axis)
    return {"out_0": rows * here.reshape(here.shape + tail)}


def _batch_sum_map(view: OpView) -> IndexMap:
    table, ids, rows = _batch_dims(view.shape["out_0"], view.shape["segment_ids_0"])
    return IndexMap(
        {"data_0": rows, "segment_ids_0": ids, "out_0": table},
        summed=frozenset({"i"}),
        linear=(linear("data_0"),),
        in_order=frozenset({"row"}),
    )


def _batch_sum(op: LocalOp) -> dict[str, Array]:
    out, ids = np.zeros(op.view.shape["out_0"]), op.inputs["segment_ids_0"]
    axis = ids.ndim - 1
    local, here = _own(ids, op.start["out_0"][axis], out.shape[axis])
    place = (*np.indices(ids.shape)[:-1], local)
    data = op.inputs["data_0"]
    np.add.at(out, place, data * here.reshape(here.shape + (1,) * (data.ndim - ids.ndim)))
    return {"out_0": out}


def _batch_row(view: OpView, operand: str, rng: np.random.Generator) -> Array:
    table = view.shape["in_0" if "in_0" in view.shape else "out_0"]
    return rng.integers(0, table[len(view.shape[operand]) - 1], view.shape[operand])


# --- embedding with options --------------------------------------------------------------------


def _embedding_map(view: OpView) -> IndexMap:
    """Map embedding; the engine cuts no ids (here f0, …) if their frequency scales the gradient."""
    prefix = "f" if view.attr["scale_grad_by_freq"] else "i"
    ids = dim_names(len(view.shape["indices_0"]), prefix)
    return IndexMap(
        {"indices_0": ids, "weight_0": ("row", "d"), "out_0": (*ids, "d")},
        summed=frozenset({"row"}),
        linear=(linear("weight_0"),),
        in_order=frozenset({"row"}),
    )


def _embedding(op: LocalOp) -> dict[str, Array]:
    weight = op.inputs["weight_0"]
    ids, here = _own(op.inputs["indices_0"], op.start["weight_0"][0], weight.shape[0])
    return {"out_0": weight[ids] * here[..., None]}


def _embedding_grad_map(view: OpView) -> IndexMap:
    """Map embedding_grad; scaling by the frequency of an id needs all ids."""
    ids = dim_names(len(view.shape["indices_0"]), "i")
    places: Dims = (None,) * len(ids) if view.attr["scale_grad_by_freq"] else ids
    return IndexMap(
        {
            "dy_0": (*places, "d"),
            "indices_0": places,
            "weight_0": ("row", "d"),
            "dx_0": ("row", "d"),
        },
        summed=frozenset(name for name in ids if name is not None),
        linear=(linear("dy_0"),),
        shape_only=frozenset({"weight_0"}),
        in_order=frozenset({"row"}),
    )


def _embedding_grad(op: LocalOp) -> dict[str, Array]:
    dx, ids = np.zeros(op.view.shape["dx_0"]), op.inputs["indices_0"].ravel()
    rows = op.inputs["dy_0"].reshape(ids.size, dx.shape[1])
    if op.view.attr["scale_grad_by_freq"]:
        _, which, counts = np.unique(ids, return_inverse=True, return_counts=True)
        rows = rows / counts[which].reshape(-1, 1)
    local, here = _own(ids, op.start["dx_0"][0], dx.shape[0])
    counted = here & (ids != op.view.attr["padding_idx"])
    np.add.at(dx, local, rows * counted[:, None])
    return {"dx_0": dx}


def _embedding_row(view: OpView, operand: str, rng: np.random.Generator) -> Array:
    """Draw ids; the first is the padding, if there is one."""
    ids = rng.integers(0, view.shape["weight_0"][0], view.shape[operand])
    ids.flat[0] = max(0, view.attr["padding_idx"])
    return ids


# Op type: index map, reference, the operand with row numbers, its sampler.
_Row = tuple[Callable[[OpView], IndexMap], Callable[[LocalOp], dict[str, Array]], str, Sampler]
_LOOK_UPS: dict[str, _Row] = {
    "dim_gather": (
        _along_dim("input_0", "index_0", "output_0"), _dim_gather, "index_0", _dim_row
    ),
    "gather_nd": (_gather_nd_map, _gather_nd, "indices_0", _nd_row),
    "batch_gather": (_batch_gather_map, _batch_gather, "indices_0", _batch_row),
    "embedding": (_embedding_map, _embedding, "indices_0", _embedding_row),
}  # fmt: skip
_SUMS: dict[str, _Row] = {
    "dim_scatter_add_like": (
        _along_dim("like_0", "index_0", "src_0"), _dim_scatter_add, "index_0", _dim_row
    ),
    "scatter_nd": (_scatter_nd_map, _scatter_nd, "indices_0", _nd_row),
    "scatter_nd_like": (_scatter_nd_map, _scatter_nd, "indices_0", _nd_row),
    "unsorted_batch_segment_sum": (_batch_sum_map, _batch_sum, "segment_ids_0", _batch_row),
    "embedding_grad": (_embedding_grad_map, _embedding_grad, "indices_0", _embedding_row),
}  # fmt: skip
_ADDED = {"src_0", "updates_0", "data_0", "dy_0"}  # what sums add up


def _sum_flops(view: OpView) -> float:
    (added,) = _ADDED & set(view.inputs)
    return elements(view.shape[added])


_NOTES = {
    "scatter_nd": "the engine takes cut rows to a B output, which adds nothing up: wrong",
    "scatter_nd_like": "the engine takes cut rows to a B output, which adds nothing up: wrong",
}
register(
    *(
        OpRule(name, indices, reference, no_flops, family="memory", samplers={ids: sampler})
        for name, (indices, reference, ids, sampler) in _LOOK_UPS.items()
    ),
    *(
        OpRule(
            name,
            indices,
            reference,
            _sum_flops,
            family="embedding",
            samplers={ids: sampler},
            notes=_NOTES.get(name, ""),
        )
        for name, (indices, reference, ids, sampler) in _SUMS.items()
    ),
)
