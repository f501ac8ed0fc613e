"""Models in functional style: sums outside of modules, layers used again, scalars, einsum, constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SHAPE = (8, 6, 8)


def _sums(flow: Any, m: Any, x: Any) -> Any:
    y = flow.nn.functional.linear(m.first(x) + 1.0, m.table, m.shift) + m.shift
    return m.last(y + m.shift * 2 + x) + m.shift


def _reused(flow: Any, m: Any, x: Any) -> Any:
    y = flow.nn.functional.gelu(m.first(x))
    y = m.first(y) + x
    return m.last(m.first(y) + y) - y


def _scalars(flow: Any, m: Any, x: Any) -> Any:
    y = (m.first(x) - 1) / 3 * 2.5
    return m.last(2 - y) * 0.5 + 1 / (y * y + 1)


def _einsum(flow: Any, m: Any, x: Any) -> Any:
    y = flow.einsum("bld,ed->ble", m.first(x), m.table)
    scores = flow.einsum("bld,bmd->blm", y, x).softmax(dim=-1)
    return m.last(flow.einsum("blm,bmd->bld", scores, y))


def _constants(flow: Any, m: Any, x: Any) -> Any:
    y = m.first(x) + flow.arange(8, dtype=flow.float32) * 0.1
    return m.last(y) * (1 + flow.ones(6, 8)) + flow.arange(6, dtype=flow.float32).reshape(6, 1)


MODELS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "sums": _sums, "reused": _reused, "scalars": _scalars, "einsum": _einsum, "constants": _constants,
}  # fmt: skip


def halves(module: str) -> int | None:
    """Return the stages of these models: the last layer and what comes after it are the second."""
    return {"model.first": 0, "model.last": 1}.get(module)


def build(name: str, **sizes: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return graph and inputs of a functional model, or of one of the zoo with these sizes."""
    if name not in MODELS:
        from experiments import models

        return models.build(name, **sizes)
    import numpy as np
    import oneflow as flow

    from experiments.models.transformer import LossGraph

    class Model(flow.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = flow.nn.Linear(8, 8), flow.nn.Linear(8, 8)
            self.shift = flow.nn.Parameter(flow.ones(8))
            self.table = flow.nn.Parameter(flow.ones(8, 8))

        def forward(self, x: Any) -> Any:
            y = MODELS[name](flow, self, x)
            return (y + 0.0 * (self.shift.sum() + self.table.sum())).square().mean()

    x = np.random.default_rng(5).normal(size=SHAPE).astype(np.float32)
    return LossGraph(Model(), "sgd"), (flow.tensor(x),)
