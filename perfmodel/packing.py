"""Where OneFlow puts buffers in a block of memory: one by one, each as low as it fits.

Source: OneFlow 0.9, core/job/intra_job_mem_sharing_util.cpp (mem size first).
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.signedinteger[Any]]

_BRIEF = 16  # steps; buffers that live no longer are looked up step by step
_WAITING = 512  # placed buffers that are not sorted in yet


def packed(sizes: Sequence[int], lives: Sequence[tuple[int, int]]) -> tuple[int, list[int]]:
    """Return the bytes of a block for buffers with these lives, and which are alive at its peak."""
    order = sorted(range(len(sizes)), key=lambda i: (-sizes[i], lives[i][0]))
    size = placed_bytes([sizes[i] for i in order], [lives[i] for i in order])
    return size, _alive_at_peak(sizes, lives)


def placed_bytes(sizes: Sequence[int], lives: Sequence[tuple[int, int]]) -> int:
    """Return the bytes of a block in which buffers are placed in this order, each as low as it fits.

    `lives` are the first and last times at which a buffer is in use; buffers that meet don't overlap.
    """
    unit = math.gcd(*sizes) or 1
    places = _Places(len(sizes), max([end for _, end in lives], default=0) + 1, sum(sizes) // unit)
    tops = [places.take(size // unit, *life) for size, life in zip(sizes, lives, strict=True)]
    return unit * max(tops, default=0)


class _Places:
    """What is taken of a block.

    Most buffers live for few steps and find room below all that lives longer. Those are kept by step,
    in `low`, and `floor` tells for each step where the others begin. `rows` are begins, ends, offsets
    and tops of all but the newest low ones, which are `waiting`, in ascending order of offsets.
    """

    def __init__(self, count: int, steps: int, total: int) -> None:
        kind = np.int32 if total < 2**31 else np.int64  # few bytes go through the caches
        self.rows = np.zeros((4, count), dtype=kind)
        self.count = 0
        self.low: list[list[tuple[int, int]]] = [[] for _ in range(steps)]
        self.floor = np.full(steps, np.iinfo(kind).max, dtype=kind)
        self.waiting: list[tuple[int, int, int, int]] = []
        self.highest = 0  # where those end that wait

    def take(self, length: int, begin: int, end: int) -> int:
        """Put a buffer into the lowest place that is free while it lives; return where it ends."""
        if end - begin < _BRIEF:
            top = self._below(length, begin, end, int(self.floor[begin : end + 1].min()))
            if top:
                return top
        if len(self.waiting) > _WAITING:
            self._settle()
        offset = self._lowest(length, begin, end)
        if self._waits(begin, end, offset, offset + length):
            self._settle()
            offset = self._lowest(length, begin, end)
        count = self.count
        place = self.rows[2, :count].searchsorted(offset)
        if place < count:
            self.rows[:, place + 1 : count + 1] = self.rows[:, place:count]
        self.rows[:, place] = begin, end, offset, offset + length
        self.count += 1
        floor = self.floor[begin : end + 1]
        np.minimum(floor, offset, out=floor)
        return offset + length

    def _below(self, length: int, begin: int, end: int, floor: int) -> int:
        """Put a brief buffer below `floor`, and return where it ends; 0 if there is no room."""
        if length > floor:
            return 0
        steps, offset = self.low[begin : end + 1], 0
        for low, top in sorted([place for held in steps for place in held]):
            if low - offset >= length:
                break
            offset = max(offset, top)
        top = offset + length
        if top > floor:
            return 0
        for held in steps:
            insort(held, (offset, top))
        self.waiting.append((begin, end, offset, top))
        self.highest = max(self.highest, top)
        return top

    def _waits(self, begin: int, end: int, low: int, high: int) -> bool:
        """Tell whether a buffer that waits is in the way."""
        return low < self.highest and any(
            first <= end and last >= begin and offset < high and top > low
            for first, last, offset, top in self.waiting
        )

    def _settle(self) -> None:
        """Sort in what waits."""
        count = self.count + len(self.waiting)
        self.rows[:, self.count : count] = np.array(self.waiting, dtype=self.rows.dtype).T
        order = self.rows[2, :count].argsort(kind="stable")
        self.rows[:, :count] = self.rows[:, :count].take(order, axis=1)
        self.count, self.highest = count, 0
        self.waiting.clear()

    def _lowest(self, length: int, begin: int, end: int) -> int:
        """Return the lowest place for `length` between the rows."""
        begins, ends, offsets, tops = self.rows[:, : self.count]
        met = ((begins <= end) & (ends >= begin)).nonzero()[0]
        lows = offsets.take(met)
        if not met.size or lows[0] >= length:
            return 0
        occupied = np.maximum.accumulate(tops.take(met))
        fits = lows[1:] - occupied[:-1] >= length
        first = int(fits.argmax()) if fits.size else 0
        return int(occupied[first]) if fits.size and fits[first] else int(occupied[-1])


def _alive_at_peak(sizes: Sequence[int], lives: Sequence[tuple[int, int]]) -> list[int]:
    """Return the buffers that are alive when their sum is largest."""
    if not lives:
        return []
    change: dict[int, int] = {}
    for size, (begin, end) in zip(sizes, lives, strict=True):
        change[begin] = change.get(begin, 0) + size
        change[end + 1] = change.get(end + 1, 0) - size
    best, peak, now = 0, -1, 0
    for time in sorted(change):
        now += change[time]
        if now > peak:
            best, peak = time, now
    return [n for n, (begin, end) in enumerate(lives) if begin <= best <= end]
