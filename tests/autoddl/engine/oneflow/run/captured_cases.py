"""What `rank_scripts/captured.py` trains, and its losses by NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

STEPS, ROWS, WIDTH, VOCABULARY, PARTS = 3, 8, 16, 32, 4
RATE, BETA, SECOND, EPSILON = 0.5, 0.9, 0.99, 1e-3


def _sgd(parameters: Any) -> Any:
    import oneflow as flow

    return flow.optim.SGD(parameters, lr=RATE)


def _momentum(parameters: Any) -> Any:
    import oneflow as flow

    return flow.optim.SGD(parameters, lr=RATE, momentum=BETA)


def _adam(parameters: Any) -> Any:
    import oneflow as flow

    return flow.optim.Adam(parameters, lr=RATE, betas=(BETA, SECOND), eps=EPSILON)


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {"sgd": _sgd, "momentum": _momentum, "adam": _adam}
# Optimizers with the state that the table is pinned to: the rows are cut, the columns, neither.
SPARSE = (("sgd", "S0"), ("momentum", "S1"), ("adam", "B"), ("adam", "S0"))


def ids(step: int) -> Any:
    """Return the rows that a batch looks up, some of them several times."""
    return np.random.default_rng(step).integers(0, VOCABULARY // 2, (ROWS, 2))


def table() -> Any:
    return np.random.default_rng(9).normal(size=(VOCABULARY, WIDTH)).astype(np.float32)


def sparse_training(kind: str) -> tuple[list[float], Any]:
    """Return the losses, means of the squares of what is looked up, and the table afterwards.

    OneFlow's sparse Adam corrects no bias.
    """
    weight = table().astype(np.float64)
    average, squares, losses = np.zeros_like(weight), np.zeros_like(weight), []
    for step in range(STEPS):
        rows, times = np.unique(ids(step), return_counts=True)
        losses.append(float((weight[ids(step)] ** 2).mean()))
        gradient = 2 * weight[rows] * times[:, None] / (ids(step).size * WIDTH)
        if kind == "sgd":
            direction = gradient
        elif kind == "momentum":
            average[rows] = direction = BETA * average[rows] + gradient
        else:
            average[rows] = BETA * average[rows] + (1 - BETA) * gradient
            squares[rows] = SECOND * squares[rows] + (1 - SECOND) * gradient**2
            direction = average[rows] / (np.sqrt(squares[rows]) + EPSILON)
        weight[rows] -= RATE * direction
    return losses, weight


def linear() -> tuple[Any, ...]:
    """Return weight and bias of the layer that is trained on records."""
    rng = np.random.default_rng(3)
    return tuple(rng.normal(0, 0.1, shape).astype(np.float32) for shape in ((1, WIDTH), (1,)))


def records() -> dict[str, Any]:
    """Return records for an epoch, which are all different."""
    rng = np.random.default_rng(5)
    count = ROWS * PARTS
    return {
        "x": rng.normal(size=(count, WIDTH)).astype(np.float32),
        "y": np.arange(count, dtype=np.float32)[:, None] / count,
    }
