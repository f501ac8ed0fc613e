"""LLaMA: RMSNorm, rotary positions, SwiGLU and grouped-query attention (Touvron et al. 2023)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import oneflow as flow
from oneflow import nn

from experiments.models.training import Built, TrainGraph, cross_entropy, next_tokens
from experiments.models.transformer import MASKED, join_heads, split_heads


def _paper(
    layers: int, width: int, heads: int, inner: int, *, groups: int = 0, sequence: int = 2048
) -> dict[str, Any]:
    return {
        "layers": layers, "width": width, "heads": heads, "groups": groups or heads,
        "inner": inner, "sequence": sequence, "vocabulary": 32000, "batch": 16,
    }  # fmt: skip


SIZES: dict[str, dict[str, Any]] = {
    "toy": {
        "layers": 1, "width": 32, "heads": 8, "groups": 4, "inner": 64, "sequence": 8,
        "vocabulary": 64, "batch": 8,
    },
    "llama_7b": _paper(32, 4096, 32, 11008),
    "llama2_70b": _paper(80, 8192, 64, 28672, groups=8, sequence=4096),
}  # fmt: skip


class RMSNorm(nn.Module):
    """Divide by the root mean square over the last dim and scale; no mean, no bias."""

    def __init__(self, width: int, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(flow.ones(width))
        self.epsilon = epsilon

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        mean = x.square().mean(-1, keepdim=True)
        return x * flow.rsqrt(mean + self.epsilon) * self.weight


def angles(sequence: int, size: int) -> np.ndarray:
    """Return the angle of every position and pair of features, (sequence, size / 2)."""
    speed = 10000.0 ** (-np.arange(0, size, 2) / size)
    return np.arange(sequence)[:, None] * speed


def rotated(x: flow.Tensor, cos: flow.Tensor, sin: flow.Tensor) -> flow.Tensor:
    """Turn pairs of features (first half, second half) of (…, length, size) by the angles."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return flow.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class GroupedAttention(nn.Module):
    """Causal attention; every key and value serves heads / groups queries."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        size = width // heads
        self.heads, self.groups, self.scale = heads, groups, 1 / math.sqrt(size)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, groups * size, bias=False)
        self.value = nn.Linear(width, groups * size, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def forward(
        self, x: flow.Tensor, cos: flow.Tensor, sin: flow.Tensor, hidden: flow.Tensor
    ) -> flow.Tensor:
        q = rotated(split_heads(self.query(x), self.heads), cos, sin)
        k = self._repeated(rotated(split_heads(self.key(x), self.groups), cos, sin))
        v = self._repeated(split_heads(self.value(x), self.groups))
        scores = flow.matmul(q, k.transpose(-1, -2)) * self.scale
        weights = flow.softmax(scores.masked_fill(hidden, MASKED), dim=-1)
        return self.output(join_heads(flow.matmul(weights, v)))

    def _repeated(self, x: flow.Tensor) -> flow.Tensor:
        times = self.heads // self.groups
        if times == 1:
            return x
        batch, groups, length, size = x.shape
        repeated = x.unsqueeze(2).expand(batch, groups, times, length, size)
        return repeated.reshape(batch, groups * times, length, size)


class GatedFeedForward(nn.Module):
    """SwiGLU: silu(gate(x)) * up(x), then down."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        self.act = nn.SiLU()

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))


class GroupedBlock(nn.Module):
    """GroupedAttention and SwiGLU, each after an RMSNorm, with residuals."""

    def __init__(self, width: int, heads: int, groups: int, inner: int) -> None:
        super().__init__()
        self.norm1 = RMSNorm(width)
        self.attention = GroupedAttention(width, heads, groups)
        self.norm2 = RMSNorm(width)
        self.feed_forward = GatedFeedForward(width, inner)

    def forward(self, x: flow.Tensor, *tables: flow.Tensor) -> flow.Tensor:
        x = x + self.attention(self.norm1(x), *tables)
        return x + self.feed_forward(self.norm2(x))


class Llama(nn.Module):
    """Token ids (batch, sequence) → logits (batch, sequence, vocabulary)."""

    def __init__(
        self,
        *,
        layers: int,
        width: int,
        heads: int,
        groups: int,
        inner: int,
        sequence: int,
        vocabulary: int,
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        angle = angles(sequence, width // heads).astype(np.float32)
        self.register_buffer("cos", flow.tensor(np.cos(angle)))
        self.register_buffer("sin", flow.tensor(np.sin(angle)))
        hidden = np.triu(np.ones((sequence, sequence), dtype=bool), 1)
        self.register_buffer("hidden", flow.tensor(hidden))
        self.blocks = nn.ModuleList(
            [GroupedBlock(width, heads, groups, inner) for _ in range(layers)]
        )
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: flow.Tensor) -> flow.Tensor:
        x = self.token(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin, self.hidden)
        return self.head(self.norm(x))


def build(*, optimizer: str = "sgd", **sizes: Any) -> Built:
    """Return (training graph, (ids, next ids)) of these sizes, the toy's where they are not given.

    Both inputs have shape (batch, sequence), int64; `groups` is the number of key and value heads.
    """
    sizes = SIZES["toy"] | sizes
    inputs = next_tokens(sizes.pop("batch"), sizes["sequence"], sizes["vocabulary"])
    return TrainGraph(Llama(**sizes), cross_entropy, optimizer), inputs
