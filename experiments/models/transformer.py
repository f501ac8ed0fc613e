"""What the transformers of the zoo share: attention with a bias, encoder blocks, a training graph."""

from __future__ import annotations

import math
from collections.abc import Callable

import oneflow as flow
from oneflow import nn

from experiments.models.training import OPTIMIZERS

MASKED = -1e4  # added to the score of a key that must not be seen; its softmax is 0 in float32

FeedForward = Callable[[int], nn.Module]


class LossGraph(nn.Graph):
    """One training step of a model that returns its own loss, from any number of inputs."""

    def __init__(self, model: nn.Module, optimizer: str) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(OPTIMIZERS[optimizer](model.parameters()))

    def build(self, *inputs: flow.Tensor) -> flow.Tensor:
        loss = self.model(*inputs)
        loss.backward()
        return loss


def split_heads(x: flow.Tensor, heads: int) -> flow.Tensor:
    """Turn (batch, length, heads * size) into (batch, heads, length, size)."""
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads).permute(0, 2, 1, 3)


def join_heads(x: flow.Tensor) -> flow.Tensor:
    """Turn (batch, heads, length, size) into (batch, length, heads * size)."""
    batch, heads, length, size = x.shape
    return x.permute(0, 2, 1, 3).reshape(batch, length, heads * size)


class Attention(nn.Module):
    """Softmax attention; queries from `x`, keys and values from `memory` (by default `x`).

    `inner` is the width of all heads together. `bias` of the call is added to the scores and
    broadcasts to (batch, heads, queries, keys); `dropout` is that of the weights.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        inner: int | None = None,
        scale: float | None = None,
        use_bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        inner = width if inner is None else inner
        self.heads = heads
        self.drop = nn.Dropout(dropout)
        self.scale = 1 / math.sqrt(inner // heads) if scale is None else scale
        self.query = nn.Linear(width, inner, bias=use_bias)
        self.key = nn.Linear(width, inner, bias=use_bias)
        self.value = nn.Linear(width, inner, bias=use_bias)
        self.output = nn.Linear(inner, width, bias=use_bias)

    def forward(
        self, x: flow.Tensor, memory: flow.Tensor | None = None, bias: flow.Tensor | None = None
    ) -> flow.Tensor:
        memory = x if memory is None else memory
        q = split_heads(self.query(x), self.heads)
        k = split_heads(self.key(memory), self.heads)
        v = split_heads(self.value(memory), self.heads)
        scores = flow.matmul(q, k.transpose(-1, -2))
        if self.scale != 1:
            scores = scores * self.scale
        if bias is not None:
            scores = scores + bias
        weights = self.drop(flow.softmax(scores, dim=-1))
        return self.output(join_heads(flow.matmul(weights, v)))


class DenseFeedForward(nn.Module):
    """Two dense layers with a GELU in between; `inner` is by default four times the width."""

    def __init__(self, width: int, inner: int | None = None) -> None:
        super().__init__()
        inner = 4 * width if inner is None else inner
        self.fc1 = nn.Linear(width, inner)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(inner, width)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return self.fc2(self.act(self.fc1(x)))


class DropPath(nn.Module):
    """Stochastic depth: what a block adds is left out for samples that are drawn, and larger for others.

    OneFlow's ops of one kind begin with one seed in each step: blocks of one rate leave out the same
    samples, on one device, too.

    Source: Huang et al., Deep Networks with Stochastic Depth (ECCV 2016).
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.kept = 1 - rate

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        if self.kept == 1 or not self.training:
            return x
        drawn = flow.rand(x.shape[0], *[1] * (x.ndim - 1), dtype=x.dtype, device=x.device)
        return x.div(self.kept) * (drawn + self.kept).floor()


class EncoderBlock(nn.Module):
    """Attention and a feed-forward layer with residuals.

    The LayerNorms stand before each (`pre_norm`, as in ViT) or after each (as in BERT).
    `feed_forward` makes the layer from its width, for example a mixture of experts. `dropout` is that
    of both results and of the weights of attention, `drop_path` that of whole results.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        pre_norm: bool,
        epsilon: float = 1e-5,
        feed_forward: FeedForward | None = None,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.pre_norm = pre_norm
        self.ln1 = nn.LayerNorm(width, eps=epsilon)
        self.attention = Attention(width, heads, dropout=dropout)
        self.drop = nn.Dropout(dropout)
        self.path = DropPath(drop_path)
        self.ln2 = nn.LayerNorm(width, eps=epsilon)
        self.feed_forward = (feed_forward or DenseFeedForward)(width)

    def forward(self, x: flow.Tensor, bias: flow.Tensor | None = None) -> flow.Tensor:
        if self.pre_norm:
            x = x + self.path(self.drop(self.attention(self.ln1(x), bias=bias)))
            return x + self.path(self.drop(self.feed_forward(self.ln2(x))))
        x = self.ln1(x + self.path(self.drop(self.attention(x, bias=bias))))
        return self.ln2(x + self.path(self.drop(self.feed_forward(x))))
