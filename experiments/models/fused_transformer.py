"""GPT-2 and BERT as LiBai and Megatron-LM train them on GPUs: kernels that do several ops in one.

Blocks are pre-norm, BERT's too (Megatron-LM §3). Bias and GELU are one kernel, bias and dropout one, and
scale, mask, softmax and dropout of the scores one; the head's table is that of the token embedding.
These kernels are CUDA's: on the CPU the models are traced and priced, never run. 24 layers of width 1024
have 355 million parameters (GPT-2) and 336 million (BERT).

Source: Oneflow-Inc/libai 9dcbe3b, libai/models/{gpt,bert}_model.py and configs/common/models.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import oneflow as flow
from oneflow import nn

from experiments.models.bert import PADDING, SEGMENTS, examples
from experiments.models.training import Built, next_tokens
from experiments.models.transformer import MASKED, LossGraph, join_heads

SIZES: dict[str, dict[str, Any]] = {
    "toy": {"layers": 2, "width": 32, "heads": 4, "sequence": 8, "vocabulary": 64, "batch": 8}
}
DROPOUT = 0.1


class FusedAttention(nn.Module):
    """Attention whose scores are scaled, masked, normalised and dropped in one kernel.

    Without a `mask` (batch, 1, sequence, sequence) it is causal.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: flow.Tensor, mask: flow.Tensor | None = None) -> flow.Tensor:
        batch, length, width = x.shape
        size = width // self.heads
        qkv = self.qkv(x).reshape(batch, length, self.heads, 3 * size).permute(0, 2, 1, 3)
        q, k, v = flow.chunk(qkv, chunks=3, dim=-1)
        scores = flow.matmul(q, k, transpose_b=True, alpha=1 / math.sqrt(size))
        if mask is None:
            weights, _ = flow._C.fused_scale_tril_softmax_mask_scale(
                scores, p=self.dropout, diagonal=0, tril_scale_value=1.0, tril_fill_value=MASKED
            )
        else:
            weights, _ = flow._C.fused_scale_mask_softmax_dropout(
                scores, mask, fill_value=MASKED, scale=1.0, p=self.dropout
            )
        return _biased_dropout(self.proj, join_heads(flow.matmul(weights, v)), self.dropout)


class FusedBlock(nn.Module):
    """FusedAttention and a four times wider MLP, each after a LayerNorm, with residuals."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.ln1 = nn.LayerNorm(width)
        self.attention = FusedAttention(width, heads, dropout)
        self.ln2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: flow.Tensor, mask: flow.Tensor | None = None) -> flow.Tensor:
        x = x + self.attention(self.ln1(x), mask)
        inner = flow.matmul(self.ln2(x), self.fc1.weight, transpose_b=True)
        inner = flow._C.fused_bias_add_gelu(inner, self.fc1.bias, axis=2)
        return x + _biased_dropout(self.fc2, inner, self.dropout)


def _biased_dropout(layer: nn.Linear, x: flow.Tensor, dropout: float) -> flow.Tensor:
    y = flow.matmul(x, layer.weight, transpose_b=True)
    return flow._C.fused_bias_add_dropout(y, layer.bias, p=dropout, axis=2)


class FusedStack(nn.Module):
    """Token ids (batch, sequence), with `segments` also segment ids → hidden states (…, width)."""

    def __init__(
        self, *, layers: int, width: int, heads: int, sequence: int, vocabulary: int,
        dropout: float, segments: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(flow.zeros(sequence, width))
        self.segment = nn.Embedding(SEGMENTS, width) if segments else None
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList([FusedBlock(width, heads, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(
        self, ids: flow.Tensor, segments: flow.Tensor | None = None, mask: flow.Tensor | None = None
    ) -> flow.Tensor:
        x = self.token(ids) + self.position
        if self.segment is not None:
            x = x + self.segment(segments)
        x = self.drop(x)
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x)


class FusedGPT(nn.Module):
    """Token ids and the next ones, both (batch, sequence) → loss."""

    def __init__(self, **sizes: Any) -> None:
        super().__init__()
        self.stack = FusedStack(**sizes, segments=False)

    def forward(self, ids: flow.Tensor, following: flow.Tensor) -> flow.Tensor:
        logits = flow.matmul(self.stack(ids), self.stack.token.weight, transpose_b=True)
        return _losses(logits, following).mean()


class FusedBert(nn.Module):
    """Ids, segments, labels, which are predicted (all (batch, sequence)) and (batch,) → loss.

    The head computes all positions; the loss is the mean over those that are predicted.
    """

    def __init__(self, **sizes: Any) -> None:
        super().__init__()
        width, vocabulary = sizes["width"], sizes["vocabulary"]
        self.stack = FusedStack(**sizes, segments=True)
        self.pool = nn.Linear(width, width)
        self.sentence = nn.Linear(width, 2)
        self.transform = nn.Linear(width, width)
        self.act = nn.GELU()
        self.norm = nn.LayerNorm(width)
        self.bias = nn.Parameter(flow.zeros(vocabulary))

    def forward(
        self, ids: flow.Tensor, segments: flow.Tensor, labels: flow.Tensor, predicted: flow.Tensor,
        follows: flow.Tensor,
    ) -> flow.Tensor:  # fmt: skip
        known = (ids != PADDING).to(flow.int8)
        mask = (known.unsqueeze(1) * known.unsqueeze(2)).unsqueeze(1).to(flow.bool)
        x = self.stack(ids, segments, mask)
        hidden = self.norm(self.act(self.transform(x)))
        logits = flow.matmul(hidden, self.stack.token.weight, transpose_b=True) + self.bias
        chosen = predicted.to(flow.float32).reshape(-1)
        masked = (_losses(logits, labels) * chosen).sum() / (chosen.sum() + 1e-7)
        pooled = flow.tanh(self.pool(x[:, 0]))
        return masked + _losses(self.sentence(pooled), follows).mean()


def _losses(logits: flow.Tensor, labels: flow.Tensor) -> flow.Tensor:
    """Return the cross-entropy of each position; the classes are the last dim of the logits."""
    rows = logits.reshape(-1, logits.shape[-1])
    return flow._C.sparse_softmax_cross_entropy(rows, labels.reshape(-1))


def build(
    *,
    encoder: bool = False,
    dropout: float = DROPOUT,
    optimizer: str = "clipped_adamw",
    **sizes: Any,
) -> Built:
    """Return (training graph, inputs) of GPT-2 or, if it is an `encoder`, of BERT.

    `sizes` are those of FusedStack, the toy's where they are not given. Inputs are those of FusedGPT or
    FusedBert, int64.
    """
    sizes = SIZES["toy"] | sizes
    batch, sequence, vocabulary = sizes.pop("batch"), sizes["sequence"], sizes["vocabulary"]
    if not encoder:
        model = FusedGPT(**sizes, dropout=dropout)
        return LossGraph(model, optimizer), next_tokens(batch, sequence, vocabulary)
    ids, segments, labels, follows = examples(batch, sequence, vocabulary)
    predicted = (labels >= 0).astype(np.int64)
    arrays = ids, segments, np.maximum(labels, 0), predicted, follows
    return LossGraph(FusedBert(**sizes, dropout=dropout), optimizer), tuple(
        map(flow.tensor, arrays)
    )
