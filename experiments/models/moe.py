"""Expert feed-forward layers in the manner of GShard, and the smallest model of them.

Tokens come in groups; in every group an expert takes at most `capacity` tokens, in the order of the
sequence, and tokens beyond that leave the layer as zeros. Dispatch and combination are matrix
products with one-hot slots, so that group, expert, width and hidden width may all be cut.

Source: GShard (Lepikhin et al. 2021) algorithm 1; Switch Transformers (Fedus et al. 2022) §2.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import oneflow as flow
from oneflow import nn

from experiments.models.training import Built, TrainGraph, mean_squared_error
from experiments.models.transformer import DenseFeedForward, FeedForward

# The toy's seed gives tokens whose choice of experts is clear, so that no rounding changes it.
SIZES: dict[str, dict[str, Any]] = {
    "toy": {"width": 16, "experts": 4, "hidden": 32, "sequence": 8, "batch": 8, "seed": 14},
    "base": {"width": 768, "experts": 32, "hidden": 3072, "sequence": 512, "batch": 64},
}

Loss = Callable[[flow.Tensor, flow.Tensor], flow.Tensor]


def places(chosen: flow.Tensor) -> flow.Tensor:
    """Count along the tokens of (groups, tokens, experts).

    OneFlow cuts only dims behind the one that it accumulates, so the tokens go first.
    """
    return flow.cumsum(chosen.transpose(0, 1), dim=0).transpose(0, 1)


class SwitchFeedForward(nn.Module):
    """x (batch, sequence, width) → p_e(x) * relu(x @ up_e) @ down_e for the likeliest expert e.

    Groups have `group` tokens; an expert takes ceil(choices * factor * group / experts) of each.
    `balance`, where given, collects the load-balancing loss of every forward pass: the number of
    experts times the sum over them of (share of tokens that choose it) * (its mean probability),
    averaged over groups; it is 1 if all is even.
    """

    choices = 1

    def __init__(
        self,
        width: int,
        *,
        experts: int,
        group: int,
        hidden: int | None = None,
        factor: float = 1.0,
        balance: list[flow.Tensor] | None = None,
    ) -> None:
        super().__init__()
        hidden = 4 * width if hidden is None else hidden
        self.experts, self.group, self.balance = experts, group, balance
        self.capacity = math.ceil(self.choices * factor * group / experts)
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(flow.randn(experts, width, hidden) * width**-0.5)
        self.down = nn.Parameter(flow.randn(experts, hidden, width) * hidden**-0.5)
        self.register_buffer("slots", flow.tensor(np.arange(1.0, self.capacity + 1, dtype="f4")))

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        width = x.shape[-1]
        tokens = x.reshape(-1, self.group, width)
        groups, slots = tokens.shape[0], self.experts * self.capacity
        gates, position = self.route(flow.softmax(self.gate(tokens), dim=-1))
        # one-hot over the slots; positions 0 (not chosen) and beyond the capacity match none
        dispatch = (position.unsqueeze(-1) == self.slots).to(flow.float32)
        combine = dispatch * gates.unsqueeze(-1)
        sent = flow.bmm(dispatch.reshape(groups, self.group, slots).transpose(1, 2), tokens)
        y = self.run_experts(sent.reshape(groups, self.experts, self.capacity, width))
        y = flow.bmm(combine.reshape(groups, self.group, slots), y.reshape(groups, slots, width))
        return y.reshape(*x.shape)

    def run_experts(self, x: flow.Tensor) -> flow.Tensor:
        """Apply every expert to its slots: (groups, experts, capacity, width), in and out."""
        groups, experts, capacity, width = x.shape
        rows = x.transpose(0, 1).reshape(experts, groups * capacity, width)
        rows = flow.bmm(flow.relu(flow.bmm(rows, self.up)), self.down)
        return rows.reshape(experts, groups, capacity, width).transpose(0, 1)

    def route(self, probability: flow.Tensor) -> tuple[flow.Tensor, flow.Tensor]:
        """Return gates and positions, both (groups, tokens, experts), from such probabilities.

        The position is the token's place in the expert's queue, counted from 1; 0: not chosen.
        """
        chosen = self.likeliest(probability)
        self.note_balance(probability, chosen)
        return probability, places(chosen) * chosen

    def likeliest(self, probability: flow.Tensor) -> flow.Tensor:
        """Return 1.0 at the largest entry along the last dim, else 0.0."""
        best = flow.argmax(probability, dim=-1)
        return nn.functional.one_hot(best, self.experts, on_value=1.0, off_value=0.0)

    def note_balance(self, probability: flow.Tensor, chosen: flow.Tensor) -> None:
        """Collect the load-balancing loss."""
        if self.balance is not None:
            product = chosen.mean(dim=1) * probability.mean(dim=1)
            self.balance.append(product.mean() * self.experts**2)


class SGMoEFeedForward(SwitchFeedForward):
    """Sparsely gated experts: the two likeliest, weighted by their probabilities over their sum.

    First choices are queued before second ones.
    """

    choices = 2

    def route(self, probability: flow.Tensor) -> tuple[flow.Tensor, flow.Tensor]:
        first = self.likeliest(probability)
        second = self.likeliest(probability - first)
        self.note_balance(probability, first)
        kept = probability * (first + second)
        behind = places(second) + first.sum(dim=1, keepdim=True)
        position = places(first) * first + behind * second
        return kept / kept.sum(dim=-1, keepdim=True), position


KINDS: dict[str, type[SwitchFeedForward]] = {"sgmoe": SGMoEFeedForward, "switch": SwitchFeedForward}


def expert_blocks(kind: str, every: int, **options: Any) -> FeedForward:
    """Return what makes the feed-forward layers of successive blocks: every `every`-th has experts.

    `kind` is one of KINDS, which take the options.
    """
    numbers = count(1)

    def layer(width: int) -> nn.Module:
        return DenseFeedForward(width) if next(numbers) % every else KINDS[kind](width, **options)

    return layer


def add_balance(value: flow.Tensor, collected: list[flow.Tensor], weight: float) -> flow.Tensor:
    """Return value + weight * mean of the collected losses, and forget them."""
    share = weight / len(collected)
    for term in collected:
        value = value + share * term
    collected.clear()
    return value


def balanced(loss: Loss, weight: float) -> tuple[Loss, list[flow.Tensor] | None]:
    """Return `loss` with `weight` times the balance of the expert layers, and their collection.

    With weight 0 it is `loss` itself, and nothing is collected.
    """
    if weight == 0:
        return loss, None
    collected: list[flow.Tensor] = []

    def total(prediction: flow.Tensor, target: flow.Tensor) -> flow.Tensor:
        return add_balance(loss(prediction, target), collected, weight)

    return total, collected


def build(
    *, kind: str = "switch", width: int = 16, sequence: int = 8, batch: int = 8,
    balance: float = 0.0, seed: int = 0, optimizer: str = "sgd", **options: Any,
) -> Built:  # fmt: skip
    """Return (training graph of one expert layer, (x, y)), both (batch, sequence, width).

    `kind` is one of KINDS, which take the options, by default 4 experts of hidden width 32;
    `balance` is the weight of the load-balancing loss, `seed` draws x and y.
    """
    loss, collected = balanced(mean_squared_error, balance)
    options = {"experts": 4, "hidden": 32, **options}
    layer = KINDS[kind](width, group=sequence, balance=collected, **options)
    rng = np.random.default_rng(seed)
    x, y = (rng.normal(size=(batch, sequence, width)).astype(np.float32) for _ in range(2))
    return TrainGraph(layer, loss, optimizer), (flow.tensor(x), flow.tensor(y))
