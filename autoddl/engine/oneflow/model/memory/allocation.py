"""Where OneFlow puts buffers in a block of memory: greedy by size, each as low as it fits.

The largest buffer is placed first; each takes the lowest gap among those that live at the same time.
Sizes 4 (steps 0 to 2), 2 (steps 0 to 1) and 2 (step 2) go to offsets 0, 4 and 4: 6 bytes, not 8.

Source: OneFlow 0.9, core/job/intra_job_mem_sharing_util.cpp (mem size first).
"""

from __future__ import annotations

import numpy as np

from autoddl.compiled import compiled
from autoddl.engine.oneflow.model.memory.task_graph import Flags, Ints, Table

Place = tuple[int, int, int, int]

_BLOCK = 4  # bits of a step that don't tell its block
_GROUP = 4  # bits of a block that don't tell its group
_BRIEF = 1 << _BLOCK  # steps; buffers that live no longer are looked up by blocks
_NOTHING = np.iinfo(np.int64).max


def packed(sizes: Ints, begins: Ints, ends: Ints) -> tuple[int, Flags]:
    """Return the bytes of a block for buffers with these lives, and which are alive at its peak."""
    order, peak = np.lexsort((begins, -sizes)), _peak(sizes, begins, ends)
    size = placed_bytes(sizes[order], begins[order], ends[order], peak)
    return size, (begins <= peak) & (peak <= ends)


def placed_bytes(sizes: Ints, begins: Ints, ends: Ints, peak: int = 0) -> int:
    """Return the bytes of a block in which buffers are placed in this order, each as low as it fits.

    `begins` and `ends` are the first and last times at which a buffer is in use; buffers that meet
    don't overlap. The result is the same whichever step is the `peak`, in which most are in use.
    """
    return int(_placed(sizes, begins, ends, int(ends.max(initial=-1)) + 1, peak))


def _peak(sizes: Ints, begins: Ints, ends: Ints) -> int:
    """Return the first step in which the sum of the buffers is largest."""
    steps = int(ends.max(initial=0)) + 2
    change = np.bincount(begins, sizes, steps) - np.bincount(ends + 1, sizes, steps)
    return int(change.cumsum().argmax())


@compiled
def _placed(sizes: Ints, begins: Ints, ends: Ints, steps: int, peak: int) -> int:
    """Return where the highest buffer ends.

    `placed` are begins, ends, lows and tops. What lives for few steps is found by blocks of steps: the
    `newest` that begins in one leads to `older` ones; `highest` is how high they reach, by block and by
    group of blocks. What lives longer is of two `kinds`: not in use at the `peak`, or in use there, one
    above the other; so `many` of each are numbered in ascending order of lows. `floors` are the lowest of
    each kind by step. That of the second never rises towards the peak, so that few steps change.
    """
    placed, older = np.empty((len(sizes), 4), np.int64), np.empty(len(sizes), np.int64)
    newest, met = np.full((steps >> _BLOCK) + 1, -1), np.empty((len(sizes), 2), np.int64)
    highest, floors = np.zeros((2, len(newest)), np.int64), np.full((2, steps), _NOTHING)
    kinds, many = np.empty((2, len(sizes)), np.int64), np.zeros(2, np.int64)
    top, full, largest = 0, 0, 0
    for n in range(len(sizes)):
        size, begin, end, low, room, before = sizes[n], begins[n], ends[n], 0, 0, -1
        full, largest = full if n and size == sizes[n - 1] else 0, max(largest, size)
        kind = 1 if begin <= peak and peak <= end else 0
        brief = kind == 0 and end - begin < _BRIEF
        if kind:  # no room at the peak for the one before is none for the next of this size
            low = full = _between(placed, kinds[1], many[1], (peak, peak, size, full), 0)
        if brief:
            room = floors[1, end if end < peak else begin]
            for step in range(begin, end + 1):
                room = min(room, floors[0, step])
        else:
            low = _beside(placed, kinds, many, (begin, end, size, low), largest)
        count = _meet(placed, newest, older, highest, (begin, end, low), met)
        while low != before:
            before = low
            low, count = _above(met, count, size, low)
            if low + size > room:
                low = _beside(placed, kinds, many, (begin, end, size, low), largest)
        top = max(top, low + size)
        placed[n, 0], placed[n, 1], placed[n, 2], placed[n, 3] = begin, end, low, low + size
        if brief:
            block = begin >> _BLOCK
            older[n], newest[block] = newest[block], n
            highest[0, block] = max(highest[0, block], low + size)
            highest[1, block >> _GROUP] = max(highest[1, block >> _GROUP], low + size)
            continue
        _insert(placed, kinds[kind], many[kind], n)
        many[kind] += 1
        if kind:
            _lower(floors[1], peak, begin, end, low)
        else:
            for step in range(begin, end + 1):
                floors[0, step] = min(floors[0, step], low)
    return top


@compiled
def _meet(
    placed: Table, newest: Ints, older: Ints, highest: Table, wanted: tuple[int, int, int],
    met: Table,
) -> int:  # fmt: skip
    """Find those that live for few steps, but also in these, and end above `low`; return how many.

    Their lows and tops are put into `met`.
    """
    begin, end, low = wanted
    count, block = 0, max((begin >> _BLOCK) - 1, 0)
    while block <= end >> _BLOCK:
        if highest[1, block >> _GROUP] <= low:
            block = ((block >> _GROUP) + 1) << _GROUP
            continue
        other = newest[block] if highest[0, block] > low else -1
        while other >= 0:
            if placed[other, 0] <= end and placed[other, 1] >= begin and placed[other, 3] > low:
                met[count, 0], met[count, 1] = placed[other, 2], placed[other, 3]
                count += 1
            other = older[other]
        block += 1
    return count


@compiled
def _above(met: Table, count: int, size: int, low: int) -> tuple[int, int]:
    """Return the lowest place from `low` on between so many; those below are dropped, and the number."""
    before = -1
    while low != before:
        before, k = low, 0
        while k < count:
            if met[k, 0] >= low + size:
                k += 1
                continue
            low, count = max(low, met[k, 1]), count - 1
            met[k, 0], met[k, 1] = met[count, 0], met[count, 1]
    return low, count


@compiled
def _beside(placed: Table, kinds: Table, many: Ints, wanted: Place, largest: int) -> int:
    """Return the lowest place from `low` on between those of both kinds; none is of more bytes."""
    begin, end, size, low = wanted
    before = -1
    while low != before:
        before = low
        low = _between(placed, kinds[0], many[0], (begin, end, size, low), largest)
        low = _between(placed, kinds[1], many[1], (begin, end, size, low), 0)
    return low


@compiled
def _between(placed: Table, kind: Ints, many: int, wanted: Place, reach: int) -> int:
    """Return the lowest place from `low` on between so many of a kind.

    Of those that begin more than `reach` below, only the last may end above (where they lie one above
    the other, `reach` is 0).
    """
    begin, end, size, low = wanted
    first, last = 0, many
    while first < last:
        middle = (first + last) // 2
        if placed[kind[middle], 2] >= low - reach:
            last = middle
        else:
            first = middle + 1
    for k in range(max(first - 1, 0), many):
        other = kind[k]
        if placed[other, 2] >= low + size:
            break
        if placed[other, 0] <= end and placed[other, 1] >= begin:
            low = max(low, placed[other, 3])
    return low


@compiled
def _insert(placed: Table, kind: Ints, many: int, number: int) -> None:
    """Put a buffer behind the first so many of a kind, or where it belongs."""
    while many and placed[kind[many - 1], 2] > placed[number, 2]:
        kind[many] = kind[many - 1]
        many -= 1
    kind[many] = number


@compiled
def _lower(floor: Ints, peak: int, begin: int, end: int, low: int) -> None:
    """Lower a floor that never rises towards the peak: from the ends inwards, while it is higher."""
    for first, way in ((begin, 1), (end, -1)):
        step = first
        while (peak - step) * way >= 0 and floor[step] > low:
            floor[step] = low
            step += way
