"""T5: encoder and decoder with bias-free RMS norms and relative positions (Raffel et al. 2020)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import oneflow as flow
from oneflow import nn

from experiments.models.llama import RMSNorm
from experiments.models.training import Built, cross_entropy, shifted
from experiments.models.transformer import MASKED, Attention, LossGraph

VOCABULARY = 32128


def _paper(layers: int, width: int, heads: int, inner: int, head_size: int = 64) -> dict[str, Any]:
    return {
        "layers": layers, "width": width, "heads": heads, "head_size": head_size, "inner": inner,
        "sequence": 512, "target_sequence": 128, "vocabulary": VOCABULARY, "batch": 32,
    }  # fmt: skip


SIZES: dict[str, dict[str, Any]] = {
    "toy": {
        "layers": 1, "width": 16, "heads": 4, "head_size": 4, "inner": 32, "sequence": 8,
        "target_sequence": 4, "vocabulary": 64, "batch": 8,
    },
    "t5_small": _paper(6, 512, 8, 2048),
    "t5_base": _paper(12, 768, 12, 3072),
    "t5_11b": _paper(24, 1024, 128, 65536, 128),
}  # fmt: skip


def position_buckets(
    queries: int, keys: int, *, both_ways: bool, buckets: int = 32, farthest: int = 128
) -> np.ndarray:
    """Return the bucket of key - query for every pair, (queries, keys).

    Half of the buckets hold one near distance each, the others grow logarithmically up to `farthest`;
    `both_ways` gives each direction half of the buckets, else keys ahead fall into bucket 0.
    """
    distance = np.arange(keys)[None, :] - np.arange(queries)[:, None]
    offset = np.zeros_like(distance)
    if both_ways:
        buckets //= 2
        offset = np.where(distance > 0, buckets, 0)
        distance = np.abs(distance)
    else:
        distance = np.maximum(-distance, 0)
    exact = buckets // 2
    growth = np.log(np.maximum(distance, 1) / exact) / math.log(farthest / exact)
    far = np.minimum(exact + (growth * (buckets - exact)).astype(int), buckets - 1)
    return offset + np.where(distance < exact, distance, far)


class RelativePosition(nn.Module):
    """A learnt bias for each head and bucket of the distance: () → (1, heads, length, length)."""

    def __init__(self, heads: int, length: int, *, decoder: bool, buckets: int = 32) -> None:
        super().__init__()
        table = position_buckets(length, length, both_ways=not decoder, buckets=buckets)
        self.register_buffer("buckets", flow.tensor(table.astype(np.int64)))
        self.bias = nn.Embedding(buckets, heads)

    def forward(self) -> flow.Tensor:
        return self.bias(self.buckets).permute(2, 0, 1).unsqueeze(0)


class T5FeedForward(nn.Module):
    """Two dense layers without bias: ReLU in between, or (`gated`, as in T5 1.1) GELU times linear."""

    def __init__(self, width: int, inner: int, *, gated: bool) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, inner, bias=False)
        self.linear = nn.Linear(width, inner, bias=False) if gated else None
        self.fc2 = nn.Linear(inner, width, bias=False)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        if self.linear is None:
            return self.fc2(flow.relu(self.fc1(x)))
        return self.fc2(flow.gelu(self.fc1(x)) * self.linear(x))


class T5Block(nn.Module):
    """Self-attention, in a decoder also cross-attention, and a feed-forward layer; all pre-norm."""

    def __init__(
        self, width: int, heads: int, head_size: int, inner: int, *, gated: bool, decoder: bool
    ) -> None:
        super().__init__()

        def attention() -> Attention:  # T5 does not scale scores: its initial weights do
            return Attention(width, heads, inner=heads * head_size, scale=1.0, use_bias=False)

        self.norm1 = RMSNorm(width)
        self.attention = attention()
        self.norm2 = RMSNorm(width) if decoder else None
        self.cross = attention() if decoder else None
        self.norm3 = RMSNorm(width)
        self.feed_forward = T5FeedForward(width, inner, gated=gated)

    def forward(
        self, x: flow.Tensor, bias: flow.Tensor, memory: flow.Tensor | None = None
    ) -> flow.Tensor:
        x = x + self.attention(self.norm1(x), bias=bias)
        if self.cross is not None and self.norm2 is not None:
            x = x + self.cross(self.norm2(x), memory)
        return x + self.feed_forward(self.norm3(x))


class T5(nn.Module):
    """Source ids (batch, sequence), target ids and labels (batch, target_sequence) → loss.

    Both embeddings and the head share one table, as in the paper.
    """

    def __init__(
        self,
        *,
        layers: int,
        width: int,
        heads: int,
        head_size: int,
        inner: int,
        sequence: int,
        target_sequence: int,
        vocabulary: int,
        gated: bool = False,
    ) -> None:
        super().__init__()

        def stack(decoder: bool) -> nn.ModuleList:
            sizes = (width, heads, head_size, inner)
            blocks = [T5Block(*sizes, gated=gated, decoder=decoder) for _ in range(layers)]
            return nn.ModuleList(blocks)

        self.token = nn.Embedding(vocabulary, width)
        self.near = RelativePosition(heads, sequence, decoder=False)
        self.encoder = stack(False)
        self.encoder_norm = RMSNorm(width)
        self.target_near = RelativePosition(heads, target_sequence, decoder=True)
        ahead = np.triu(np.full((target_sequence, target_sequence), MASKED, dtype=np.float32), 1)
        self.register_buffer("ahead", flow.tensor(ahead))
        self.decoder = stack(True)
        self.decoder_norm = RMSNorm(width)
        self.scale = width**-0.5

    def forward(self, ids: flow.Tensor, target: flow.Tensor, labels: flow.Tensor) -> flow.Tensor:
        x, bias = self.token(ids), self.near()
        for block in self.encoder:
            x = block(x, bias)
        memory = self.encoder_norm(x)
        x, bias = self.token(target), self.target_near() + self.ahead
        for block in self.decoder:
            x = block(x, bias, memory)
        x = self.decoder_norm(x) * self.scale
        return cross_entropy(flow.matmul(x, self.token.weight.transpose(0, 1)), labels)


def build(*, optimizer: str = "sgd", **sizes: Any) -> Built:
    """Return (training graph, (source ids, target ids, next target ids)), all int64.

    `sizes` are those of T5, the toy's where they are not given. Shapes are (batch, sequence) and
    twice (batch, target_sequence); `layers` in each of encoder and decoder.
    """
    sizes = SIZES["toy"] | sizes
    batch, vocabulary, rng = sizes.pop("batch"), sizes["vocabulary"], np.random.default_rng(0)
    ids = flow.tensor(rng.integers(0, vocabulary, (batch, sizes["sequence"])))
    target = rng.integers(0, vocabulary, (batch, sizes["target_sequence"] + 1))
    return LossGraph(T5(**sizes), optimizer), (ids, *shifted(target))
