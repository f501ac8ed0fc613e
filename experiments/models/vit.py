"""ViT: a pre-norm encoder on image patches with a class token (Dosovitskiy et al. 2021)."""

from __future__ import annotations

from typing import Any

import oneflow as flow
from oneflow import nn

from experiments.models.training import Built, TrainGraph, cross_entropy, labelled_images
from experiments.models.transformer import EncoderBlock, FeedForward


def _paper(layers: int, width: int, heads: int, patch: int) -> dict[str, Any]:
    return {
        "layers": layers, "width": width, "heads": heads, "image": 224, "patch": patch,
        "classes": 1000, "batch": 64,
    }  # fmt: skip


SIZES: dict[str, dict[str, Any]] = {
    "toy": {
        "layers": 1, "width": 16, "heads": 4, "image": 12, "patch": 4, "classes": 16, "batch": 8,
    },
    "vit_base": _paper(12, 768, 12, 16),
    "vit_large": _paper(24, 1024, 16, 16),
    "vit_huge": _paper(32, 1280, 16, 14),
}  # fmt: skip

CHANNELS = 3


class ViT(nn.Module):
    """Images (batch, 3, image, image) → logits (batch, classes).

    The last block is left out for a sample with probability `drop_path`, those before it less often.
    """

    def __init__(
        self,
        *,
        layers: int,
        width: int,
        heads: int,
        image: int,
        patch: int,
        classes: int,
        feed_forward: FeedForward | None = None,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        tokens = (image // patch) ** 2 + 1
        self.patches = nn.Conv2d(CHANNELS, width, patch, stride=patch)
        self.token = nn.Parameter(flow.zeros(1, 1, width))
        self.position = nn.Parameter(flow.zeros(tokens, width))
        options: dict[str, Any] = {"epsilon": 1e-6, "feed_forward": feed_forward}
        self.blocks = nn.ModuleList(
            [
                EncoderBlock(width, heads, pre_norm=True, drop_path=rate, **options)
                for rate in (drop_path * layer / layers for layer in range(1, layers + 1))
            ]
        )
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, images: flow.Tensor) -> flow.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        token = self.token.expand(x.shape[0], -1, -1)
        x = flow.cat([token, x], dim=1) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def build(*, optimizer: str = "sgd", **sizes: Any) -> Built:
    """Return (training graph, (images, labels)) of these sizes, the toy's where they are not given.

    Images are (batch, 3, image, image) float32, labels (batch,) int64; `patch` divides `image`.
    """
    sizes = SIZES["toy"] | sizes
    inputs = labelled_images(sizes.pop("batch"), CHANNELS, sizes["image"], sizes["classes"])
    return TrainGraph(ViT(**sizes), cross_entropy, optimizer), inputs
