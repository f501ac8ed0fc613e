"""DLRM: click-through rates from dense features and bags of categories, with pairwise interactions.

Source: Naumov et al. 2019; sizes of the open benchmark.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import oneflow as flow
from oneflow import nn

from experiments.models.training import Built, TrainGraph

_KAGGLE = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992,
    5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
SIZES: dict[str, dict[str, Any]] = {
    "toy": {
        "tables": (16, 32, 48, 8, 64, 16, 32), "look_ups": 2, "dense": 8, "bottom": (32,),
        "width": 16, "top": (32,), "batch": 8,
    },
    "kaggle": {
        "tables": _KAGGLE, "look_ups": 1, "dense": 13, "bottom": (512, 256, 64), "width": 16,
        "top": (512, 256), "batch": 2048,
    },
}  # fmt: skip


class DLRM(nn.Module):
    """Dense features (batch, dense), ids (batch, tables * look_ups) → logits (batch, 1).

    Ids of one table are consecutive; their rows are summed. The top MLP sees the bottom MLP's
    output and the dot products of every two of that output and the bags.
    """

    def __init__(
        self,
        tables: Sequence[int],
        *,
        look_ups: int,
        dense: int,
        bottom: Sequence[int],
        width: int,
        top: Sequence[int],
    ) -> None:
        super().__init__()
        self.look_ups = look_ups
        self.tables = nn.ModuleList([nn.Embedding(rows, width) for rows in tables])
        self.bottom = _mlp((dense, *bottom, width))
        self.bottom_act = nn.ReLU()
        vectors = len(tables) + 1
        pairs = [i * vectors + j for i in range(vectors) for j in range(i)]
        self.register_buffer("pairs", flow.tensor(np.array(pairs)))
        self.top = _mlp((width + len(pairs), *top, 1))

    def forward(self, dense: flow.Tensor, ids: flow.Tensor) -> flow.Tensor:
        x = self.bottom_act(self.bottom(dense))
        batch, width = x.shape
        vectors = [x]
        for i, table in enumerate(self.tables):
            bag = ids[:, i * self.look_ups : (i + 1) * self.look_ups]
            vectors.append(table(bag).sum(dim=1))
        rows = flow.cat(vectors, dim=1).reshape(batch, len(vectors), width)
        products = flow.bmm(rows, rows.transpose(1, 2)).reshape(batch, len(vectors) ** 2)
        lower = flow.index_select(products, 1, self.pairs)
        return self.top(flow.cat([x, lower], dim=1))


def _mlp(widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def click_loss(logits: flow.Tensor, clicks: flow.Tensor) -> flow.Tensor:
    """Mean binary cross-entropy; the mean is an op of its own, so that the batch may be cut."""
    return nn.functional.binary_cross_entropy_with_logits(logits, clicks, reduction="none").mean()


def build(*, optimizer: str = "sgd", **sizes: Any) -> Built:
    """Return (training graph, (dense features, ids, clicks)) of these sizes, by default the toy's.

    Features are (batch, dense) float32, ids (batch, tables * look_ups) int64, clicks (batch, 1) 0.0
    or 1.0; `tables` lists the rows of every embedding table.
    """
    sizes = SIZES["toy"] | sizes
    batch, bags, rng = sizes.pop("batch"), sizes["look_ups"], np.random.default_rng(0)
    x = rng.normal(size=(batch, sizes["dense"])).astype(np.float32)
    ids = [rng.integers(0, rows, (batch, bags)) for rows in sizes["tables"]]
    clicks = rng.integers(0, 2, (batch, 1)).astype(np.float32)
    graph = TrainGraph(DLRM(**sizes), click_loss, optimizer)
    return graph, tuple(map(flow.tensor, (x, np.concatenate(ids, axis=1), clicks)))
