"""Where OneFlow puts buffers in a block of memory: one by one, each as low as it fits.

Source: OneFlow 0.9, core/job/intra_job_mem_sharing_util.cpp (mem size first).
"""

from __future__ import annotations

import numpy as np

from autoddl.compiled import compiled
from autoddl.perfmodel.rank import Flags, Ints, Table

Place = tuple[int, int, int, int]

_BRIEF = 16  # steps; buffers that live no longer are looked up step by step
_WAITING = 512  # placed buffers that are not sorted in yet


def packed(sizes: Ints, begins: Ints, ends: Ints) -> tuple[int, Flags]:
    """Return the bytes of a block for buffers with these lives, and which are alive at its peak."""
    order = np.lexsort((begins, -sizes))
    size = placed_bytes(sizes[order], begins[order], ends[order])
    return size, _alive_at_peak(sizes, begins, ends)


def placed_bytes(sizes: Ints, begins: Ints, ends: Ints, waiting: int = _WAITING) -> int:
    """Return the bytes of a block in which buffers are placed in this order, each as low as it fits.

    `begins` and `ends` are the first and last times at which a buffer is in use; buffers that meet
    don't overlap. The result is the same however many may be `waiting` to be sorted in.
    """
    lengths, steps = ends - begins + 1, int(ends.max(initial=-1)) + 1
    newest, floor = np.full(steps, -1), np.full(steps, np.iinfo(np.int64).max)
    kept = np.empty((int(lengths[lengths <= _BRIEF].sum()), 3), dtype=np.int64)
    return int(_placed(sizes, begins, ends, newest, floor, kept, waiting))


def _alive_at_peak(sizes: Ints, begins: Ints, ends: Ints) -> Flags:
    """Tell which buffers are alive when their sum is largest."""
    change = np.zeros(int(ends.max(initial=0)) + 2, dtype=np.int64)
    np.add.at(change, begins, sizes)
    np.subtract.at(change, ends + 1, sizes)
    peak = int(change.cumsum().argmax())
    return (begins <= peak) & (peak <= ends)


@compiled
def _placed(
    sizes: Ints, begins: Ints, ends: Ints, newest: Ints, floor: Ints, kept: Table, most: int
) -> int:
    """Return where the highest buffer ends.

    Most buffers live for few steps and find room below all that lives longer, whose lowest place is
    `floor` by step. Those are `kept` by step: low, top and the one before, `newest` of each step. `rows`
    are begins, ends, lows and tops of all others, in ascending order of lows; those that are kept by
    step wait in `late` until they are sorted in, too.
    """
    rows, late = np.empty((4, len(sizes)), np.int64), np.empty((4, most + 1), np.int64)
    filled = np.zeros(2, np.int64)  # so many of `rows` and of `late`
    used, highest, highest_late = 0, 0, 0
    for n in range(len(sizes)):
        size, begin, end = sizes[n], begins[n], ends[n]
        if end - begin < _BRIEF:
            room = floor[begin]
            for step in range(begin + 1, end + 1):
                room = min(room, floor[step])
            low = _above(newest, kept, (begin, end, size, room))
            if low + size <= room:
                if filled[1] > most:
                    _sort_in(rows, late, filled)
                    highest_late = 0
                for step in range(begin, end + 1):
                    kept[used, 0], kept[used, 1], kept[used, 2] = low, low + size, newest[step]
                    newest[step] = used
                    used += 1
                filled[1] = _insert(late, filled[1], (begin, end, low, low + size))
                highest, highest_late = max(highest, low + size), max(highest_late, low + size)
                continue
        low = _lowest(rows, filled[0], size, begin, end)
        if low < highest_late and _meets(late, filled[1], (low, size, begin, end)):
            _sort_in(rows, late, filled)
            highest_late = 0
            low = _lowest(rows, filled[0], size, begin, end)
        filled[0] = _insert(rows, filled[0], (begin, end, low, low + size))
        highest = max(highest, low + size)
        for step in range(begin, end + 1):
            floor[step] = min(floor[step], low)
    return highest


@compiled
def _above(newest: Ints, kept: Table, wanted: Place) -> int:
    """Return the lowest place between what is kept by step, or one that is too high for the room."""
    begin, end, size, room = wanted
    low, moved = 0, True
    while moved and low + size <= room:
        moved = False
        for step in range(begin, end + 1):
            other = newest[step]
            while other >= 0:
                if kept[other, 0] < low + size and kept[other, 1] > low:
                    low, moved = kept[other, 1], True
                other = kept[other, 2]
    return low


@compiled
def _lowest(rows: Table, count: int, size: int, begin: int, end: int) -> int:
    """Return the lowest place between the first so many rows."""
    low = 0
    for k in range(count):
        if rows[0, k] <= end and rows[1, k] >= begin:
            if rows[2, k] - low >= size:
                break
            low = max(low, rows[3, k])
    return low


@compiled
def _meets(late: Table, waiting: int, place: Place) -> bool:
    """Tell whether a place is taken by one of those that wait."""
    low, size, begin, end = place
    for k in range(waiting):
        met = late[0, k] <= end and late[1, k] >= begin
        if met and late[2, k] < low + size and late[3, k] > low:
            return True
    return False


@compiled
def _insert(rows: Table, count: int, row: Place) -> int:
    """Put a row where its low belongs among the first so many; return how many these are then."""
    place = count
    while place > 0 and rows[2, place - 1] >= row[2]:
        for k in range(4):
            rows[k, place] = rows[k, place - 1]
        place -= 1
    rows[0, place], rows[1, place], rows[2, place], rows[3, place] = row
    return count + 1


@compiled
def _sort_in(rows: Table, late: Table, filled: Ints) -> None:
    """Merge those that wait into the first rows; `filled` is how many there are of each."""
    k = filled[0] - 1
    filled[0] += filled[1]
    free = filled[0]
    while filled[1]:
        filled[1] -= 1
        while k >= 0 and rows[2, k] > late[2, filled[1]]:
            free -= 1
            for row in range(4):
                rows[row, free] = rows[row, k]
            k -= 1
        free -= 1
        for row in range(4):
            rows[row, free] = late[row, filled[1]]
