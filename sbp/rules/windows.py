"""What convolutions and poolings share: the layout of images, and windows that slide over them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autoddl.sbp.rules.registry import Array, Dims, LocalOp, OpView, Shape

Reference = Callable[[LocalOp], dict[str, Array]]


def channels_last(view: OpView) -> bool:
    """Say whether images are (batch, *space, channels) and not (batch, channels, *space)."""
    return bool(view.attr.get("data_format") == "channels_last")


def image_dims(view: OpView, channel: str | None, space: Sequence[str | None]) -> Dims:
    """Return the dims of an image whose channels and space have these index names."""
    return ("n", *space, channel) if channels_last(view) else ("n", channel, *space)


def space_of(view: OpView, operand: str) -> Shape:
    """Return the spatial sizes of an image or a filter."""
    shape = view.shape[operand]
    return shape[1:-1] if channels_last(view) else shape[2:]


def last(indices: Iterable[int | slice]) -> tuple[Any, ...]:
    """Return what picks these indices of the last dims of an array."""
    return (..., *indices)


def channels_first(reference: Reference) -> Reference:
    """Let a reference that knows only (batch, channels, *space) compute the other layout, too."""

    def either(op: LocalOp) -> dict[str, Array]:
        if not channels_last(op.view):
            return reference(op)
        shape = {
            name: (s[0], s[-1], *s[1:-1]) if len(s) > 2 else s for name, s in op.view.shape.items()
        }
        inputs = {
            name: np.moveaxis(array, -1, 1) if array.ndim > 2 else array
            for name, array in op.inputs.items()
        }
        results = reference(replace(op, view=replace(op.view, shape=shape), inputs=inputs))
        return {
            name: np.moveaxis(array, 1, -1) if array.ndim > 2 else array
            for name, array in results.items()
        }

    return either


@dataclass(frozen=True)
class Windows:
    """Windows of one kernel on a padded image: one value of each tuple for each spatial dim."""

    kernel: Shape
    stride: Shape
    padding: Shape
    dilation: Shape

    @classmethod
    def of_conv(cls, view: OpView) -> Windows:
        """Read a convolution's attributes."""
        a = view.attr
        return cls(a["kernel_size"], a["strides"], a["padding_before"], a["dilation_rate"])

    @classmethod
    def of_pool(cls, view: OpView) -> Windows:
        """Read a pooling's attributes; average poolings have no dilation."""
        a = view.attr
        kernel = a["kernel_size"]
        return cls(kernel, a["stride"], a["padding"], a.get("dilation", (1,) * len(kernel)))

    def extent(self, i: int) -> int:
        """Return how many pixels a window spans in spatial dim `i`."""
        return (self.kernel[i] - 1) * self.dilation[i] + 1

    def tiles(self, i: int, size: int, count: int) -> bool:
        """Say whether `count` windows cut a dim of `size` pixels into equal parts, one for each."""
        fits = self.extent(i) <= self.stride[i] and self.padding[i] == 0
        return fits and size == count * self.stride[i]

    def tiled(self, sizes: Shape, counts: Shape) -> tuple[str | None, ...]:
        """Name the spatial dims of an image that may be cut between windows: s0, s1, …"""
        pairs = enumerate(zip(sizes, counts, strict=True))
        return tuple(f"s{i}" if self.tiles(i, *pair) else None for i, pair in pairs)

    def positions(self, counts: Shape) -> Iterator[tuple[Shape, tuple[slice, ...]]]:
        """Yield each kernel position with the padded pixels that it meets, one for each window."""
        for position in itertools.product(*map(range, self.kernel)):
            yield position, tuple(self._along(i, p, counts[i]) for i, p in enumerate(position))

    def pad(self, image: Array, counts: Shape, value: float = 0.0) -> Array:
        """Return the image inside a frame of `value` that all windows fit into."""
        sizes = [
            max(self.padding[i] + size, self._along(i, self.kernel[i] - 1, counts[i]).stop)
            for i, size in enumerate(image.shape[2:])
        ]
        framed = np.full((*image.shape[:2], *sizes), value)
        self.inside(framed, image.shape)[...] = image
        return framed

    def inside(self, framed: Array, shape: Shape) -> Array:
        """Return the part of a padded image that is the image of `shape`."""
        cut = (slice(p, p + size) for p, size in zip(self.padding, shape[2:], strict=True))
        return np.asarray(framed[last(cut)])

    def _along(self, i: int, position: int, count: int) -> slice:
        first = position * self.dilation[i]
        return slice(first, first + (count - 1) * self.stride[i] + 1, self.stride[i])
