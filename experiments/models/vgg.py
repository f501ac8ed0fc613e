"""VGG: stacks of 3×3 convolutions with pooling, then three dense layers (no dropout)."""

from __future__ import annotations

from typing import Any

import oneflow as flow
from oneflow import nn

from experiments.models.training import Built, TrainGraph, cross_entropy, labelled_images

STACKS = {13: (2, 2, 2, 2, 2), 19: (2, 2, 4, 4, 4)}
CHANNELS = (64, 128, 256, 512, 512)
WHOLE: dict[str, Any] = {
    "image": 224, "classes": 1000, "channel_scale": 1, "dense": 4096, "batch": 64,
}  # fmt: skip
SIZES: dict[str, dict[str, Any]] = {
    "toy": {"image": 32, "classes": 16, "channel_scale": 1 / 16, "dense": 32, "batch": 8},
    "vgg13": {"depth": 13, **WHOLE},
    "vgg19": {"depth": 19, **WHOLE},
    "vgg19_million": {"depth": 19, **WHOLE, "classes": 1_000_000},
}


class VGG(nn.Module):
    """Images (batch, 3, image, image) → logits (batch, classes)."""

    def __init__(
        self, *, image: int, classes: int, channel_scale: float, dense: int, depth: int = 13
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for count, channels in zip(STACKS[depth], CHANNELS, strict=True):
            after = int(channels * channel_scale)
            for _ in range(count):
                layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
                before = after
            layers.append(nn.MaxPool2d(2, 2))
        self.features = nn.Sequential(*layers)
        flat = before * (image // 2 ** len(CHANNELS)) ** 2
        self.classifier = nn.Sequential(
            nn.Linear(flat, dense), nn.ReLU(), nn.Linear(dense, dense), nn.ReLU(),
            nn.Linear(dense, classes),
        )  # fmt: skip

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return self.classifier(flow.flatten(self.features(x), 1))


def build(*, optimizer: str = "sgd", **sizes: Any) -> Built:
    """Return (training graph, (images, labels)) of these sizes, the toy's where they are not given.

    Images are (batch, 3, image, image) float32, labels (batch,) int64; `channel_scale` and `dense`
    shrink the network for tests.
    """
    sizes = SIZES["toy"] | sizes
    inputs = labelled_images(sizes.pop("batch"), 3, sizes["image"], sizes["classes"])
    return TrainGraph(VGG(**sizes), cross_entropy, optimizer), inputs
