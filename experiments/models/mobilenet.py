"""MobileNetV2: inverted residual blocks of depthwise convolutions, each with batch normalisation.

Source: Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks (CVPR 2018).
"""

from __future__ import annotations

from typing import Any

import oneflow as flow
from oneflow import nn

from experiments.models.training import Built, TrainGraph, cross_entropy, labelled_images

# Of each stage: how many times wider a block is inside, its channels, blocks, the first one's stride.
PAPER = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
    (6, 320, 1, 1),
)  # fmt: skip
# The toy has a block of each kind: with and without expansion, residual and stride.
SIZES: dict[str, dict[str, Any]] = {
    "toy": {
        "stages": ((1, 8, 1, 1), (2, 8, 1, 1), (2, 16, 1, 2)), "image": 16, "classes": 16, "stem": 8,
        "last": 32, "batch": 8,
    },
    "mobilenet_v2": {
        "stages": PAPER, "image": 224, "classes": 1000, "stem": 32, "last": 1280, "batch": 64,
    },
}  # fmt: skip


class GroupedConvNorm(nn.Sequential):
    """Convolution without bias, in groups, that keeps the size (but for the stride), and batch norm."""

    def __init__(
        self, before: int, after: int, kernel: int, *, stride: int = 1, groups: int = 1,
        act: bool = True,
    ) -> None:  # fmt: skip
        layers = [
            nn.Conv2d(
                before, after, kernel, stride, padding=kernel // 2, groups=groups, bias=False
            ),
            nn.BatchNorm2d(after),
        ]
        super().__init__(*layers, *([nn.ReLU6()] if act else []))


class InvertedResidual(nn.Module):
    """Wider channels by a 1×1 convolution, a depthwise 3×3 one, a 1×1 one without activation."""

    def __init__(self, before: int, after: int, *, wider: int, stride: int) -> None:
        super().__init__()
        inner = before * wider
        widen = [GroupedConvNorm(before, inner, 1)] if wider != 1 else []
        self.body = nn.Sequential(
            *widen,
            GroupedConvNorm(inner, inner, 3, stride=stride, groups=inner),
            GroupedConvNorm(inner, after, 1, act=False),
        )
        self.added = before == after and stride == 1

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return x + self.body(x) if self.added else self.body(x)


class MobileNet(nn.Module):
    """Images (batch, 3, image, image) → logits (batch, classes)."""

    def __init__(
        self, *, stages: tuple[tuple[int, ...], ...], classes: int, stem: int, last: int
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [GroupedConvNorm(3, stem, 3, stride=2)]
        before = stem
        for wider, after, count, first in stages:
            for i in range(count):
                stride = first if i == 0 else 1
                layers.append(InvertedResidual(before, after, wider=wider, stride=stride))
                before = after
        self.blocks = nn.Sequential(*layers, GroupedConvNorm(before, last, 1))
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        self.head = nn.Linear(last, classes)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return self.head(flow.flatten(self.pool(self.blocks(x)), 1))


def build(*, optimizer: str = "sgd", **sizes: Any) -> Built:
    """Return (training graph, (images, labels)) of these sizes, the toy's where they are not given.

    Images are (batch, 3, image, image) float32, labels (batch,) int64. `stages` are as in PAPER, `stem`
    and `last` the channels of the first and the last convolution.
    """
    sizes = SIZES["toy"] | sizes
    inputs = labelled_images(sizes.pop("batch"), 3, sizes.pop("image"), sizes["classes"])
    return TrainGraph(MobileNet(**sizes), cross_entropy, optimizer), inputs
