"""How an axis of a mesh cuts a dim: evenly, or by shares, so many units for each place.

An even cut is written as the number of its places. A cut by the shares (3, 1) is an even cut into 3 + 1
units, of which the first place has 3 neighbouring ones, and the second the last:

    8 rows over 2 places: rows 0 to 3, 4 to 7; over the shares 3/1: rows 0 to 5, 6 to 7

What one place has of it is a portion, 3 of 4 units. Source: HAP (seed 001), where ratios are real numbers
that are rounded; whole units keep cuts of cuts exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, product
from typing import TypeAlias

from autoddl.errors import AutoDDLError, shown

MOST_UNITS = 64
"""Of a cut by shares: more would be finer than any dim of a model is divided by."""


@dataclass(frozen=True)
class Shares:
    """The units of each place of an axis, without a common divisor; at least two are unlike."""

    units: tuple[int, ...]

    @cached_property
    def total(self) -> int:
        """Return into how many units a dim is cut."""
        return sum(self.units)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Return the first unit of each place."""
        return (0, *accumulate(self.units[:-1]))

    def __str__(self) -> str:
        return f"{len(self.units)}:{'/'.join(map(str, self.units))}"


@dataclass(frozen=True)
class Portion:
    """What one of the `size` places of an axis has: so many of all units."""

    units: int
    total: int
    size: int


Cut: TypeAlias = int | Shares | Portion
Cuts: TypeAlias = Sequence[Cut]
"""One for each axis of a mesh, `Mesh.cuts`; axis sizes alone are even cuts."""


def cut_of(size: int, shares: Sequence[int]) -> Cut:
    """Return the cut of an axis with these shares, none or equal ones for an even one.

    Raises:
        AutoDDLError: they are not one whole number from 1 on for each place, or too many units.
    """
    if not shares:
        return size
    told = shown("/".join(map(str, shares)), 60)
    if len(shares) != size:
        raise AutoDDLError(
            f"mesh: shares {told}: got {len(shares)} for an axis of {size}; give one for each"
        )
    if min(shares) < 1:
        raise AutoDDLError(
            f"mesh: shares {told}: got {min(shares)}; allowed are whole numbers from 1 on; a device "
            "that is to do nothing is left out of the mesh"
        )
    common = math.gcd(*shares)
    units = tuple(share // common for share in shares)
    if sum(units) > MOST_UNITS:
        raise AutoDDLError(
            f"mesh: shares {told}: {sum(units)} units together; allowed are {MOST_UNITS} at most"
        )
    return Shares(units) if len(set(units)) > 1 else size


def places(cut: Cut) -> int:
    """Return how many places an axis has."""
    if isinstance(cut, int):
        return cut
    return len(cut.units) if isinstance(cut, Shares) else cut.size


def units(cut: Cut) -> int:
    """Return into how many equal units a dim is cut, which have to divide it for an even cut."""
    return cut if isinstance(cut, int) else cut.total


def most(cut: Cut) -> int:
    """Return the units of the place that has most."""
    if isinstance(cut, int):
        return 1
    return max(cut.units) if isinstance(cut, Shares) else cut.units


def span(cut: Cut, place: int) -> tuple[int, int]:
    """Return the first unit of a place, and how many it has; all portions are alike."""
    if isinstance(cut, int):
        return place, 1
    if isinstance(cut, Portion):
        return place * cut.units, cut.units
    return cut.starts[place], cut.units[place]


def portion(cut: Cut, place: int) -> Cut:
    """Return what a place has: of an even cut that itself, since all have the same."""
    if not isinstance(cut, Shares):
        return cut
    return Portion(cut.units[place], cut.total, len(cut.units))


def unit_vectors(counts: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
    """Yield the units of a place of each kind, of which there are so many, up to `most` together.

    None have a common divisor: (1, 1) and (2, 1) and so on, but not (2, 2).
    """
    for found in product(range(1, most + 1), repeat=len(counts)):
        if math.gcd(*found) == 1 and sum(map(math.prod, zip(found, counts, strict=True))) <= most:
            yield found
