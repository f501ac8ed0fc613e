"""What a tensor costs whose readers share: least sums over what the others want.

A tensor in state s costs Σ cost[s, w] over the different states w that its readers want. With
prices on what each of them does, the least sum is over all ways to part the readers into groups
that want the same. Arrays have one row per tensor; states that do not occur have infinite prices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from autoddl.search.problem import Floats, Ints

# Readers of one term: 3^n ways to part them are looked at. A tensor with more has several terms, which
# bounds it worse: what all its readers share each term counts in part.
FEW_READERS, MANY_READERS = 4, 8
_ENTRIES = 1 << 18  # of one array: what caches hold is worked on fastest
_MOST_ENTRIES = 400_000  # for the sets of many readers by producer's and wanted state


def many_readers(states: int) -> int:
    """Return how many readers a term may have at most for a tensor of so many states."""
    fits = (n for n in range(MANY_READERS, FEW_READERS, -1) if states**2 << n <= _MOST_ENTRIES)
    return next(fits, FEW_READERS)


def seen_by_producer(cost: Floats, wants: Floats) -> Floats:
    """Return the least sum for every state of the producer [rows, s].

    `cost` is [rows or 1, s, w], `wants` [rows, readers, w] what it costs a reader to want w.
    """
    if wants.shape[1] == 1:
        return _least(cost.swapaxes(1, 2) + wants[:, 0, :, None])
    return _in_parts(lambda c, w: _served(c, _sums(w))[:, -1], cost, wants)


def seen_by_reader(cost: Floats, source: Floats, others: Floats) -> Floats:
    """Return the least sum for every state that one reader may want [rows, w].

    `source` [rows, s] is what a state costs the producer, `others` [rows, readers − 1, w] as above.
    """
    if others.shape[1] == 0:
        return _least(cost + source[:, :, None])
    return _in_parts(_with_others, cost, source, others)


def _least(sums: Floats) -> Floats:
    """Return the minimum along the second axis (without what ndarray.min does besides)."""
    least: Floats = np.minimum.reduce(sums, axis=1)
    return least


def _with_others(cost: Floats, source: Floats, others: Floats) -> Floats:
    """For every group that wants the same as the reader, the rest is served for its own sake."""
    sums = _sums(others)
    rest = _served(cost, sums)[:, ::-1] + source[:, None]  # the complement of g is the last less g
    return _least(_least(cost[:, :, None] + rest.swapaxes(1, 2)[..., None]) + sums)


def _sums(wants: Floats) -> Floats:
    """Return what it costs each set of readers to want w [rows, sets, w]; a set's bits are readers."""
    rows, readers, states = wants.shape
    sums = np.zeros((rows, 1 << readers, states))
    for reader in range(readers):
        size = 1 << reader
        np.add(sums[:, :size], wants[:, reader, None], out=sums[:, size : 2 * size])
    return sums


def _served(cost: Floats, sums: Floats) -> Floats:
    """Return the least sum over the ways to serve each set of readers [rows, sets, s]."""
    rows, sets, _ = sums.shape
    served = np.zeros((rows, sets, cost.shape[1]))
    together = served[:, 1:]  # one state for all of them
    prices = np.ascontiguousarray(cost.swapaxes(1, 2))[:, :, None]
    np.minimum.reduce(prices + sums[:, 1:].swapaxes(1, 2)[..., None], axis=1, out=together)
    if sets > 2:
        together = together.copy()
    for level in _levels(sets.bit_length() - 1):
        ways = together[:, level.group - 1] + served[:, level.rest]
        served[:, level.sets] = np.minimum.reduceat(ways, level.starts, axis=1)
    return served


@dataclass(frozen=True, eq=False)
class _Level:
    """Sets of one size; those from `starts[i]` on are the ways to part set i in a group and a rest."""

    sets: Ints
    group: Ints
    rest: Ints
    starts: Ints


@lru_cache
def _levels(readers: int) -> tuple[_Level, ...]:
    """Return all sets of several by size; a group always has the first reader of its set."""
    found = []
    for size in range(2, readers + 1):
        sets = [s for s in range(1 << readers) if s.bit_count() == size]
        ways = [[g for g in range(1, s + 1) if g & s == g and g & s & -s] for s in sets]
        group = np.array([g for row in ways for g in row])
        whole = np.repeat(sets, [len(row) for row in ways])
        starts = np.cumsum([0, *(len(row) for row in ways)])[:-1]
        found.append(_Level(np.array(sets), group, whole - group, starts))
    return tuple(found)


def _in_parts(function: Callable[..., Floats], cost: Floats, *arrays: Floats) -> Floats:
    """Call a function on as many rows at a time as fit into memory well."""
    rows, entries = len(arrays[0]), cost.shape[1] * cost.shape[2] << arrays[-1].shape[1]
    step = max(1, _ENTRIES // entries)
    if rows <= step:
        return function(cost, *arrays)
    parts = []
    for i in range(0, rows, step):
        here = slice(i, i + step)
        parts.append(function(cost if len(cost) == 1 else cost[here], *(a[here] for a in arrays)))
    return np.concatenate(parts)
