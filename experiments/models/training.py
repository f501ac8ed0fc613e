"""What the models of the zoo share: training graphs, optimizers, losses, inputs, weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import oneflow as flow
from oneflow import nn

Built = tuple[nn.Graph, tuple[flow.Tensor, ...]]
"""A training graph and its inputs: what every model's `build` returns."""
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda ps: flow.optim.SGD(ps, lr=0.1, momentum=0.9),
    "plain_sgd": lambda ps: flow.optim.SGD(ps, lr=0.1),
    "adam": lambda ps: flow.optim.Adam(ps, lr=1e-3),
    "adamw": lambda ps: flow.optim.AdamW(ps, lr=1e-3, weight_decay=0.01),
    "clipped_adamw": lambda ps: flow.optim.AdamW([_clipped(ps)], lr=1e-3, weight_decay=0.01),
    "clipped_adam": lambda ps: flow.optim.Adam([_clipped(ps)], lr=1e-3),
    "clipped_sgd": lambda ps: flow.optim.SGD([_clipped(ps) | {"weight_decay": 0.1}], lr=0.1),
}


def _clipped(parameters: Any) -> dict[str, Any]:
    """Return a group of parameters whose gradients have a Euclidean norm of 1 at most."""
    return {
        "params": list(parameters), "clip_grad_max_norm": 1.0, "clip_grad_norm_type": 2.0,
    }  # fmt: skip


class TrainGraph(nn.Graph):
    """One training step: the model on all inputs but the last, loss against that, backward, optimizer."""

    def __init__(self, model: nn.Module, loss: Callable[[Any, Any], Any], optimizer: str) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.add_optimizer(OPTIMIZERS[optimizer](model.parameters()))

    def build(self, *inputs: flow.Tensor) -> flow.Tensor:
        loss = self.loss(self.model(*inputs[:-1]), inputs[-1])
        loss.backward()
        return loss


def cross_entropy(logits: flow.Tensor, target: flow.Tensor) -> flow.Tensor:
    """Mean cross-entropy over all leading dims; the classes are the last dim of `logits`."""
    return nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1))


def mean_squared_error(prediction: flow.Tensor, target: flow.Tensor) -> flow.Tensor:
    """Mean squared error over all elements."""
    return (prediction - target).square().mean()


def labelled_images(
    batch: int, channels: int, size: int, classes: int, *, pixelwise: bool = False
) -> tuple[flow.Tensor, flow.Tensor]:
    """Return random images (batch, channels, size, size) float32 and labels int64, for every rank.

    Labels have shape (batch,), or (batch, size, size) with `pixelwise`.
    """
    rng = np.random.default_rng(0)
    images = rng.normal(size=(batch, channels, size, size)).astype(np.float32)
    labels = rng.integers(0, classes, (batch, size, size) if pixelwise else batch)
    return flow.tensor(images), flow.tensor(labels)


def shifted(ids: np.ndarray) -> tuple[flow.Tensor, flow.Tensor]:
    """Return all tokens of each row but the last, and the tokens that follow them."""
    return flow.tensor(ids[:, :-1].copy()), flow.tensor(ids[:, 1:].copy())


def next_tokens(batch: int, sequence: int, vocabulary: int) -> tuple[flow.Tensor, flow.Tensor]:
    """Return random token ids and the next ones, both (batch, sequence) int64, for every rank."""
    return shifted(np.random.default_rng(0).integers(0, vocabulary, (batch, sequence + 1)))


def seed_weights(model: nn.Module, seed: int, scale: float = 0.05) -> None:
    """Fill parameters from NumPy, the same on every rank: normal(0, scale), norms' weights around 1."""
    rng = np.random.default_rng(seed)
    for name, parameter in model.named_parameters():
        values = rng.normal(0.0, scale, tuple(parameter.shape)).astype(np.float32)
        if parameter.ndim == 1 and name.endswith("weight"):
            values += 1.0
        parameter.data.copy_(flow.tensor(values))
