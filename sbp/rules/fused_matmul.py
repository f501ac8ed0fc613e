"""Products fused with what follows them: a bias, ReLU, GELU, whole MLPs, and their gradients.

A bias, or a tensor that the result is added to, is added once: it is P where the contracted index
is cut. The MLP ops save which ReLUs were open as bits, packed by 32 along the columns and padded to
a multiple of 128 bits per row. Cutting rows keeps that layout, cutting columns does not, so columns
stay whole.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from autoddl.sbp.rules.maps import dim_names, elements, uncut
from autoddl.sbp.rules.registry import (
    Array,
    IndexMap,
    LocalOp,
    OpRule,
    OpView,
    index_map,
    linear,
    register,
)

_ALIGNMENT = 128  # bits; rows of the saved mask start at multiples of it
_WORD = 32  # bits


def mask_words(columns: int) -> int:
    """Return how many 32-bit words hold one row of the saved mask."""
    return math.ceil(columns / _ALIGNMENT) * _ALIGNMENT // _WORD


def pack_rows(mask: Array) -> Array:
    """Pack a boolean matrix into words of 32 bits, lowest bit first, each row padded."""
    rows, columns = mask.shape
    bits = np.zeros((rows, mask_words(columns), _WORD), dtype=np.int64)
    bits.reshape(rows, -1)[:, :columns] = mask
    return np.asarray(bits @ (1 << np.arange(_WORD, dtype=np.int64)))


def unpack_rows(words: Array, columns: int) -> Array:
    """Undo `pack_rows` for a matrix with this many columns."""
    bits = words[:, :, None].astype(np.int64) >> np.arange(_WORD) & 1
    return np.asarray(bits.reshape(words.shape[0], -1)[:, :columns] != 0)


def random_words(view: OpView, operand: str, rng: np.random.Generator) -> Array:
    """Draw words of a packed mask."""
    return rng.integers(0, 1 << _WORD, view.shape[operand])


def _operands(view: OpView, stem: str) -> list[str]:
    """Return the names of an operand list: stem_0, stem_1, …"""
    return [name for name in view.inputs + view.outputs if name.rpartition("_")[0] == stem]


# --- one product -----------------------------------------------------------------------------


def _bias_map(view: OpView) -> IndexMap:
    """Map out[…, n] = sum over k of x[…, k] * weight[n, k] + bias[n] (+ what it is added to)."""
    rows = dim_names(len(view.shape["x_0"]) - 1)
    dims = {"x_0": (*rows, "k"), "weight_0": ("n", "k"), "bias_0": ("n",), "out_0": (*rows, "n")}
    terms = " bias_0"
    if "_add_to_output_0" in view.inputs:
        dims["_add_to_output_0"] = dims["out_0"]
        terms += " _add_to_output_0"
    return IndexMap(
        dims,
        summed=frozenset("k"),
        linear=(linear("x_0" + terms), linear("weight_0" + terms)),
        added=frozenset(terms.split()),
    )


def _bias(op: LocalOp) -> dict[str, Array]:
    out = op.inputs["x_0"] @ op.inputs["weight_0"].T + op.inputs["bias_0"]
    return {"out_0": out + op.inputs.get("_add_to_output_0", 0.0)}


_RELU_GRAD = index_map(
    "dy_0: m n, weight_0: n ., aux_0: m . -> d_grad_0: m ., d_bias_0: .",
    summed="m n",
    linear=("dy_0", "weight_0"),
)


def _relu_grad_map(view: OpView) -> IndexMap:
    """Map d_grad = alpha * (dy @ weight) where the saved mask is open; d_bias sums its rows."""
    return _RELU_GRAD


def _relu_grad(op: LocalOp) -> dict[str, Array]:
    product = op.view.attr["alpha"] * (op.inputs["dy_0"] @ op.inputs["weight_0"])
    grad = np.where(unpack_rows(op.inputs["aux_0"], product.shape[1]), product, 0.0)
    return {"d_grad_0": grad, "d_bias_0": grad.sum(axis=0)}


_DROPOUT_GRAD = index_map("dy_0: m ., mask_0: m . -> dx_0: m .", linear=("dy_0",))


def _dropout_grad(op: LocalOp) -> dict[str, Array]:
    dy = op.inputs["dy_0"]
    is_open = unpack_rows(op.inputs["mask_0"], dy.shape[1])
    return {"dx_0": np.where(is_open, op.view.attr["scale"] * dy, 0.0)}


# --- whole MLPs ------------------------------------------------------------------------------


def _row_dims(view: OpView) -> IndexMap:
    """Cut the rows of all operands but weights and biases."""
    parameters = {
        name
        for stem in ("weights", "biases", "d_weights", "d_biases")
        for name in _operands(view, stem)
    }
    dims = {name: ("m", *(None,) * (len(view.shape[name]) - 1)) for name in view.shape}
    return IndexMap({**dims, **uncut(view, parameters)}, summed=frozenset("m"))


def _mlp_map(view: OpView) -> IndexMap:
    """Map a chain of x @ weight.T + bias with ReLU between.

    Without a last ReLU it is linear in the last layer's parameters. That is not said: what an engine
    refuses is listed by operand names, and there may be any number of layers.
    """
    return replace(_row_dims(view), summed=frozenset())


def _mlp(op: LocalOp) -> dict[str, Array]:
    """Run the layers; the last hidden tensor and an unused mask are never written: zeros."""
    count, attr = len(_operands(op.view, "weights")), op.view.attr
    rates = attr.get("dropout_rate_list", (0.0,) * count)
    rng = np.random.default_rng(attr.get("seed", 0))
    results: dict[str, Array] = {}
    x = op.inputs["x_0"]
    for i in range(count):
        x = x @ op.inputs[f"weights_{i}"].T + op.inputs[f"biases_{i}"]
        is_open = rng.random(x.shape) >= rates[i]
        ends_linear = i == count - 1 and attr["skip_final_activation"]
        if not ends_linear:
            is_open &= x > 0
        if not ends_linear or rates[i] > 0:
            x = np.where(is_open, x, 0.0) / (1 - rates[i])
        else:
            is_open = np.zeros_like(is_open)
        results[f"hidden_{i}"] = x if i < count - 1 else np.zeros_like(x)
        results[f"cublas_aux_{i}"] = pack_rows(is_open)
    return {**results, "out_0": x}


def _mlp_flops(view: OpView) -> float:
    rows = view.shape["x_0"][0]
    weights = sum(elements(view.shape[name]) for name in _operands(view, "weights"))
    return 2 * rows * weights


def _mlp_grad_map(view: OpView) -> IndexMap:
    """Map gradients of a whole MLP from the gradient of its last product: linear in that."""
    return replace(_row_dims(view), linear=(linear("dy_0"),))


def _mlp_grad(op: LocalOp) -> dict[str, Array]:
    count, results, dy = len(_operands(op.view, "weights")), {}, op.inputs["dy_0"]
    for i in reversed(range(count)):
        source = op.inputs["x_0" if i == 0 else f"hidden_{i - 1}"]
        results[f"d_weights_{i}"] = dy.T @ source
        results[f"d_biases_{i}"] = dy.sum(axis=0)
        dy = dy @ op.inputs[f"weights_{i}"]
        if i > 0:
            is_open = unpack_rows(op.inputs[f"cublas_aux_{i - 1}"], dy.shape[1])
            dy = np.where(is_open, op.view.attr["alpha_list"][i - 1] * dy, 0.0)
    return {**results, "d_x_0": dy}


def _uncut_map(view: OpView) -> IndexMap:
    return IndexMap(uncut(view, view.inputs + view.outputs))


def _bias_flops(view: OpView) -> float:
    return 2 * elements(view.shape["out_0"]) * view.shape["x_0"][-1]


def _relu_grad_flops(view: OpView) -> float:
    rows, columns = view.shape["dy_0"]
    return 2 * rows * columns * view.shape["weight_0"][1]


register(
    OpRule("fused_matmul_bias", _bias_map, _bias, _bias_flops, family="matmul"),
    OpRule(
        "cublas_bias_add_relu_matmul_grad",
        _relu_grad_map,
        _relu_grad,
        _relu_grad_flops,
        family="matmul",
        samplers={"aux_0": random_words},
    ),
    OpRule(
        "cublas_fused_mlp",
        _mlp_map,
        _mlp,
        _mlp_flops,
        family="matmul",
        notes="Columns stay whole: the saved bit masks pad every row.",
    ),
    OpRule(
        "cublas_fused_mlp_grad",
        _mlp_grad_map,
        _mlp_grad,
        lambda view: 2 * _mlp_flops(view),
        family="matmul",
        samplers={f"cublas_aux_{i}": random_words for i in range(64)},
    ),
    OpRule(
        "fused_matmul_bias_add_relu_dropout",
        _uncut_map,
        _mlp,
        _mlp_flops,
        family="matmul",
        notes="Random: the same seed would repeat the same mask on different shards.",
    ),
    OpRule(
        "fused_relu_dropout_grad",
        lambda view: _DROPOUT_GRAD,
        _dropout_grad,
        samplers={"mask_0": random_words},
    ),
)
