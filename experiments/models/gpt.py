"""GPT: token and position embedding, pre-norm blocks, language-model head, cross-entropy."""

from __future__ import annotations

import math
from typing import Any

import oneflow as flow
from oneflow import nn

from experiments.models.training import Built, TrainGraph, cross_entropy, next_tokens

VOCABULARY = 50304  # 50257 byte pairs, filled up to a multiple of 128


def _paper(layers: int, width: int, heads: int, sequence: int) -> dict[str, int]:
    return {
        "layers": layers, "width": width, "heads": heads, "sequence": sequence,
        "vocabulary": VOCABULARY, "batch": 32,
    }  # fmt: skip


SIZES = {
    "toy": {"layers": 2, "width": 32, "heads": 4, "sequence": 8, "vocabulary": 64, "batch": 8},
    "demo": {"layers": 4, "width": 256, "heads": 4, "sequence": 128, "vocabulary": 256, "batch": 8},
    "medium": _paper(24, 1024, 16, 1024),
    # The others that Rhino plans, by their names there.
    "large": _paper(24, 1536, 16, 1024),
    "xl": _paper(24, 2048, 32, 1024),
    "gpt_2_7b": _paper(32, 2560, 32, 1024),
    "gpt_6_7b": _paper(32, 4096, 32, 1024),
    "gpt2_small": _paper(12, 768, 12, 1024),
    "gpt3_175b": _paper(96, 12288, 96, 2048),
}


class CausalAttention(nn.Module):
    """Softmax attention over `heads` heads; q, k and v come from one projection.

    Its result is (heads, 3, size), so that a cut into devices is one of heads, or (3, heads, size) with
    `three_first`, as in GPT-2.
    """

    def __init__(
        self, width: int, heads: int, *, dropout: float = 0.0, three_first: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.three_first = heads, three_first
        self.drop = nn.Dropout(dropout)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        batch, length, width = x.shape
        size = width // self.heads
        if self.three_first:
            qkv = self.qkv(x).reshape(batch, length, 3, self.heads, size).permute(2, 0, 3, 1, 4)
            q, k, v = qkv[0], qkv[1], qkv[2]
        else:
            qkv = self.qkv(x).reshape(batch, length, self.heads, 3 * size).permute(0, 2, 1, 3)
            q, k, v = (qkv[..., i * size : (i + 1) * size] for i in range(3))
        scores = flow.matmul(q, k.transpose(-1, -2)) * (1.0 / math.sqrt(size))
        mixed = flow.matmul(self.drop(flow.softmax(scores, dim=-1)), v)
        return self.proj(mixed.permute(0, 2, 1, 3).reshape(batch, length, width))


class CausalBlock(nn.Module):
    """CausalAttention and a four times wider MLP, each after a LayerNorm, with residuals.

    `dropout` is that of both results and of the weights of attention.
    """

    def __init__(
        self, width: int, heads: int, *, dropout: float = 0.0, three_first: bool = False
    ) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads, dropout=dropout, three_first=three_first)
        self.drop = nn.Dropout(dropout)
        self.ln2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        x = x + self.drop(self.attention(self.ln1(x)))
        return x + self.drop(self.fc2(self.act(self.fc1(self.ln2(x)))))


class GPT(nn.Module):
    """Token ids (batch, sequence) → logits (batch, sequence, vocabulary)."""

    def __init__(
        self,
        *,
        layers: int,
        width: int,
        heads: int,
        sequence: int,
        vocabulary: int,
        dropout: float = 0.0,
        three_first: bool = False,
    ) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(flow.zeros(sequence, width))
        blocks = [
            CausalBlock(width, heads, dropout=dropout, three_first=three_first)
            for _ in range(layers)
        ]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: flow.Tensor) -> flow.Tensor:
        x = self.drop(self.token(ids) + self.position)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build(*, optimizer: str = "sgd", **sizes: Any) -> Built:
    """Return (training graph, (ids, next ids)) of these sizes, the toy's where they are not given.

    Both inputs have shape (batch, sequence), int64.
    """
    sizes = SIZES["toy"] | sizes
    inputs = next_tokens(sizes.pop("batch"), sizes["sequence"], sizes["vocabulary"])
    return TrainGraph(GPT(**sizes), cross_entropy, optimizer), inputs
