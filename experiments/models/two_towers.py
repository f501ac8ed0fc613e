"""Two towers of equal layers, of a query and an item, whose product is scored.

The towers are written layer by layer in turns, so that a cut of the forward pass parts both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import oneflow as flow
from oneflow import nn

from experiments.models.training import Built, TrainGraph, mean_squared_error

SIZES: dict[str, dict[str, Any]] = {
    "toy": {"layers": 3, "width": 16, "batch": 8},
    "wide": {"layers": 12, "width": 4096, "batch": 4096},
}


class TwoTowers(nn.Module):
    """Queries and items (batch, width) → scores (batch, 1)."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.queries, self.items = (
            nn.ModuleList([nn.Linear(width, width) for _ in range(layers)]) for _ in range(2)
        )
        self.score = nn.Linear(width, 1)

    def forward(self, query: flow.Tensor, item: flow.Tensor) -> flow.Tensor:
        for one, other in zip(self.queries, self.items, strict=True):
            query = nn.functional.gelu(one(query))
            item = nn.functional.gelu(other(item))
        return self.score(query * item)


def build(*, optimizer: str = "sgd", **sizes: Any) -> Built:
    """Return (training graph, (query, item, score)) of these sizes, the toy's by default."""
    sizes = SIZES["toy"] | sizes
    batch, width = sizes.pop("batch"), sizes["width"]
    rng = np.random.default_rng(0)
    inputs = (rng.normal(size=(batch, n)).astype(np.float32) for n in (width, width, 1))
    graph = TrainGraph(TwoTowers(**sizes), mean_squared_error, optimizer)
    return graph, tuple(map(flow.tensor, inputs))
