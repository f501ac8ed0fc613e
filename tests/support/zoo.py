"""One Program for each thing that baselines tell apart: dense layers, attention, experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autoddl.sbp.program import Program
from tests.support.programs import (
    Builder,
    activation,
    add,
    batch_matmul,
    linear,
    mlp,
    mse,
    reshape,
    residual,
    transformer,
    transpose,
)


def separate_attention(batch: int = 4, length: int = 8, width: int = 16) -> Program:
    """Return attention with a layer each for queries, keys and values, then a gate of two outputs."""
    g = Builder()
    x, target = g.input((batch, length, width)), g.input((batch, length, 2))
    with g.module("model"):
        with g.module("embed"):
            x = add(g, x, g.parameter("bias", (width,)))
        parts = []
        for name in ("query", "key", "value"):
            with g.module(name):
                parts.append(linear(g, x, width, bias=False))
        query, key, value = parts
        scores = batch_matmul(g, query, transpose(g, key, (0, 2, 1)))
        mixed = batch_matmul(g, scores, value)
        with g.module("output"):
            x = residual(g, x, linear(g, mixed, width, bias=False))
        with g.module("gate"):
            x = linear(g, x, 2, bias=False)
    return g.program(mse(g, x, target), "sgd")


def experts(groups: int, count: int, slots: int, width: int, hidden: int) -> Program:
    """Return two products with experts on slots of tokens, with linear layers around them."""
    g = Builder()
    shape = (groups, count, slots, width)
    x, target = g.input(shape), g.input(shape)
    with g.module("model"):
        with g.module("embed"):
            x = linear(g, x, width, bias=False)
        with g.module("experts"):
            rows = transpose(g, x, (1, 0, 2, 3))
            y = reshape(g, rows, (count, groups * slots, width))
            y = batch_matmul(g, y, g.parameter("up", (count, width, hidden)))
            y = activation(g, y, "relu")
            y = batch_matmul(g, y, g.parameter("down", (count, hidden, width)))
            y = reshape(g, y, (count, groups, slots, width))
            y = transpose(g, y, (1, 0, 2, 3))
        with g.module("head"):
            y = linear(g, y, width, bias=False)
    return g.program(mse(g, y, target), "sgd")


ZOO: Mapping[str, Callable[[], Program]] = {
    "mlp": lambda: mlp(64, (64, 256, 32)),
    "deep mlp": lambda: mlp(16, (32,) * 6, optimizer="sgd", act="relu"),
    "gpt": lambda: transformer(layers=2),
    "separate attention": lambda: separate_attention(batch=8),
    "experts": lambda: experts(8, 4, 2, 16, 64),
}
