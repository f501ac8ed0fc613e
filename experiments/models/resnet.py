"""ResNet with basic or bottleneck blocks and batch normalisation, plain and wide.

Batch normalisation in training uses the statistics of the whole batch, so cutting the batch gives
other numbers than one device does. With `fused` layers normalisation, addition and ReLU are one kernel;
it is CUDA's: such a model is traced and priced on the CPU, never run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import oneflow as flow
from oneflow import nn

from experiments.models.training import Built, TrainGraph, cross_entropy, labelled_images

EXPANSION = 4  # output channels of a block over its channels
RESNET50: dict[str, Any] = {"blocks": (3, 4, 6, 3), "image": 224, "classes": 1000, "batch": 64}
# The toy has a block of each kind: with and without projection, with and without stride.
SIZES: dict[str, dict[str, Any]] = {
    "toy": {"blocks": (2, 1), "image": 16, "classes": 16, "channels": 8, "batch": 8},
    "resnet50": {**RESNET50, "channels": 64},
    "resnet18": {**RESNET50, "blocks": (2, 2, 2, 2), "channels": 64, "basic": True},
    "wide_resnet50_2": {**RESNET50, "channels": 64, "squeeze_factor": 2, "width_factor": 2},
    # A Wide-ResNet of Alpa's evaluation, by its number of parameters.
    "wide_resnet_250m": {**RESNET50, "channels": 160, "width_factor": 2},
    # Rhino's, by their names there; they have 1.0, 2.0, 4.0 and 9.5 billion parameters.
    "wide_resnet_1_3b": {**RESNET50, "channels": 320, "width_factor": 2, "batch": 4},
    "wide_resnet_2_6b": {**RESNET50, "channels": 448, "width_factor": 2, "batch": 4},
    "wide_resnet_6b": {**RESNET50, "channels": 640, "width_factor": 2, "batch": 4},
    "wide_resnet_12b": {
        **RESNET50,
        "blocks": (3, 4, 23, 3),
        "channels": 320,
        "width_factor": 12,
        "batch": 4,
    },
}


class ConvNorm(nn.Sequential):
    """Convolution without bias that keeps the size (but for the stride), batch norm, ReLU."""

    def __init__(
        self, before: int, after: int, kernel: int, *, stride: int = 1, relu: bool = True
    ) -> None:
        layers = [
            nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=False),
            nn.BatchNorm2d(after),
        ]
        super().__init__(*layers, *([nn.ReLU()] if relu else []))


class Basic(nn.Module):
    """Two 3×3 convolutions beside a shortcut, projected where the shape changes."""

    def __init__(self, before: int, channels: int, *, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            ConvNorm(before, channels, 3, stride=stride),
            ConvNorm(channels, channels, 3, relu=False),
        )
        self.shortcut = _shortcut(before, channels, stride)
        self.act = nn.ReLU()

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return self.act(self.body(x) + self.shortcut(x))


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions beside a shortcut, projected where the shape changes."""

    def __init__(
        self, before: int, channels: int, *, stride: int, squeeze_factor: int, width_factor: int
    ) -> None:
        super().__init__()
        squeezed, wide = channels * squeeze_factor, channels * width_factor
        after = channels * EXPANSION
        self.body = nn.Sequential(
            ConvNorm(before, squeezed, 1),
            ConvNorm(squeezed, wide, 3, stride=stride),
            ConvNorm(wide, after, 1, relu=False),
        )
        self.shortcut = _shortcut(before, after, stride)
        self.act = nn.ReLU()

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return self.act(self.body(x) + self.shortcut(x))


class FusedConvNorm(nn.Module):
    """Convolution without bias; then batch norm, what is added to it, and ReLU in one kernel."""

    def __init__(self, before: int, after: int, kernel: int, *, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=False)
        self.norm = nn.FusedBatchNorm2d(after)

    def forward(self, x: flow.Tensor, added: flow.Tensor | None = None) -> flow.Tensor:
        return self.norm(self.conv(x), added)


class FusedBottleneck(nn.Module):
    """A Bottleneck of fused layers."""

    def __init__(
        self, before: int, channels: int, *, stride: int, squeeze_factor: int, width_factor: int
    ) -> None:
        super().__init__()
        squeezed, wide = channels * squeeze_factor, channels * width_factor
        after = channels * EXPANSION
        self.first = FusedConvNorm(before, squeezed, 1)
        self.second = FusedConvNorm(squeezed, wide, 3, stride=stride)
        self.third = FusedConvNorm(wide, after, 1)
        self.shortcut = _shortcut(before, after, stride)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return self.third(self.second(self.first(x)), self.shortcut(x))


def _shortcut(before: int, after: int, stride: int) -> nn.Module:
    if before == after and stride == 1:
        return nn.Identity()
    return ConvNorm(before, after, 1, stride=stride, relu=False)


class ResNet(nn.Module):
    """Images (batch, 3, image, image) → logits (batch, classes)."""

    def __init__(
        self,
        *,
        blocks: tuple[int, ...],
        channels: int,
        classes: int,
        squeeze_factor: int = 1,
        width_factor: int = 1,
        fused: bool = False,
        basic: bool = False,
    ) -> None:
        super().__init__()
        layer = FusedConvNorm if fused else ConvNorm
        block: Callable[..., nn.Module] = FusedBottleneck if fused else Bottleneck
        factors = {"squeeze_factor": squeeze_factor, "width_factor": width_factor}
        if basic:
            block, factors = Basic, {}
        self.stem = nn.Sequential(layer(3, channels, 7, stride=2), nn.MaxPool2d(3, 2, padding=1))
        layers = []
        before = channels
        for stage, count in enumerate(blocks):
            for i in range(count):
                stride = 2 if stage > 0 and i == 0 else 1
                layers.append(block(before, channels * 2**stage, stride=stride, **factors))
                before = channels * 2**stage * (1 if basic else EXPANSION)
        self.blocks = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        self.head = nn.Linear(before, classes)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return self.head(flow.flatten(self.pool(self.blocks(self.stem(x))), 1))


def build(*, optimizer: str = "sgd", **sizes: Any) -> Built:
    """Return (training graph, (images, labels)) of these sizes, the toy's where they are not given.

    Images are (batch, 3, image, image) float32, labels (batch,) int64. `blocks` counts the blocks of
    each stage; `channels` is the first stage's base width, which doubles from stage to stage;
    `squeeze_factor` widens the outputs of a block's first convolution and `width_factor` those of
    its second. Fused layers are CUDA's; basic blocks have none of these.
    """
    sizes = SIZES["toy"] | sizes
    inputs = labelled_images(sizes.pop("batch"), 3, sizes.pop("image"), sizes["classes"])
    return TrainGraph(ResNet(**sizes), cross_entropy, optimizer), inputs
