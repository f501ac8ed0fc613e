"""TransGAN's generator: a few wide tokens become an image of many narrow ones (Jiang et al. 2021).

Stages of blocks, each on a grid of twice the side of the one before. The first `kept` upsamplings repeat
tokens, the others turn a quarter of a token's width into each of four tokens. Grids larger than a
window attend inside of windows. The image is held against a fixed one: there is no discriminator.

"transgan" is the uneven model of AMP (Li et al. 2022): all blocks in the first and the last stage. Its
public code repeats tokens where TransGAN interpolates, too. Two things are left out: the noise that is
added before attention, as runs could not be compared; windows where a stage has no blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, pairwise
from typing import Any

import numpy as np
import oneflow as flow
from oneflow import nn

from experiments.models.training import Built, TrainGraph, mean_squared_error
from experiments.models.transformer import Attention, DenseFeedForward

COLOURS = 3
SIZES: dict[str, dict[str, Any]] = {
    "toy": {
        "depths": (1, 0, 1), "kept": 1, "width": 32, "heads": 4, "side": 4, "window": 8,
        "latent": 16, "batch": 8,
    },
    "transgan": {
        "depths": (12, 0, 0, 0, 0, 12), "kept": 2, "width": 1024, "heads": 4, "side": 9,
        "window": 18, "latent": 512, "batch": 64,
    },
}  # fmt: skip


def relative_places(side: int) -> np.ndarray:
    """Return a number for the way between every two tokens of a grid, (side², side²).

    Ways are rows and columns from -(side - 1) to side - 1: (2 side - 1)² of them.
    """
    rows, columns = np.divmod(np.arange(side * side), side)
    down = rows[:, None] - rows[None, :] + side - 1
    right = columns[:, None] - columns[None, :] + side - 1
    return down * (2 * side - 1) + right


def as_images(x: flow.Tensor) -> flow.Tensor:
    """Turn (batch, side², width) into (batch, width, side, side)."""
    batch, tokens, width = x.shape
    side = round(tokens**0.5)
    return x.transpose(1, 2).reshape(batch, width, side, side)


def in_windows(x: flow.Tensor, window: int) -> flow.Tensor:
    """Turn (batch, side², width) into (batch * windows, window², width), row by row."""
    batch, tokens, width = x.shape
    count = round(tokens**0.5) // window
    cut = x.reshape(batch, count, window, count, window, width).permute(0, 1, 3, 2, 4, 5)
    return cut.reshape(-1, window * window, width)


def out_of_windows(x: flow.Tensor, side: int) -> flow.Tensor:
    """Undo `in_windows` on a grid of that side."""
    windows, tokens, width = x.shape
    window = round(tokens**0.5)
    count = side // window
    cut = x.reshape(-1, count, count, window, window, width).permute(0, 1, 3, 2, 4, 5)
    return cut.reshape(windows // count**2, side * side, width)


class PixelNorm(nn.Module):
    """Divide by the root mean square over the last dim; nothing is learnt."""

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return x * flow.rsqrt(x.square().mean(-1, keepdim=True) + 1e-8)


class GridBlock(nn.Module):
    """Attention with a learnt bias for each way between tokens, and a feed-forward layer; pre-norm."""

    def __init__(self, width: int, heads: int, side: int) -> None:
        super().__init__()
        self.register_buffer("places", flow.tensor(relative_places(side).astype(np.int64)))
        self.near = nn.Embedding((2 * side - 1) ** 2, heads)
        self.norm1 = PixelNorm()
        self.attention = Attention(width, heads, use_bias=False)
        self.norm2 = PixelNorm()
        self.feed_forward = DenseFeedForward(width)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        bias = self.near(self.places).permute(2, 0, 1).unsqueeze(0)
        x = x + self.attention(self.norm1(x), bias=bias)
        return x + self.feed_forward(self.norm2(x))


class GridPositions(nn.Module):
    """Add what is learnt of each place of a grid to (batch, side², width)."""

    def __init__(self, side: int, width: int) -> None:
        super().__init__()
        self.position = nn.Parameter(flow.zeros(side * side, width))

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return x + self.position


class Repeated(nn.Module):
    """Upsample (batch, side², width) to (batch, 4 side², width): each token four times."""

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        batch, tokens, width = x.shape
        side = round(tokens**0.5)
        places = x.reshape(batch, side, 1, side, 1, width).expand(batch, side, 2, side, 2, width)
        return places.reshape(batch, 4 * tokens, width)


class Shuffled(nn.Module):
    """Upsample (batch, side², width) to (batch, 4 side², width / 4): nothing is added."""

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        batch, tokens, width = x.shape
        side = round(tokens**0.5)
        parts = x.reshape(batch, side, side, width // 4, 2, 2).permute(0, 1, 4, 2, 5, 3)
        return parts.reshape(batch, 4 * tokens, width // 4)


class Generator(nn.Module):
    """Latent vectors (batch, latent) → images (batch, 3, size, size), see `image_side`."""

    def __init__(
        self, *, depths: Sequence[int], kept: int, width: int, heads: int, side: int, window: int,
        latent: int,
    ) -> None:  # fmt: skip
        super().__init__()
        widths = [width // 4 ** max(0, stage - kept) for stage in range(len(depths))]
        self.depths, self.sides = depths, [side * 2**stage for stage in range(len(depths))]
        self.windows = [min(window, side) for side in self.sides]
        self.first = nn.Linear(latent, side * side * width)
        stages = list(zip(depths, widths, self.sides, self.windows, strict=True))
        self.positions = nn.ModuleList([GridPositions(side, wide) for _, wide, side, _ in stages])
        # One list for all stages: the planner knows a layer by the first number in its name.
        self.blocks = nn.ModuleList(
            [
                GridBlock(wide, heads, window)
                for depth, wide, _, window in stages
                for _ in range(depth)
            ]
        )
        self.grow = nn.ModuleList(
            [Repeated() if one == other else Shuffled() for one, other in pairwise(widths)]
        )
        self.head = nn.Conv2d(widths[-1], COLOURS, 1)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        x = self.first(x).reshape(x.shape[0], self.sides[0] ** 2, -1)
        blocks = iter(self.blocks)
        for stage, depth in enumerate(self.depths):
            x = self.positions[stage](self.grow[stage - 1](x) if stage else x)
            side, window = self.sides[stage], self.windows[stage]
            cut = depth > 0 and window < side
            x = in_windows(x, window) if cut else x
            for block in islice(blocks, depth):
                x = block(x)
            x = out_of_windows(x, side) if cut else x
        return self.head(as_images(x))


def image_side(side: int, depths: Sequence[int]) -> int:
    """Return the side of the images: that of the last grid."""
    return side * 2 ** (len(depths) - 1)


def build(*, optimizer: str = "sgd", **sizes: Any) -> Built:
    """Return (training graph, (latent vectors, images)) of these sizes, the toy's where not given.

    Latent vectors are (batch, latent), images (batch, 3, size, size) of values from 0 to 1, float32.
    `depths` are the blocks of each stage, `side` is that of the first grid, and `window` divides the
    sides of larger ones. 4 heads divide all widths, of which those behind `kept` are quartered.
    """
    sizes = SIZES["toy"] | sizes
    batch, size = sizes.pop("batch"), image_side(sizes["side"], sizes["depths"])
    rng = np.random.default_rng(0)
    latent = rng.normal(size=(batch, sizes["latent"])).astype(np.float32)
    images = rng.random((batch, COLOURS, size, size), dtype=np.float32)
    inputs = flow.tensor(latent), flow.tensor(images)
    return TrainGraph(Generator(**sizes), mean_squared_error, optimizer), inputs
