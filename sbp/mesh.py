"""Clusters of nested levels and meshes of devices laid over them, outermost first.

A mesh axis has a size and lies in one level of the cluster; the sizes of a level's axes multiply to
the level's count. Ranks are numbered in row-major order, so the last axis is always the one inside a
node (engines that we know execute no other order).
"""

from __future__ import annotations

import itertools
import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from autoddl.errors import AutoDDLError, shown
from autoddl.sbp import cluster_kinds
from autoddl.sbp.notation_reader import NotationReader
from autoddl.sbp.shares import Cut, Shares, cut_of, portion

DEFAULT_LEVELS = ("node", "gpu")

MOST_DEVICES = 1 << 20
MOST_AXES = 9  # of a mesh; the states of a tensor grow as a power of them
_SHARE = r"-?\d{1,7}(?!\d)"  # what it may be, sbp.shares says
_LEVEL = r"[A-Za-z_]\w{0,63}(?!\w)"
_ALLOWED = "allowed are sizes such as '4', '2x4' or '[node 2][gpu 4]'"


def is_level(text: str) -> bool:
    """Tell whether a text can name a level, as meshes are written with it: "node" of "[node 2]"."""
    return re.fullmatch(_LEVEL, text) is not None


@dataclass(frozen=True)
class Level:
    """Name one level of a cluster and how many of it each unit of the level outside has."""

    name: str
    size: int

    def __str__(self) -> str:
        return f"[{self.name} {self.size}]"


@dataclass(frozen=True)
class Axis:
    """Name one mesh axis: its size and the cluster level whose links it uses.

    With `shares` it cuts by these, "[node 2:3/1]"; kept without common divisors, () where all are equal.
    """

    level: str
    size: int
    shares: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        cut = self.cut
        object.__setattr__(self, "shares", cut.units if isinstance(cut, Shares) else ())

    @property
    def cut(self) -> Cut:
        """Return how it cuts."""
        return cut_of(self.size, self.shares) if self.shares else self.size

    def __str__(self) -> str:
        return f"[{self.level} {self.cut}]"


@dataclass(frozen=True)
class Cluster:
    """Nest levels, outermost first: [node 2][gpu 4] is two nodes of four GPUs.

    `kinds` are those of the devices, for each unit of the outermost level (node, say); none where all
    are alike. `sizes` are how many devices each unit has, where these differ: there are two levels then,
    the inner one as large as the largest unit, and no mesh spans all devices.
    """

    levels: tuple[Level, ...]
    kinds: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.levels:
            raise AutoDDLError(f"cluster: got no levels; {_ALLOWED}")
        _check_size("cluster", [level.size for level in self.levels])
        names = [level.name for level in self.levels]
        for i, level in enumerate(self.levels):
            if level.size < 1:
                raise AutoDDLError(f"cluster {self}: {level} has size {level.size}; sizes are >= 1")
            if level.name in names[:i]:
                raise AutoDDLError(
                    f"cluster {self}: level {level.name} twice; name each level once"
                )
        cluster_kinds.check(self.kinds, self.sizes, [level.size for level in self.levels])

    @classmethod
    def parse(cls, text: str | Sequence[int], levels: Sequence[str] = DEFAULT_LEVELS) -> Cluster:
        """Read "[node 2][gpu 4]", "2x4", (2, 4) or "3*v100x4 + 1*t4x4", nodes of several kinds.

        Sizes alone are laid on `levels` from inside.

        Raises:
            AutoDDLError: the text is not a cluster; the error marks the place.
        """
        if isinstance(text, str) and cluster_kinds.is_of_kinds(text):
            kinds, sizes = cluster_kinds.parse(text)
            if len(levels) == 1 and sizes:  # where nodes are not told apart
                nodes = zip(kinds, sizes, strict=True)
                kinds, sizes = tuple(kind for kind, size in nodes for _ in range(size)), ()
            unlike = sizes if len(set(sizes)) > 1 else ()
            largest = [max(sizes)] if sizes else []
            return replace(cls.parse([len(kinds), *largest], levels), kinds=kinds, sizes=unlike)
        pairs = _pairs(text, "cluster", tuple(levels))
        return cls(tuple(Level(name, size) for name, size, _ in pairs))

    @property
    def size(self) -> int:
        """Return the number of devices."""
        return sum(self.sizes) or math.prod(level.size for level in self.levels)

    @property
    def several(self) -> tuple[Level, ...]:
        """Return the levels that have more than one unit; all of these lie on a mesh of the cluster."""
        return tuple(level for level in self.levels if level.size > 1)

    @cached_property
    def unit_sizes(self) -> tuple[int, ...]:
        """Return the number of devices of each unit of the outermost level."""
        outer, *inner = (level.size for level in self.levels)
        return self.sizes or (math.prod(inner),) * outer

    def unit(self, device: int, level: int = 0) -> int:
        """Return in which unit of a level, counted over the whole cluster, a device is."""
        if level == 0:
            return bisect_right(self._ends, device)
        return device // math.prod(inside.size for inside in self.levels[level + 1 :])

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        return tuple(itertools.accumulate(self.unit_sizes))

    def kind(self, device: int) -> str:
        """Return the kind of a device; "" where all are alike."""
        return self.kinds[self.unit(device)] if self.kinds else ""

    def meshes(self, max_axes: int | None = None) -> Iterator[Mesh]:
        """Yield every mesh of all devices, those with few axes first; none of units of unlike size.

        Each level's count is written as an ordered product of factors >= 2, one axis per factor; a
        level of one device has no axis. `max_axes` bounds the number of axes.
        """
        if self.sizes:
            return
        most = MOST_AXES if max_axes is None else min(max_axes, MOST_AXES)
        options = [_factorisations(level.size, most) for level in self.levels]
        counts = itertools.product(*(sorted(option) for option in options))
        for count in sorted(counts, key=lambda lengths: (sum(lengths), lengths)):
            if sum(count) > most:
                return
            for sizes in itertools.product(*(o[n] for o, n in zip(options, count, strict=True))):
                yield self._mesh(sizes)

    def _mesh(self, sizes: Sequence[tuple[int, ...]]) -> Mesh:
        axes = [
            Axis(level.name, size)
            for level, factors in zip(self.levels, sizes, strict=True)
            for size in factors
        ]
        return Mesh(tuple(axes) or (Axis(self.levels[-1].name, 1),))

    def __str__(self) -> str:
        if self.kinds and len(self.levels) <= 2:
            return cluster_kinds.text_of(
                self.kinds, self.unit_sizes if len(self.levels) > 1 else ()
            )
        return "".join(map(str, self.levels))


@dataclass(frozen=True)
class Mesh:
    """Arrange devices in nested axes, outermost first; ranks number the coordinates row-major."""

    axes: tuple[Axis, ...]

    def __post_init__(self) -> None:
        if not self.axes:
            raise AutoDDLError("mesh: got no axes; give at least one, for example '4' or '2x2'")
        if len(self.axes) > MOST_AXES:
            raise AutoDDLError(f"mesh: got {len(self.axes)} axes; allowed are {MOST_AXES} at most")
        _check_size("mesh", [axis.size for axis in self.axes])
        for i, axis in enumerate(self.axes):
            if axis.size < 1:
                raise AutoDDLError(f"mesh {self}: axis size {axis.size}; every size must be >= 1")
            earlier = [a.level for a in self.axes[:i]]
            if axis.level in earlier and earlier[-1] != axis.level:
                raise AutoDDLError(
                    f"mesh {self.describe()}: level {axis.level} is cut in two by {earlier[-1]}; "
                    "write the axes of a level side by side, outer levels first"
                )

    @classmethod
    def parse(cls, text: str | Sequence[int], levels: Sequence[str] = DEFAULT_LEVELS) -> Mesh:
        """Read "2x4", "4", (2, 4) or "[node 2][gpu 4]"; "2:3/1x4" has shares on its first axis.

        Sizes without level names are laid on `levels` from the innermost outwards: the last sizes
        beyond the number of levels all lie in the innermost level, so "2x2x2" on (node, gpu) is
        [node 2][gpu 2][gpu 2] and "2x2" on one level is two axes of that level.

        Raises:
            AutoDDLError: the text is not a mesh; the error quotes it and marks the place.
        """
        pairs = _pairs(text, "mesh", tuple(levels))
        return cls(tuple(Axis(level, size, shares) for level, size, shares in pairs))

    @cached_property
    def cuts(self) -> tuple[Cut, ...]:
        """Return how the axes cut, outermost first: the axis sizes where they have no shares."""
        return tuple(axis.cut for axis in self.axes)

    def portion(self, rank: int) -> tuple[Cut, ...]:
        """Return what a rank has of each cut: `cuts` itself where no axis has shares."""
        return tuple(map(portion, self.cuts, self.coords(rank)))

    @cached_property
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

    @cached_property
    def cluster(self) -> Cluster:
        """Return the cluster that the mesh lies on: each level with the product of its axes."""
        levels = itertools.groupby(self.axes, key=lambda axis: axis.level)
        return Cluster(tuple(Level(name, math.prod(a.size for a in axes)) for name, axes in levels))

    def coords(self, rank: int) -> tuple[int, ...]:
        """Return the coordinates of a rank, one per axis."""
        if not 0 <= rank < self.size:
            raise AutoDDLError(f"mesh {self}: rank {rank} is outside 0..{self.size - 1}")
        out = []
        for size in reversed(self.shape):
            rank, coord = divmod(rank, size)
            out.append(coord)
        return tuple(reversed(out))

    def groups(self, *axes: int) -> Iterator[tuple[int, ...]]:
        """Yield the groups of ranks that differ in these axes only (the members of one collective).

        Members are in row-major order of their coordinates along `axes`.
        """
        yield from rank_groups(self.shape, axes)

    def __str__(self) -> str:
        return "x".join(str(axis.cut) for axis in self.axes)

    def describe(self) -> str:
        """Return the notation with levels, "[node 2][gpu 4]"; `parse` reads it back."""
        return "".join(str(axis) for axis in self.axes)


def rank_groups(shape: Sequence[int], axes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the groups of ranks of a mesh with these axis sizes that differ in `axes` only."""
    steps = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    others = [i for i in range(len(shape)) if i not in axes]
    inside = [
        sum(c * steps[i] for c, i in zip(coords, axes, strict=True))
        for coords in itertools.product(*(range(shape[i]) for i in axes))
    ]
    for coords in itertools.product(*(range(shape[i]) for i in others)):
        start = sum(c * steps[i] for c, i in zip(coords, others, strict=True))
        yield tuple(start + offset for offset in inside)


def _check_size(what: str, sizes: Sequence[int]) -> None:
    if math.prod(sizes) > MOST_DEVICES:
        raise AutoDDLError(
            f"{what}: got {shown(math.prod(sizes), 40)} devices; allowed are {MOST_DEVICES} at most"
        )


_Entry = tuple[str, int, tuple[int, ...]]


def _pairs(text: str | Sequence[int], what: str, levels: tuple[str, ...]) -> list[_Entry]:
    """Return levels with sizes and shares; sizes alone get the levels from the innermost outwards."""
    if isinstance(text, str):
        reader = NotationReader(what, text, _ALLOWED)
        if reader.take(r"(?=\[\s*[A-Za-z_])") is not None:
            return _named(reader)
        sizes = _sizes(reader)
    else:
        sizes = [(size, ()) for size in text]
        for size in text:
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise AutoDDLError(
                    f"{what} {shown(text, 100)}: size {shown(size, 100)}; sizes are whole numbers >= 1"
                )
    missing = len(sizes) - len(levels)
    names = levels[-len(sizes) :] if missing <= 0 else levels + (levels[-1],) * missing
    return [(name, *size) for name, size in zip(names, sizes, strict=True)] if sizes else []


def _named(reader: NotationReader) -> list[_Entry]:
    pairs = []
    while not reader.done:
        reader.need(r"\[", "'['")
        name = reader.need(_LEVEL, "a level name")
        pairs.append((name, *_size_and_shares(reader)))
        reader.need(r"\]", "']'")
    return pairs


def _sizes(reader: NotationReader) -> list[tuple[int, tuple[int, ...]]]:
    close = {"(": r"\)", "[": r"\]"}.get(reader.take(r"[(\[]") or "")
    sizes = [_size_and_shares(reader)]
    while reader.take(r"[x×,]") is not None:
        sizes.append(_size_and_shares(reader))
    if close is not None:
        reader.need(close, "a closing bracket")
    if not reader.done:
        raise reader.error("'x' or the end expected")
    return sizes


def _size_and_shares(reader: NotationReader) -> tuple[int, tuple[int, ...]]:
    size, shares = _size(reader), list[int]()
    while reader.what == "mesh" and reader.take("/" if shares else ":") is not None:
        shares.append(int(reader.need(_SHARE, "a share")))
    return size, tuple(shares)


def _size(reader: NotationReader) -> int:
    before = reader.position
    digits = reader.need(r"\d+(?![\w.])|\d+(?=x)", "a size")
    if len(digits) > len(str(MOST_DEVICES)) or not 1 <= int(digits) <= MOST_DEVICES:
        raise reader.error(f"a size from 1 to {MOST_DEVICES} expected", before)
    return int(digits)


def _factorisations(number: int, most: int) -> dict[int, list[tuple[int, ...]]]:
    """Return the ordered factorisations into at most so many factors >= 2, by how many these are."""
    found: dict[int, list[tuple[int, ...]]] = {}
    divisors = [n for n in range(2, number + 1) if number % n == 0]

    def extend(rest: int, before: tuple[int, ...]) -> None:
        if rest == 1:
            found.setdefault(len(before), []).append(before)
        for factor in divisors if len(before) < most else ():
            if rest % factor == 0:
                extend(rest // factor, (*before, factor))

    extend(number, ())
    return found
