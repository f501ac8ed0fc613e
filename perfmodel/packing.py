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
    order, peak = np.lexsort((begins, -sizes)), _peak(sizes, begins, ends)
    size = placed_bytes(sizes[order], begins[order], ends[order], peak)
    return size, (begins <= peak) & (peak <= ends)


def placed_bytes(
    sizes: Ints, begins: Ints, ends: Ints, peak: int = 0, waiting: int = _WAITING
) -> int:
    """Return the bytes of a block in which buffers are placed in this order, each as low as it fits.

    `begins` and `ends` are the first and last times at which a buffer is in use; buffers that meet
    don't overlap. The result is the same whichever step is the `peak`, in which most are in use, and
    however many may be `waiting` to be sorted in.
    """
    lengths, steps = ends - begins + 1, int(ends.max(initial=-1)) + 1
    newest, floor = np.full(steps, -1), np.full(steps, np.iinfo(np.int64).max)
    kept = np.empty((int(lengths[lengths <= _BRIEF].sum()), 3), dtype=np.int64)
    return int(_placed(sizes, begins, ends, newest, floor, kept, peak, waiting))


def _peak(sizes: Ints, begins: Ints, ends: Ints) -> int:
    """Return the first step in which the sum of the buffers is largest."""
    change = np.zeros(int(ends.max(initial=0)) + 2, dtype=np.int64)
    np.add.at(change, begins, sizes)
    np.subtract.at(change, ends + 1, sizes)
    return int(change.cumsum().argmax())


@compiled
def _placed(
    sizes: Ints, begins: Ints, ends: Ints, newest: Ints, floor: Ints, kept: Table, peak: int, most: int
) -> int:  # fmt: skip
    """Return where the highest buffer ends.

    Most buffers live for few steps. Those are `kept` by step: low, top and the one before, `newest` of
    each step; most find room below all that lives longer, whose lowest place is `floor` by step. `high`
    are begins, ends, lows and tops of what lives longer, in ascending order of lows, and `rows` those of
    all; what lives for few steps waits in `late` until it is sorted in there, too.

    Most of what lives long is in use at the `peak`. Where no room was below `full` at that step for one
    buffer, there is none for the next of this size.
    """
    rows, late = np.empty((len(sizes), 4), np.int64), np.empty((most + 1, 4), np.int64)
    high = np.empty((len(sizes), 4), np.int64)
    filled, many = np.zeros(2, np.int64), 0  # so many of `rows` and of `late`, and of `high`
    used, highest, highest_late, full, largest = 0, 0, 0, 0, 0
    for n in range(len(sizes)):
        size, begin, end = sizes[n], begins[n], ends[n]
        full, largest = full if n and size == sizes[n - 1] else 0, max(largest, size)
        if end - begin < _BRIEF:
            room = floor[begin]
            for step in range(begin + 1, end + 1):
                room = min(room, floor[step])
            low = _above(newest, kept, (begin, end, size, room))
            if low + size > room:
                low = _beside(high, many, newest, kept, (begin, end, size, low))
            for step in range(begin, end + 1):
                kept[used, 0], kept[used, 1], kept[used, 2] = low, low + size, newest[step]
                newest[step] = used
                used += 1
            if filled[1] > most:
                _sort_in(rows, late, filled)
                highest_late = 0
            late[filled[1], 0], late[filled[1], 1] = begin, end
            late[filled[1], 2], late[filled[1], 3] = low, low + size
            filled[1] += 1
            highest, highest_late = max(highest, low + size), max(highest_late, low + size)
            continue
        start = 0
        if begin <= peak and peak <= end:
            full = _lowest(rows, filled[0], (peak, peak, size, full), largest)
            start = full
        low = _lowest(rows, filled[0], (begin, end, size, start), largest)
        if low < highest_late and _meets(late, filled[1], (low, size, begin, end)):
            _sort_in(rows, late, filled)
            highest_late = 0
            low = _lowest(rows, filled[0], (begin, end, size, start), largest)
        filled[0] = _insert(rows, filled[0], (begin, end, low, low + size))
        many = _insert(high, many, (begin, end, low, low + size))
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
def _beside(high: Table, many: int, newest: Ints, kept: Table, wanted: Place) -> int:
    """Return the lowest place from `low` on beside what is kept by step and what is not."""
    begin, end, size, low = wanted
    k, before = 0, -1
    while low != before:
        before = low
        while k < many and high[k, 2] < low + size:
            if high[k, 0] <= end and high[k, 1] >= begin:
                low = max(low, high[k, 3])
            k += 1
        for step in range(begin, end + 1):
            other = newest[step]
            while other >= 0:
                if kept[other, 0] < low + size and kept[other, 1] > low:
                    low = kept[other, 1]
                other = kept[other, 2]
    return low


@compiled
def _lowest(rows: Table, count: int, wanted: Place, largest: int) -> int:
    """Return the lowest place from `low` on between the first so many rows, of `largest` at most."""
    begin, end, size, low = wanted
    for k in range(_first(rows, count, low - largest), count):  # those before end below
        if rows[k, 0] <= end and rows[k, 1] >= begin:
            if rows[k, 2] - low >= size:
                break
            low = max(low, rows[k, 3])
    return low


@compiled
def _first(rows: Table, count: int, low: int) -> int:
    """Return the first of so many rows that begins so low or above."""
    first, last = 0, count
    while first < last:
        middle = (first + last) // 2
        if rows[middle, 2] >= low:
            last = middle
        else:
            first = middle + 1
    return first


@compiled
def _meets(late: Table, waiting: int, place: Place) -> bool:
    """Tell whether a place is taken by one of those that wait."""
    low, size, begin, end = place
    for k in range(waiting):
        met = late[k, 0] <= end and late[k, 1] >= begin
        if met and late[k, 2] < low + size and late[k, 3] > low:
            return True
    return False


@compiled
def _insert(rows: Table, count: int, row: Place) -> int:
    """Put a row where its low belongs among the first so many; return how many these are then."""
    place, (begin, end, low, top) = _first(rows, count, row[2]), row
    behind = rows[place : count + 1]
    for n in range(len(behind)):  # each takes the place of the next
        there = behind[n]
        others = there[0], there[1], there[2], there[3]
        there[0], there[1], there[2], there[3] = begin, end, low, top
        begin, end, low, top = others
    return count + 1


@compiled
def _sort_in(rows: Table, late: Table, filled: Ints) -> None:
    """Merge those that wait into the first rows; `filled` is how many there are of each."""
    turn, k = np.empty(filled[1], np.int64), filled[0] - 1
    for number in range(len(turn)):
        place = number
        while place > 0 and late[turn[place - 1], 2] > late[number, 2]:
            turn[place] = turn[place - 1]
            place -= 1
        turn[place] = number
    filled[0] += filled[1]
    free = filled[0]
    while filled[1]:
        filled[1] -= 1
        number = turn[filled[1]]
        while k >= 0 and rows[k, 2] > late[number, 2]:
            free -= 1
            for column in range(4):
                rows[free, column] = rows[k, column]
            k -= 1
        free -= 1
        for column in range(4):
            rows[free, column] = late[number, column]
