"""Dot products between the features of recommendation models: cut the batch or the vectors.

Features have shape (batch, features, vector); all of them together are F vectors a sample. Without
pooling the output is (concat, one product per pair in the order of a lower triangle, zero padding):
products sum over the vector dim, and what is concatenated is added to none of the sums, so it is P
where vectors are cut. Pooling "sum" gives the sum of all pairwise products per vector element.
"""

from __future__ import annotations

import numpy as np

from autoddl.errors import RuleError
from autoddl.sbp.rules.maps import elements, uncut
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

_SPARSE = ("sparse_feature_0", "sparse_indices_0", "num_valid_sparse_feature_0")


def _features(view: OpView) -> list[str]:
    return [name for name in view.inputs if name.startswith("features_")]


def _is_sparse(view: OpView) -> bool:
    return any(name in _SPARSE for name in view.inputs)


def _dims(view: OpView) -> dict[str, Dims]:
    """Name batch "b" and vector "v"; the columns of pairs stay whole."""
    if _is_sparse(view):
        return uncut(view, view.inputs + view.outputs)
    pooled = view.attr["pooling"] == "sum"
    flat: Dims = ("b", "v") if pooled else ("b", None)
    return {
        name: ("b", None, "v") if name.startswith("features_") else flat
        for name in view.inputs + view.outputs
    }


def _forward_map(view: OpView) -> IndexMap:
    return IndexMap(_dims(view), summed=frozenset("v"), added=frozenset({"output_concat_0"}))


def _grad_map(view: OpView) -> IndexMap:
    """Map gradients of the features (and a copy of the part of dy that was concatenated).

    They are linear in all features together. That is said for up to two operands only: what an
    engine refuses is listed by operand names, and there may be any number.
    """
    features = _features(view)
    groups = [] if _is_sparse(view) else [linear("dy_0")]
    if groups and len(features) <= 2:
        grads = [name for name in view.outputs if name.startswith("features_grad_")]
        groups.append(linear(f"{' '.join(features)} -> {' '.join(grads)}"))
    return IndexMap(_dims(view), linear=tuple(groups), whole=frozenset({"output_concat_grad_0"}))


def _vectors(op: LocalOp) -> Array:
    """Return all features as (batch, F, vector).

    Raises:
        RuleError: the op has sparse features, which only the engine's own embeddings make.
    """
    if _is_sparse(op.view):
        raise RuleError(f"{op.view.type}: no reference for sparse features; give dense ones")
    return np.concatenate([op.inputs[name] for name in _features(op.view)], axis=1)


def _pairs(op: LocalOp, count: int) -> tuple[Array, Array]:
    """Return rows and columns of the lower triangle of pairs, row by row."""
    rows, columns = np.tril_indices(count, k=0 if op.view.attr["self_interaction"] else -1)
    return rows, columns


def _interaction(op: LocalOp) -> dict[str, Array]:
    x = _vectors(op)
    if op.view.attr["pooling"] == "sum":
        total = x.sum(axis=1)
        return {"out_0": 0.5 * (total * total - (x * x).sum(axis=1))}
    rows, columns = _pairs(op, x.shape[1])
    products = np.sum(x[:, rows] * x[:, columns], axis=-1)
    parts = [op.inputs[name] for name in ("output_concat_0",) if name in op.inputs]
    padding = np.zeros((len(x), op.view.attr["output_padding"]))
    return {"out_0": np.concatenate([*parts, products, padding], axis=1)}


def _interaction_grad(op: LocalOp) -> dict[str, Array]:
    x, dy = _vectors(op), op.inputs["dy_0"]
    ahead = op.view.attr["output_concat_grad_dim"]
    if op.view.attr["pooling"] == "sum":
        dx = dy[:, None, :] * (x.sum(axis=1, keepdims=True) - x)
    else:
        rows, columns = _pairs(op, x.shape[1])
        weights = np.zeros((len(x), x.shape[1], x.shape[1]))
        weights[:, rows, columns] = dy[:, ahead : ahead + len(rows)]
        dx = (weights + weights.swapaxes(1, 2)) @ x
    ends = np.cumsum([op.inputs[name].shape[1] for name in _features(op.view)])
    parts = np.split(dx, ends[:-1], axis=1)
    results = {f"features_grad_{i}": part for i, part in enumerate(parts)}
    return results | ({"output_concat_grad_0": dy[:, :ahead]} if ahead else {})


def _flops(view: OpView, passes: int) -> float:
    sizes = [view.shape[name] for name in _features(view)]
    count = sum(shape[1] for shape in sizes)
    if view.attr["pooling"] == "sum":
        return 4 * passes * sum(elements(shape) for shape in sizes)
    return passes * elements(sizes[0][::2]) * count * count


register(
    OpRule(
        "fused_dot_feature_interaction",
        _forward_map,
        _interaction,
        lambda view: _flops(view, 1),
        family="matmul",
        notes="Sparse features, which only the engine's own embeddings make, stay whole.",
    ),
    OpRule(
        "fused_dot_feature_interaction_grad",
        _grad_map,
        _interaction_grad,
        lambda view: _flops(view, 2),
        family="matmul",
    ),
)
