"""Wide & Deep: click-through rates from dense features and looked-up rows of two tables.

Source: Cheng et al. 2016; Oneflow-Inc/models RecommenderSystems/wide_and_deep, with its numbers of
fields (13 dense, 2 wide and 26 deep ids), its width of hidden layers (1024), dropout (0.5), and Adam,
which updates only the rows of tables that the batch has looked up. The scripts of Oneflow-Inc/DLPerf
give both tables as many rows. Assumed are ids of 64 bits (there 32 on the host).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import oneflow as flow
from oneflow import nn

from experiments.models.training import Built

SIZES: dict[str, dict[str, Any]] = {
    "toy": {
        "vocabulary": 64, "width": 8, "layers": 2, "hidden": 32, "dense": 4, "wide": 2, "deep": 3,
        "dropout": 0.5, "batch": 8,
    },
    "criteo": {
        "vocabulary": 2322444, "width": 16, "layers": 7, "hidden": 1024, "dense": 13, "wide": 2,
        "deep": 26, "dropout": 0.5, "batch": 16384,
    },
}  # fmt: skip


class WideAndDeep(nn.Module):
    """Dense features (batch, dense), ids (batch, wide) and (batch, deep) → rates (batch, 1).

    The wide table has a weight for each id, the deep one a vector.
    """

    def __init__(
        self, *, vocabulary: int, width: int, layers: int, hidden: int, dense: int, wide: int,
        deep: int, dropout: float,
    ) -> None:  # fmt: skip
        super().__init__()
        self.wide_table = nn.Embedding(vocabulary, 1)
        self.deep_table = nn.Embedding(vocabulary, width)
        widths = (deep * width + dense, *[hidden] * layers)
        self.layers = nn.Sequential(
            *(
                nn.Sequential(nn.Linear(before, after), nn.ReLU(), nn.Dropout(dropout))
                for before, after in pairwise(widths)
            )
        )
        self.score = nn.Linear(hidden, 1)

    def forward(self, dense: flow.Tensor, wide: flow.Tensor, deep: flow.Tensor) -> flow.Tensor:
        linear = flow.sum(self.wide_table(wide).flatten(1), dim=1, keepdim=True)
        features = flow.cat([self.deep_table(deep).flatten(1), dense], dim=1)
        return flow.sigmoid(linear + self.score(self.layers(features)))


class ClickGraph(nn.Graph):
    """One training step; tables are updated by rows."""

    def __init__(self, model: WideAndDeep) -> None:
        super().__init__()
        self.model = model
        self.loss = nn.BCELoss(reduction="none")
        tables = [model.wide_table.weight, model.deep_table.weight]
        others = [*model.layers.parameters(), *model.score.parameters()]
        self.add_optimizer(flow.optim.Adam(others, lr=1e-3))
        self.add_optimizer(flow.optim.Adam(tables, lr=1e-3), is_sparse=True)

    def build(self, *inputs: flow.Tensor) -> flow.Tensor:
        loss = self.loss(self.model(*inputs[:-1]), inputs[-1]).mean()
        loss.backward()
        return loss


def build(**sizes: Any) -> Built:
    """Return (training graph, (dense features, wide ids, deep ids, clicks)), by default the toy's.

    Features are (batch, dense) float32, ids (batch, wide) and (batch, deep) int64, clicks (batch, 1)
    0.0 or 1.0.
    """
    sizes = SIZES["toy"] | sizes
    batch, rng = sizes.pop("batch"), np.random.default_rng(0)
    ids = [rng.integers(0, sizes["vocabulary"], (batch, sizes[name])) for name in ("wide", "deep")]
    features = rng.normal(size=(batch, sizes["dense"])).astype(np.float32)
    clicks = rng.integers(0, 2, (batch, 1)).astype(np.float32)
    return ClickGraph(WideAndDeep(**sizes)), tuple(map(flow.tensor, (features, *ids, clicks)))
