"""Attention scores in one op: scale, mask, softmax, dropout by a given mask, and their gradients.

The softmax dim stays whole; every other dim is cut, masks and biases along with it where they are
not broadcast. Dropout masks are inputs here (drawn by another op), so cuts are exact. A lower
triangle compares positions in the whole matrix: where rows are cut, a shard has to know its first.
The last two dims are named "row" and "column", as engines treat them unlike the others.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autoddl.sbp.rules.maps import align, elements
from autoddl.sbp.rules.registry import (
    Array,
    Dims,
    IndexMap,
    LocalOp,
    OpRule,
    OpView,
    Shape,
    linear,
    register,
)


def random_mask(view: OpView, operand: str, rng: np.random.Generator) -> Array:
    """Draw zeros and ones, with a one in every row of the last dim."""
    mask = rng.integers(0, 2, view.shape[operand])
    mask[..., 0] = 1
    return mask


def _map(
    *texts: str, large: str = "x_0", in_order: tuple[str, ...] = ()
) -> Callable[[OpView], IndexMap]:
    """Align all operands with `large`, whose last dim stays whole."""

    def indices(view: OpView) -> IndexMap:
        dims = {name: _aligned(view, name, large) for name in view.inputs + view.outputs}
        whole_rows = {name: (*named[:-1], None) for name, named in dims.items()}
        return IndexMap(whole_rows, linear=tuple(map(linear, texts)), in_order=frozenset(in_order))

    return indices


def _aligned(view: OpView, name: str, large: str) -> Dims:
    """Name the dims of an operand after those of `large`, which it is broadcast to."""
    shape = view.shape[large]
    last = {f"d{len(shape) - 2}": "row", f"d{len(shape) - 1}": "column"}
    dims = align(view.shape[name], shape)
    return tuple(None if index is None else last.get(index, index) for index in dims)


def _softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def _softmax_grad(y: Array, dy: Array) -> Array:
    return np.asarray(y * (dy - (dy * y).sum(axis=-1, keepdims=True)))


def _dropped(op: LocalOp, values: Array, mask: str, scale: str) -> Array:
    """Keep what a dropout mask keeps, scaled by an attribute."""
    return np.where(op.inputs[mask] != 0, values * op.view.attr[scale], 0.0)


def _masked_scores(op: LocalOp) -> Array:
    x = op.inputs["x_0"] + op.inputs.get("bias_0", 0.0)
    attr = op.view.attr
    return np.where(op.inputs["mask_0"] != 0, x * attr["scale_value"], attr["mask_fill_value"])


def _mask_softmax(op: LocalOp) -> dict[str, Array]:
    return {"y_0": _softmax(_masked_scores(op))}


def _mask_softmax_grad(op: LocalOp) -> dict[str, Array]:
    dx = _softmax_grad(op.inputs["y_0"], op.inputs["dy_0"]) * op.view.attr["scale_value"]
    return {"dx_0": np.where(op.inputs["mask_0"] != 0, dx, 0.0)}


def _mask_softmax_dropout(op: LocalOp) -> dict[str, Array]:
    softmax = _softmax(_masked_scores(op))
    kept = _dropped(op, softmax, "dropout_mask_0", "dropout_scale_value")
    return {"y_0": kept, "softmax_y_0": softmax}


def _mask_softmax_dropout_grad(op: LocalOp) -> dict[str, Array]:
    dy = _dropped(op, op.inputs["dy_0"], "dropout_mask_0", "dropout_scale_value")
    dx = _softmax_grad(op.inputs["softmax_y_0"], dy) * op.view.attr["scale_value"]
    return {"dx_0": np.where(op.inputs["mask_0"] != 0, dx, 0.0)}


# --- lower triangles -------------------------------------------------------------------------


def _below(op: LocalOp, operand: str) -> Array:
    """Return where the operand's last two dims lie on or below the diagonal."""
    shape, start = op.inputs[operand].shape, op.start[operand]
    rows, columns = (np.arange(shape[i]) + start[i] for i in (-2, -1))
    return np.asarray(columns <= rows[:, None] + op.view.attr["diagonal"])


def _tril_softmax(op: LocalOp) -> dict[str, Array]:
    attr = op.view.attr
    scaled = op.inputs["x_0"] * attr["tril_scale_value"]
    softmax = _softmax(np.where(_below(op, "x_0"), scaled, attr["tril_fill_value"]))
    return {"y_0": _dropped(op, softmax, "mask_0", "mask_scale_value"), "softmax_y_0": softmax}


def _tril_softmax_grad(op: LocalOp) -> dict[str, Array]:
    dy = _dropped(op, op.inputs["dy_0"], "mask_0", "mask_scale_value")
    dx = _softmax_grad(op.inputs["softmax_y_0"], dy) * op.view.attr["tril_scale_value"]
    return {"dx_0": np.where(_below(op, "dy_0"), dx, 0.0)}


def _number(view: OpView, name: str) -> float:
    """Return an attribute that is given as a float or as an integer."""
    kind = "floating" if view.attr[f"is_floating_{name}_value"] else "integer"
    return float(view.attr[f"{kind}_{name}_value"])


def _scale_tril_map(view: OpView) -> IndexMap:
    """Map a scaled lower triangle: linear unless something else than zeros fills the rest."""
    dims = _aligned(view, "in_0", "in_0")
    groups = () if _number(view, "fill") else (linear("in_0"),)
    return IndexMap(
        {"in_0": dims, "out_0": dims}, linear=groups, in_order=frozenset({"row", "column"})
    )


def _scale_tril(op: LocalOp) -> dict[str, Array]:
    scaled = op.inputs["in_0"] * _number(op.view, "scale")
    return {"out_0": np.where(_below(op, "in_0"), scaled, _number(op.view, "fill"))}


def _per_element(flop: float) -> Callable[[OpView], float]:
    return lambda view: flop * elements(_large(view))


def _large(view: OpView) -> Shape:
    """Return the shape of the scores: that of the last output."""
    return view.shape[view.outputs[-1]]


_FAMILY = "normalisation"
_MASKS = {"mask_0": random_mask, "dropout_mask_0": random_mask}
_RULES = {
    "fused_scale_mask_softmax": (_map(), _mask_softmax, 6),
    "fused_scale_mask_softmax_grad": (_map("dy_0", large="dy_0"), _mask_softmax_grad, 5),
    "fused_scale_mask_softmax_dropout": (_map(), _mask_softmax_dropout, 8),
    "fused_scale_mask_softmax_dropout_grad": (
        _map("dy_0", large="dy_0"), _mask_softmax_dropout_grad, 7
    ),
    "fused_bias_add_scale_mask_softmax_dropout": (_map(), _mask_softmax_dropout, 9),
    "fused_tril_scale_softmax_mask_scale": (_map(in_order=("row",)), _tril_softmax, 8),
    "fused_tril_scale_softmax_mask_scale_grad": (
        _map("dy_0", large="dy_0", in_order=("row",)), _tril_softmax_grad, 7
    ),
}  # fmt: skip

register(
    *(
        OpRule(name, indices, reference, _per_element(flop), family=_FAMILY, samplers=_MASKS)
        for name, (indices, reference, flop) in _RULES.items()
    ),
    OpRule("fused_scale_tril", _scale_tril_map, _scale_tril),
)
