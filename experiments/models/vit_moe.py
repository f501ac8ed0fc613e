"""ViT-MoE: ViT with expert layers in place of feed-forward layers (Riquelme et al. 2021)."""

from __future__ import annotations

from typing import Any

from experiments.models import vit
from experiments.models.moe import balanced, expert_blocks
from experiments.models.training import Built, cross_entropy

SIZES: dict[str, dict[str, Any]] = {
    "toy": {**vit.SIZES["toy"], "experts": 4, "every": 1, "factor": 1.6},
    "base": {**vit.SIZES["vit_base"], "experts": 32, "every": 2, "balance": 0.01},
    "large": {**vit.SIZES["vit_large"], "experts": 32, "every": 2, "balance": 0.01},
}


def build(
    *, balance: float = 0.0, image: int = 12, patch: int = 4, kind: str = "sgmoe",
    experts: int = 4, every: int = 1, factor: float = 1.0, **sizes: Any,
) -> Built:  # fmt: skip
    """Return (training graph, (images, labels)); `sizes` are those of vit.build.

    Every `every`-th block has `experts` experts, `kind` as in moe.KINDS; the tokens of an image (its
    patches and the class token) are a group.
    """
    loss, collected = balanced(cross_entropy, balance)
    group = (image // patch) ** 2 + 1
    layers = expert_blocks(
        kind, every, experts=experts, group=group, factor=factor, balance=collected
    )
    graph, inputs = vit.build(image=image, patch=patch, feed_forward=layers, **sizes)
    graph.loss = loss
    return graph, inputs
