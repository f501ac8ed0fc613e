"""BERT-MoE: BERT pre-training with expert layers in place of feed-forward layers."""

from __future__ import annotations

from typing import Any

import oneflow as flow
from oneflow import nn

from experiments.models import bert
from experiments.models.moe import add_balance, expert_blocks
from experiments.models.training import Built
from experiments.models.transformer import LossGraph


def _rhino(layers: int, width: int, experts: int) -> dict[str, Any]:
    """Return a model of Rhino's: experts eight times as wide as the model in every second layer.

    Sequence and vocabulary are Alpa's, of whom it has the models.
    """
    return {
        "layers": layers, "width": width, "heads": 16, "sequence": 1024, "vocabulary": 32000,
        "batch": 8, "experts": experts, "hidden": 8 * width, "every": 2, "balance": 0.01,
    }  # fmt: skip


# With this vocabulary no token's choice of experts is so close that rounding could change it.
SIZES: dict[str, dict[str, Any]] = {
    "toy": {**bert.SIZES["toy"], "vocabulary": 96, "experts": 4, "every": 1, "factor": 2.0},
    "base": {**bert.SIZES["bert_base"], "experts": 32, "every": 2, "balance": 0.01},
    "large": {**bert.SIZES["bert_large"], "experts": 64, "every": 2, "balance": 0.01},
    "moe_8e_380m": _rhino(8, 768, 8),
    "moe_8e_760m": _rhino(16, 768, 8),
    "moe_16e_1_3b": _rhino(16, 768, 16),
    "moe_16e_2_4b": _rhino(16, 1024, 16),
    "moe_32e_10b": _rhino(16, 1536, 32),
}


class Balanced(nn.Module):
    """A model that returns its loss, with `weight` times the balance of its expert layers added."""

    def __init__(self, model: nn.Module, collected: list[flow.Tensor], weight: float) -> None:
        super().__init__()
        self.model = model
        self.collected = collected
        self.weight = weight

    def forward(self, *inputs: flow.Tensor) -> flow.Tensor:
        return add_balance(self.model(*inputs), self.collected, self.weight)


def build(
    *, balance: float = 0.0, sequence: int = 8, optimizer: str = "sgd", kind: str = "sgmoe",
    experts: int = 4, every: int = 1, factor: float = 1.0, hidden: int | None = None, **sizes: Any,
) -> Built:  # fmt: skip
    """Return (training graph, (ids, segments, labels)); `sizes` are those of bert.build.

    Every `every`-th block has `experts` experts `hidden` wide, `kind` as in moe.KINDS; a sequence is a
    group.
    """
    collected: list[flow.Tensor] | None = [] if balance else None
    layers = expert_blocks(
        kind,
        every,
        experts=experts,
        group=sequence,
        factor=factor,
        hidden=hidden,
        balance=collected,
    )
    graph, inputs = bert.build(sequence=sequence, feed_forward=layers, optimizer=optimizer, **sizes)
    if collected is not None:
        graph = LossGraph(Balanced(graph.model.to(nn.Module), collected, balance), optimizer)
    return graph, inputs
