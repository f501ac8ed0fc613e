"""Rows of arrays as lists, to compare and to read."""

from __future__ import annotations

from itertools import pairwise

from autoddl.ragged import Ragged


def lists(rows: Ragged) -> list[list[int]]:
    """Return the rows as lists."""
    items = rows.items.tolist()
    return [items[begin:end] for begin, end in pairwise(rows.start.tolist())]
