"""UNet: a path down with max pooling, a path up with transposed convolutions, skips between them.

Convolutions are padded, so that the skipped images need no cropping.
"""

from __future__ import annotations

from typing import Any

import oneflow as flow
from oneflow import nn

from experiments.models.training import Built, TrainGraph, cross_entropy, labelled_images

SIZES: dict[str, dict[str, Any]] = {
    "toy": {"depth": 2, "image": 16, "colours": 4, "classes": 8, "channels": 8, "batch": 8},
    "unet": {"depth": 4, "image": 512, "colours": 1, "classes": 2, "channels": 64, "batch": 8},
}


class DoubleConv(nn.Sequential):
    """Two 3×3 convolutions, each with ReLU, and batch norm before it if asked for."""

    def __init__(self, before: int, after: int, *, norm: bool) -> None:
        layers: list[nn.Module] = []
        for channels in (before, after):
            layers.append(nn.Conv2d(channels, after, 3, padding=1, bias=not norm))
            layers += [nn.BatchNorm2d(after), nn.ReLU()] if norm else [nn.ReLU()]
        super().__init__(*layers)


class UNet(nn.Module):
    """Images (batch, colours, image, image) → logits (batch, image, image, classes)."""

    def __init__(
        self, *, depth: int, colours: int, classes: int, channels: int, norm: bool = False
    ) -> None:
        super().__init__()
        widths = [channels * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(
            [
                DoubleConv(before, after, norm=norm)
                for before, after in zip([colours, *widths], widths, strict=False)
            ]
        )
        self.pool = nn.MaxPool2d(2, 2)
        self.grow = nn.ModuleList([nn.ConvTranspose2d(2 * w, w, 2, 2) for w in widths[-2::-1]])
        self.up = nn.ModuleList([DoubleConv(2 * w, w, norm=norm) for w in widths[-2::-1]])
        self.head = nn.Conv2d(channels, classes, 1)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        skipped = []
        for level, layers in enumerate(self.down):
            x = layers(self.pool(x) if level else x)
            skipped.append(x)
        for grow, layers, skip in zip(self.grow, self.up, skipped[-2::-1], strict=True):
            x = layers(flow.cat([skip, grow(x)], dim=1))
        return self.head(x).permute(0, 2, 3, 1)


def build(*, optimizer: str = "sgd", **sizes: Any) -> Built:
    """Return (training graph, (images, labels)) of these sizes, the toy's where they are not given.

    Images are (batch, colours, image, image) float32 with `image` a multiple of 2**depth, labels
    (batch, image, image) int64. `depth` counts the poolings; `channels` doubles with each.
    """
    sizes = SIZES["toy"] | sizes
    batch, image = sizes.pop("batch"), sizes.pop("image")
    inputs = labelled_images(batch, sizes["colours"], image, sizes["classes"], pixelwise=True)
    return TrainGraph(UNet(**sizes), cross_entropy, optimizer), inputs
