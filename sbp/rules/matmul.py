"""Matrix products: cut a row, column or batch index for S, the contracted index for P out."""

from __future__ import annotations

from autoddl.sbp.rules.maps import align, dim_names, elements
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

_BILINEAR = (linear("a_0"), linear("b_0"))


def _product_map(view: OpView) -> IndexMap:
    """Map out[…, m, n] = sum over k of a[…, m, k] * b[…, k, n], either transposed, batch broadcast.

    A batch dim that one factor lacks, or has with size 1, is cut on the other factor only.
    """
    batch = view.shape["out_0"][:-2]
    a: Dims = ("k", "m") if view.attr["transpose_a"] else ("m", "k")
    b: Dims = ("n", "k") if view.attr["transpose_b"] else ("k", "n")
    return IndexMap(
        {
            "a_0": align(view.shape["a_0"][:-2], batch) + a,
            "b_0": align(view.shape["b_0"][:-2], batch) + b,
            "out_0": (*align(batch, batch), "m", "n"),
        },
        summed=frozenset({"k"}),
        linear=_BILINEAR,
    )


def _product(op: LocalOp) -> dict[str, Array]:
    a, b = op.inputs["a_0"], op.inputs["b_0"]
    if op.view.attr["transpose_a"]:
        a = a.swapaxes(-1, -2)
    if op.view.attr["transpose_b"]:
        b = b.swapaxes(-1, -2)
    return {"out_0": op.view.attr["alpha"] * (a @ b)}


def _product_flops(view: OpView) -> float:
    contracted = view.shape["a_0"][-2 if view.attr["transpose_a"] else -1]
    return 2 * elements(view.shape["out_0"]) * contracted


def _grad_b_map(view: OpView) -> IndexMap:
    """Map out[n, k] = sum over all leading dims of a[…, n] * b[…, k]."""
    leading = dim_names(len(view.shape["a_0"]) - 1)
    return IndexMap(
        {"a_0": (*leading, "n"), "b_0": (*leading, "k"), "out_0": ("n", "k")},
        summed=frozenset(name for name in leading if name is not None),
        linear=_BILINEAR,
    )


def _grad_b(op: LocalOp) -> dict[str, Array]:
    a, b = op.inputs["a_0"], op.inputs["b_0"]
    flat_a, flat_b = a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1])
    return {"out_0": op.view.attr["alpha"] * (flat_a.T @ flat_b)}


def _grad_b_flops(view: OpView) -> float:
    return 2 * elements(view.shape["a_0"]) * view.shape["b_0"][-1]


register(
    *(
        OpRule(op_type, _product_map, _product, _product_flops, family="matmul")
        for op_type in ("matmul", "batch_matmul", "broadcast_matmul")
    ),
    OpRule("broadcast_matmul_grad_b", _grad_b_map, _grad_b, _grad_b_flops, family="matmul"),
)
