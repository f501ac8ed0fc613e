"""Multi-layer perceptron with GELU and mean squared error."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import oneflow as flow
from oneflow import nn

from experiments.models.training import Built, TrainGraph, mean_squared_error

SIZES = {"toy": {"widths": (16, 32, 8), "batch": 8}}


def build(
    *, widths: tuple[int, ...] = (16, 32, 8), batch: int = 8, optimizer: str = "sgd"
) -> Built:
    """Return (training graph, (x, y)); x is (batch, widths[0]), y is (batch, widths[-1])."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.GELU()]
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(batch, n)).astype(np.float32) for n in (widths[0], widths[-1]))
    graph = TrainGraph(nn.Sequential(*layers[:-1]), mean_squared_error, optimizer)
    return graph, (flow.tensor(x), flow.tensor(y))
