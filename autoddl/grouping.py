"""What NumPy has no name for: equal rows of several columns, and the inverse of a permutation.

Columns (7, 5, 7) and (1, 1, 1) have two distinct rows: the first is number 1, the others are number 0.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


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
