"""Attention products from one fused projection: cut the batch or the heads.

Hidden states have shape (sequence, batch, heads * 3 * head size): for each head its query, key and
value. Heads are the outer part of that dim, so a cut by whole heads is a plain cut of it. Sequence
positions stay whole in self attention: the same operand holds the rows and the columns of the scores.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autoddl.sbp.rules.maps import elements
from autoddl.sbp.rules.registry import Array, IndexMap, LocalOp, OpRule, OpView, index_map, register

_SELF = index_map("hidden_states_0: . b h -> query_mul_key_0: b h . ., value_0: b h . .")
# dq is linear in the keys, dk in the queries; dv is the gradient of v itself.
_SELF_GRAD = index_map(
    "query_mul_key_grad_0: b h . ., value_grad_0: b h . ., hidden_states_0: . b h"
    " -> hidden_states_grad_0: . b h",
    linear=("query_mul_key_grad_0 value_grad_0", "hidden_states_0 value_grad_0"),
)


def _split(hidden: Array, head_size: int) -> Array:
    """Return queries, keys and values as (3, batch, heads, sequence, head size)."""
    length, batch, width = hidden.shape
    parts = hidden.reshape(length, batch, width // (3 * head_size), 3, head_size)
    return parts.transpose(3, 1, 2, 0, 4)


def _self_attention(op: LocalOp) -> dict[str, Array]:
    q, k, v = _split(op.inputs["hidden_states_0"], op.view.attr["head_size"])
    return {"query_mul_key_0": op.view.attr["alpha"] * (q @ k.swapaxes(-1, -2)), "value_0": v}


def _self_attention_grad(op: LocalOp) -> dict[str, Array]:
    dv = op.inputs["value_grad_0"]
    q, k, _ = _split(op.inputs["hidden_states_0"], dv.shape[-1])
    scores = op.view.attr["alpha"] * op.inputs["query_mul_key_grad_0"]
    parts = np.stack((scores @ k, scores.swapaxes(-1, -2) @ q, dv))
    shape = op.view.shape["hidden_states_grad_0"]
    return {"hidden_states_grad_0": parts.transpose(3, 1, 2, 0, 4).reshape(shape)}


def _self_flops(view: OpView) -> float:
    """Count the product of queries and keys."""
    return 2 * elements(view.shape["query_mul_key_0"]) * view.shape["value_0"][-1]


def _self_grad_flops(view: OpView) -> float:
    scores, value = view.shape["query_mul_key_grad_0"], view.shape["value_grad_0"]
    return 4 * elements(scores) * value[-1]


def _inference_map(view: OpView) -> IndexMap:
    """Map softmax(q k) v: batch and query rows are cut; heads are counted by an attribute."""
    imap = index_map("query_0: b m ., key_0: b . ., value_0: b . . -> out_0: b m .",
                     linear=("value_0",))  # fmt: skip
    return replace(imap, in_order=frozenset({"m"}))  # of which some see less than others


def _heads(op: LocalOp, name: str) -> Array:
    """Return an operand's slice of the hidden dim as (batch, heads, sequence, head size)."""
    attr, x = op.view.attr, op.inputs[f"{name}_0"]
    end = attr[f"{name}_hidden_slice_end"]
    x = x[..., attr[f"{name}_hidden_slice_start"] : x.shape[-1] if end == -1 else end]
    return x.reshape(*x.shape[:2], attr["num_heads"], -1).swapaxes(1, 2)


def _inference(op: LocalOp) -> dict[str, Array]:
    q, k, v = (_heads(op, name) for name in ("query", "key", "value"))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if op.view.attr["causal"]:
        rows = np.arange(q.shape[2])[:, None] + op.start["query_0"][1]
        scores = np.where(np.arange(k.shape[2]) <= rows, scores, -np.inf)
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = powers / powers.sum(axis=-1, keepdims=True) @ v
    return {"out_0": mixed.swapaxes(1, 2).reshape(op.view.shape["out_0"])}


def _inference_flops(view: OpView) -> float:
    """Count both products; a causal mask saves nothing here."""
    return 4 * elements(view.shape["out_0"]) * view.shape["key_0"][1]


register(
    OpRule(
        "fused_self_attention_query_mul_key_and_value",
        lambda view: _SELF,
        _self_attention,
        _self_flops,
        family="matmul",
    ),
    OpRule(
        "fused_self_attention_query_mul_key_and_value_grad",
        lambda view: _SELF_GRAD,
        _self_attention_grad,
        _self_grad_flops,
        family="matmul",
    ),
    OpRule(
        "fused_multi_head_attention_inference",
        _inference_map,
        _inference,
        _inference_flops,
        family="matmul",
        notes="Has no gradient. Heads stay whole: an attribute counts all of them.",
    ),
)
