"""Meshes of devices: nested axes, outermost level first.

A mesh axis has a size and lies in one level of the cluster. Ranks are numbered in row-major order,
so the last axis is always the one inside a node (OneFlow executes no other order).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autoddl.errors import AutoDDLError

DEFAULT_LEVELS = ("node", "gpu")


@dataclass(frozen=True)
class Axis:
    """Name one mesh axis: its size and the cluster level whose links it uses."""

    level: str
    size: int

    def __str__(self) -> str:
        return f"[{self.level} {self.size}]"


@dataclass(frozen=True)
class Mesh:
    """Arrange devices in nested axes, outermost first; ranks number the coordinates row-major."""

    axes: tuple[Axis, ...]

    def __post_init__(self) -> None:
        if not self.axes:
            raise AutoDDLError("mesh: got no axes; give at least one, for example '4' or '2x2'")
        for axis in self.axes:
            if axis.size < 1:
                raise AutoDDLError(f"mesh {self}: axis size {axis.size}; every size must be >= 1")

    @classmethod
    def parse(cls, text: str | Sequence[int], levels: Sequence[str] = DEFAULT_LEVELS) -> Mesh:
        """Read "2x4", "4", (2, 4) or "[node 2][gpu 4]".

        Sizes without level names are laid on `levels` from the innermost outwards: the last sizes
        beyond the number of levels all lie in the innermost level, so "2x2x2" on (node, gpu) is
        [node 2][gpu 2][gpu 2] and "2x2" on one level is two axes of that level.

        Raises:
            AutoDDLError: the text is not a mesh.
        """
        if not isinstance(text, str):
            sizes = tuple(text)
        elif re.fullmatch(r"(\[[A-Za-z_]\w* \d+\])+", text.strip()):
            pairs = re.findall(r"\[(\w+) (\d+)\]", text)
            return cls(tuple(Axis(level, int(size)) for level, size in pairs))
        elif re.fullmatch(r"\d+([x,×]\d+)*", text.replace(" ", "").strip("[]()")):
            sizes = tuple(int(s) for s in re.split(r"[x,×]", text.replace(" ", "").strip("[]()")))
        else:
            raise AutoDDLError(
                f"mesh: got {text!r}; allowed are sizes such as '4', '2x4' or '[node 2][gpu 4]'"
            )
        if not all(isinstance(size, int) for size in sizes):
            raise AutoDDLError(f"mesh: got sizes {sizes!r}; every size must be an integer")
        names = _levels_for(len(sizes), tuple(levels))
        return cls(tuple(Axis(level, size) for level, size in zip(names, sizes, strict=True)))

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the axis sizes, outermost first."""
        return tuple(axis.size for axis in self.axes)

    @property
    def size(self) -> int:
        """Return the number of devices."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """Return the number of axes."""
        return len(self.axes)

    def coords(self, rank: int) -> tuple[int, ...]:
        """Return the coordinates of a rank, one per axis."""
        if not 0 <= rank < self.size:
            raise AutoDDLError(f"mesh {self}: rank {rank} is outside 0..{self.size - 1}")
        out = []
        for size in reversed(self.shape):
            rank, coord = divmod(rank, size)
            out.append(coord)
        return tuple(reversed(out))

    def groups(self, axis: int) -> Iterator[tuple[int, ...]]:
        """Yield the groups of ranks that differ in `axis` only (the members of one collective)."""
        inner = math.prod(self.shape[axis + 1 :])
        size = self.shape[axis]
        for outer in range(self.size // (inner * size)):
            for offset in range(inner):
                start = outer * inner * size + offset
                yield tuple(start + k * inner for k in range(size))

    def __str__(self) -> str:
        return "x".join(str(axis.size) for axis in self.axes)

    def describe(self) -> str:
        """Return the notation with levels, "[node 2][gpu 4]"; `parse` reads it back."""
        return "".join(str(axis) for axis in self.axes)


def _levels_for(count: int, levels: tuple[str, ...]) -> tuple[str, ...]:
    if count <= len(levels):
        return levels[len(levels) - count :]
    return levels + (levels[-1],) * (count - len(levels))
