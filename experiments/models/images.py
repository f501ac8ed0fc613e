"""Random images with labels, the same on every rank: what the convolutional models train on."""

from __future__ import annotations

import numpy as np
import oneflow as flow


def labelled_images(
    batch: int, channels: int, size: int, classes: int, *, pixelwise: bool = False
) -> tuple[flow.Tensor, flow.Tensor]:
    """Return (images (batch, channels, size, size) float32, labels int64).

    Labels have shape (batch,), or (batch, size, size) with `pixelwise`.
    """
    rng = np.random.default_rng(0)
    images = rng.normal(size=(batch, channels, size, size)).astype(np.float32)
    labels = rng.integers(0, classes, (batch, size, size) if pixelwise else batch)
    return flow.tensor(images), flow.tensor(labels)
