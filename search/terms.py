"""What the relaxation of a problem (dual.py) is made of: terms of tensors, and their ends.

A term hangs on the states at its ends: those of a tensor's producer and of its readers, or of some of
them where they are many. Ends are numbered; each has a node and, in the relaxation, a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from autoddl.search.problem import Edge, Floats, Ints

# Readers of one term: 3^n ways to part them are looked at. A tensor with more has several terms, which
# bounds it worse: what all its readers share each term counts in part.
FEW_READERS, MANY_READERS = 4, 8
_MOST_ENTRIES = 400_000  # for the sets of many readers by producer's and wanted state

Compressed = tuple[Floats, tuple[Ints, ...]]


@dataclass(frozen=True, eq=False)
class Term:
    """What a tensor costs by the states of its ends: the producer's and those of (some) readers.

    `ends` numbers them, `at` says which ends of which edges they are: (edge, 0 for its producer or 1 +
    the reader's number). `table` are its prices. A tensor with many readers has several terms, `group`
    numbers them, each with a part of its prices.
    """

    at: tuple[tuple[int, int], ...]
    group: int
    table: int
    ends: Ints


@dataclass(frozen=True, eq=False)
class End:
    """Where a node touches a term: numbers of both, its table of prices, the node's states by choice."""

    node: int
    term: int
    table: int
    states: Ints


@dataclass(frozen=True, eq=False)
class Fold:
    """How often the nodes of a problem occur in the whole one: `copies`, and its edges.

    Those are given by the edges at which the nodes that stand for its ends have the same place (see
    shorten.Shortened), with how often that occurs.
    """

    copies: Ints
    edges: Mapping[tuple[int, ...], int]


def node_at(edge: Edge, position: int) -> int:
    """Return the node at one end of an edge: 0 its producer, 1 + the reader's number."""
    return edge.producer if position == 0 else edge.readers[position - 1][0]


def many_readers(states: int) -> int:
    """Return how many readers a term may have at most for a tensor of so many states."""
    fits = (n for n in range(MANY_READERS, FEW_READERS, -1) if states**2 << n <= _MOST_ENTRIES)
    return next(fits, FEW_READERS)


@cache
def reader_groups(readers: int, most: int) -> tuple[tuple[int, ...], ...]:
    """Part readers into groups of at most so many, which one term can have."""
    count = -(-readers // most)
    return tuple(tuple(part.tolist()) for part in np.array_split(np.arange(readers), count))


def compressed(edge: Edge, occurring: Ints, shared: dict[object, Compressed]) -> Compressed:
    """Return a tensor's prices among some states, and those of producer and readers as positions there.

    `shared` keeps what was computed, so that equal tensors get the same arrays.
    """
    arrays = (edge.source, *(states for _, states in edge.readers))
    cost_key = id(edge.table), occurring.tobytes()
    if cost_key not in shared:
        shared[cost_key] = edge.table.cost[np.ix_(occurring, occurring)], ()
    key = (*cost_key, *map(id, arrays))
    if key not in shared:
        found = tuple(np.searchsorted(occurring, a) for a in arrays)
        shared[key] = shared[cost_key][0], found
    return shared[key]
