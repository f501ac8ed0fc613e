"""Small training graphs that hold the ops of transformers, convolutional networks and experts.

`probes.device_probe` runs them, all broadcast, and times their ops; calibrate.device says in which sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import oneflow as flow
from oneflow import nn

from autoddl.calibrate.device.op_timing import OpSource

Inputs = tuple[flow.Tensor, ...]


class _Step(nn.Graph):
    """One training step of a model that returns its loss."""

    def __init__(self, model: nn.Module, optimizer: str) -> None:
        super().__init__()
        self.model = model
        parameters = [p for p in model.parameters() if p.requires_grad]
        self.add_optimizer(
            flow.optim.Adam(parameters, lr=1e-4)
            if optimizer == "adam"
            else flow.optim.SGD(parameters, lr=1e-3, momentum=0.9)
        )

    def build(self, *inputs: flow.Tensor) -> flow.Tensor:
        loss = self.model(*inputs)
        loss.backward()
        return loss


class _SmallAttention(nn.Module):
    """Softmax attention; q, k and v are slices of one projection, or projections of their own.

    With these each head learns a bias for every two places, as in T5.
    """

    def __init__(self, width: int, heads: int, length: int, *, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        if fused:
            self.qkv = nn.Linear(width, 3 * width)
        else:
            self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
            self.near = nn.Parameter(flow.zeros(1, heads, length, length))
        self.proj = nn.Linear(width, width)

    def forward(self, x: flow.Tensor, bias: flow.Tensor | None) -> flow.Tensor:
        batch, length, width = x.shape
        size = width // self.heads

        def split(t: flow.Tensor, size: int) -> flow.Tensor:
            return t.reshape(batch, length, self.heads, size).permute(0, 2, 1, 3)

        if self.fused:
            qkv = split(self.qkv(x), 3 * size)
            q, k, v = (qkv[..., i * size : (i + 1) * size] for i in range(3))
        else:
            q, k, v = (split(layer(x), size) for layer in (self.q, self.k, self.v))
        scores = flow.matmul(q, k.transpose(-1, -2)) * (1 / math.sqrt(size))
        if bias is not None:
            scores = scores + bias
        if not self.fused:
            scores = scores + self.near
        mixed = flow.matmul(flow.softmax(scores, dim=-1), v)
        return self.proj(mixed.permute(0, 2, 1, 3).reshape(batch, length, width))


class _Block(nn.Module):
    def __init__(
        self, width: int, heads: int, length: int, feed_forward: nn.Module, *, fused: bool
    ) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = _SmallAttention(width, heads, length, fused=fused)
        self.feed_forward = feed_forward

    def forward(self, x: flow.Tensor, bias: flow.Tensor | None) -> flow.Tensor:
        x = x + self.attention(self.ln1(x), bias)
        return x + self.feed_forward(self.ln2(x))


class _SmallDense(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return self.down(flow.gelu(self.up(x)))


class _Gated(nn.Module):
    """SwiGLU after an RMSNorm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(flow.ones(width))
        self.up, self.gate, self.down = (
            nn.Linear(width, 2 * width, bias=False),
            nn.Linear(width, 2 * width, bias=False),
            nn.Linear(2 * width, width, bias=False),
        )

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        x = x * flow.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.scale
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class _Experts(nn.Module):
    """One expert of `count` for each token, with a capacity (as GShard and Switch do it)."""

    def __init__(self, width: int, count: int, group: int) -> None:
        super().__init__()
        self.count, self.group, self.capacity = count, group, group // count
        self.gate = nn.Linear(width, count, bias=False)
        self.up = nn.Parameter(flow.randn(count, width, 2 * width) * width**-0.5)
        self.down = nn.Parameter(flow.randn(count, 2 * width, width) * width**-0.5)
        slots = np.arange(1.0, self.capacity + 1, dtype="f4")
        self.register_buffer("slots", flow.tensor(slots))

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        width = x.shape[-1]
        tokens = x.reshape(-1, self.group, width)
        groups, slots = tokens.shape[0], self.count * self.capacity
        probability = flow.softmax(self.gate(tokens), dim=-1)
        best = flow.argmax(probability, dim=-1)
        chosen = nn.functional.one_hot(best, self.count, on_value=1.0, off_value=0.0)
        place = flow.cumsum(chosen.transpose(0, 1), dim=0).transpose(0, 1) * chosen
        dispatch = (place.unsqueeze(-1) == self.slots).to(flow.float32)
        gates = probability * chosen
        gates = gates / gates.sum(dim=-1, keepdim=True)
        combine = dispatch * (gates * probability).unsqueeze(-1)
        sent = flow.bmm(dispatch.reshape(groups, self.group, slots).transpose(1, 2), tokens)
        rows = sent.reshape(groups, self.count, self.capacity, width).transpose(0, 1)
        rows = rows.reshape(self.count, groups * self.capacity, width)
        rows = flow.bmm(flow.relu(flow.bmm(rows, self.up)), self.down)
        y = rows.reshape(self.count, groups, self.capacity, width).transpose(0, 1)
        y = flow.bmm(combine.reshape(groups, self.group, slots), y.reshape(groups, slots, width))
        return y.reshape(*x.shape)


class _Transformer(nn.Module):
    def __init__(self, width: int, heads: int, length: int, vocabulary: int, kind: str) -> None:
        super().__init__()
        make: dict[str, list[Callable[[], nn.Module]]] = {
            "dense": [lambda: _SmallDense(width)],
            "mixed": [lambda: _Gated(width), lambda: _Experts(width, 4, length)],
        }
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(flow.zeros(length, width))
        self.blocks = nn.ModuleList(
            [_Block(width, heads, length, layer(), fused=kind == "dense") for layer in make[kind]]
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: flow.Tensor, target: flow.Tensor, keep: flow.Tensor) -> flow.Tensor:
        x = self.token(ids) + self.position
        absent = (ids == 0).to(flow.float32).reshape(ids.shape[0], 1, 1, ids.shape[1])
        bias = (1 - keep) * -1e4 + absent * -1e4
        for block in self.blocks:
            x = block(x, bias)
        logits = self.head(self.norm(x))
        logits = logits.reshape(-1, logits.shape[-1])
        return nn.functional.cross_entropy(logits, target.reshape(-1))


class _Convolutions(nn.Module):
    """Convolutions with BatchNorm and with bias, pooling, dense layers."""

    def __init__(self, channels: int, image: int, classes: int) -> None:
        super().__init__()
        c = channels
        self.stem = nn.Conv2d(3, c, 3, padding=1)
        self.conv1 = nn.Conv2d(c, c, 3, padding=1)
        self.conv2 = nn.Conv2d(c, 2 * c, 3, padding=1, stride=2, bias=False)
        self.bn2 = nn.BatchNorm2d(2 * c)
        self.conv3 = nn.Conv2d(2 * c, 2 * c, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(2 * c)
        self.conv4 = nn.Conv2d(2 * c, 4 * c, 3, padding=1)
        self.dense = nn.Linear(4 * c * (image // 8) ** 2, 8 * c)
        self.head = nn.Linear(8 * c + 4 * c, classes)

    def forward(self, x: flow.Tensor, target: flow.Tensor) -> flow.Tensor:
        x = flow.relu(self.conv1(flow.relu(self.stem(x))))
        x = nn.functional.max_pool2d(x, 2, 2)
        x = flow.relu(self.bn2(self.conv2(x)))
        x = flow.relu(self.bn3(self.conv3(x)) + x)
        x = flow.relu(self.conv4(x))
        x = nn.functional.max_pool2d(x, 2, 2)
        mean = nn.functional.adaptive_avg_pool2d(x, (1, 1)).flatten(1)
        y = flow.relu(self.dense(flow.flatten(x, 1)))
        return nn.functional.cross_entropy(self.head(flow.cat([y, mean], dim=1)), target)


class _Perceptron(nn.Module):
    """Dense layers with the activations that the others lack, and pointwise losses."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(4)])

    def forward(self, x: flow.Tensor, target: flow.Tensor) -> flow.Tensor:
        first, second, third, last = self.layers
        x = flow.tanh(first(x))
        x = flow.sigmoid(second(x)) - x
        x = last(flow.exp(third(x) * 0.1) / 2.0)
        square = (x - target).square().mean()
        return square + nn.functional.binary_cross_entropy_with_logits(x, flow.sigmoid(target))


def graph_of(source: OpSource) -> tuple[nn.Graph, Inputs]:
    """Return the graph of a source with its inputs (the whole batch), to be made on every rank."""
    model, inputs = _MAKERS[source.kind](*source.sizes)
    return _Step(model, source.optimizer), inputs


def _text(
    kind: str, batch: int, length: int, width: int, heads: int, vocabulary: int
) -> tuple[nn.Module, Inputs]:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, vocabulary, (2, batch, length))
    keep = np.tril(np.ones((1, 1, length, length), dtype="f4"))
    inputs = (flow.tensor(ids[0].copy()), flow.tensor(ids[1].copy()), flow.tensor(keep))
    return _Transformer(width, heads, length, vocabulary, kind), inputs


def _images(batch: int, channels: int, image: int) -> tuple[nn.Module, Inputs]:
    rng = np.random.default_rng(0)
    pixels = rng.standard_normal((batch, 3, image, image)).astype("f4")
    target = rng.integers(0, 10, batch)
    return _Convolutions(channels, image, 10), (flow.tensor(pixels), flow.tensor(target))


def _rows(batch: int, width: int) -> tuple[nn.Module, Inputs]:
    x, y = np.random.default_rng(0).standard_normal((2, batch, width)).astype("f4")
    return _Perceptron(width), (flow.tensor(x.copy()), flow.tensor(y.copy()))


_MAKERS: Mapping[str, Callable[..., tuple[nn.Module, Inputs]]] = {
    "dense": partial(_text, "dense"),
    "mixed": partial(_text, "mixed"),
    "images": _images,
    "rows": _rows,
}
