"""Rows of numbers in arrays: of different lengths (compressed sparse rows), and which are equal.

Rows (7, 8), () and (9,) are the items 7, 8, 9 and the starts 0, 2, 2, 3. Columns (7, 5, 7) and (1, 1, 1)
have two distinct rows: the first is number 1, the others are number 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


class Ragged(NamedTuple):
    """Rows of numbers of different lengths, one behind the other: row n begins at `start[n]`."""

    start: Ints
    items: Ints

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Ragged:
        """Return these rows."""
        counts = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        items = np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=counts.sum())
        return cls(_starts(counts), items)

    @classmethod
    def sorted(cls, rows: Ints, items: Ints, count: int) -> Ragged:
        """Return so many rows, given the row of each item; items keep their order."""
        order = rows.argsort(kind="stable")
        return cls(_starts(np.bincount(rows, minlength=count)), items[order])

    def take(self, numbers: Ints) -> Ragged:
        """Return the rows of these numbers."""
        first = self.start[numbers]
        start = _starts(self.start[numbers + 1] - first)
        places = (first - start[:-1]).repeat(np.diff(start)) + np.arange(start[-1])
        return Ragged(start, self.items[places])

    def distinct(self) -> tuple[Ints, Ints]:
        """Return the first of the rows that are equal, as they come, and which of those each equals."""
        data, width = self.items.tobytes(), self.items.itemsize
        known: dict[bytes, int] = {}
        found = [
            known.setdefault(data[width * a : width * b], len(known))
            for a, b in pairwise(self.start.tolist())
        ]
        which = np.array(found, dtype=np.int64)
        return np.unique(which, return_index=True)[1], which

    @property
    def row(self) -> Ints:
        """Return the row of each item."""
        return np.arange(len(self.start) - 1).repeat(np.diff(self.start))


def _starts(counts: Ints) -> Ints:
    return np.concatenate((np.zeros(1, dtype=np.int64), counts.cumsum()))


def distinct(*columns: Ints | npt.NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Return the first of the rows that are equal, in ascending order, and which of those each equals.

    The columns have numbers from -1 on.
    """
    keys = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        keys = keys * (int(column.max(initial=0)) + 2) + column + 1
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    return first, which


def inverse(order: Ints) -> Ints:
    """Return at which place of a permutation each number stands."""
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return place
