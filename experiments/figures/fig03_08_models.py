"""The layers of AutoDDL's figures 3 and 8, traced by OneFlow.

A layer of width 1 in front makes their input, so that its gradient is wanted; no layer has a bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import oneflow as flow
from oneflow import nn

import autoddl
from autoddl.sbp.program import Program
from experiments.models.transformer import LossGraph, join_heads, split_heads


class _DenseLayers(nn.Module):
    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in pairwise((1, *widths)):
            layers += [nn.Linear(before, after, bias=False), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return self.layers(x).square().mean()


class _AttentionLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.make = nn.Linear(1, width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        q, k, v = flow.chunk(split_heads(self.qkv(self.make(x)), self.heads), 3, dim=-1)
        weights = flow.softmax(flow.matmul(q, k.transpose(-1, -2)), dim=-1)
        return self.proj(join_heads(flow.matmul(weights, v))).square().mean()


def dense(batch: int, widths: Sequence[int]) -> Program:
    """Return a training step of dense layers; `widths` are the features of the input and after each."""
    with autoddl.abstract_parameters():
        graph = LossGraph(_DenseLayers(widths), "plain_sgd")
        x = flow.zeros(batch, 1)
    return autoddl.capture(graph, x)


def attention(*, batch: int, length: int, width: int, heads: int) -> Program:
    """Return a training step of self-attention: one projection in front of the heads, one behind."""
    with autoddl.abstract_parameters():
        graph = LossGraph(_AttentionLayer(width, heads), "plain_sgd")
        x = flow.zeros(batch, length, 1)
    return autoddl.capture(graph, x)
