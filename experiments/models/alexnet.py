"""AlexNet in one column: five convolutions, three of them pooled, then three dense layers.

The dropout of the original is left out, so that a distributed step can equal one device's.
"""

from __future__ import annotations

from typing import Any

import oneflow as flow
from oneflow import nn

from experiments.models.training import Built, TrainGraph, cross_entropy, labelled_images

# Channels, kernel, stride and padding of a convolution; is it pooled?
LAYERS = (
    (64, 11, 4, 2, True),
    (192, 5, 1, 2, True),
    (384, 3, 1, 1, False),
    (256, 3, 1, 1, False),
    (256, 3, 1, 1, True),
)
SIZES: dict[str, dict[str, Any]] = {
    "toy": {"image": 64, "classes": 16, "channel_scale": 1 / 8, "dense": 32, "batch": 8},
    "alexnet": {"image": 224, "classes": 1000, "channel_scale": 1, "dense": 4096, "batch": 256},
}


class AlexNet(nn.Module):
    """Images (batch, 3, image, image) → logits (batch, classes)."""

    def __init__(self, *, image: int, classes: int, channel_scale: float, dense: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before, size = 3, image
        for channels, kernel, stride, padding, pooled in LAYERS:
            after = int(channels * channel_scale)
            layers += [nn.Conv2d(before, after, kernel, stride, padding), nn.ReLU()]
            size = (size + 2 * padding - kernel) // stride + 1
            before = after
            if pooled:
                layers.append(nn.MaxPool2d(3, 2))
                size = (size - 3) // 2 + 1
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(before * size**2, dense), nn.ReLU(), nn.Linear(dense, dense), nn.ReLU(),
            nn.Linear(dense, classes),
        )  # fmt: skip

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return self.classifier(flow.flatten(self.features(x), 1))


def build(*, optimizer: str = "sgd", **sizes: Any) -> Built:
    """Return (training graph, (images, labels)) of these sizes, the toy's where they are not given.

    Images are (batch, 3, image, image) float32 with `image` of at least 63, labels (batch,) int64;
    `channel_scale` and `dense` shrink the network for tests.
    """
    sizes = SIZES["toy"] | sizes
    inputs = labelled_images(sizes.pop("batch"), 3, sizes["image"], sizes["classes"])
    return TrainGraph(AlexNet(**sizes), cross_entropy, optimizer), inputs
