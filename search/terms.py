"""What the relaxation of a problem (dual.py) is made of: terms of tensors, their ends, batches of nodes.

A term hangs on the states at its ends: those of a tensor's producer and of its readers, or of some of
them where they are many. Ends are numbered; each has a node and, in the relaxation, a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoddl.search.problem import Edge, Floats, Ints

# Ends of many copies go by the terms that nearly all of them are in; those at the edge of a run of
# layers have nodes of their own that adapt.
COMMON = 8.0

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
    """Where a node touches a term: number of the end, which role it has there, states by choice."""

    number: int
    term: int
    role: int
    table: int
    states: Ints


@dataclass(frozen=True, eq=False)
class Terms:
    """All terms of the whole problem with one table of prices and one number of readers.

    `ends` [terms, 1 + readers], `cost` [1, s, w], `count` [terms] how often each occurs.
    """

    ends: Ints
    cost: Floats
    count: Floats


@dataclass(frozen=True, eq=False)
class Pull:
    """Ends that take over what their tensors can give: all producers, or readers, of such terms.

    An end takes the mean of what its terms can give; those of `mine[i]` begin at `starts[i]`, `share`
    [terms] is how many of its copies are in each, `weight` how much that counts. `source` are the
    producers' ends if `mine` are readers, `wants` [terms, readers] those of all (other) readers.
    """

    mine: Ints
    starts: Ints
    share: Floats
    weight: Floats
    cost: Floats
    source: Ints | None
    wants: Ints


@dataclass(frozen=True, eq=False)
class Batch:
    """Nodes with equal costs that touch equal tensors in equal ways and not each other.

    `cost` [nodes, choices], infinite for choices that have been dropped. Each node has the same
    number of ends; `ends` [nodes, ends] are their numbers, `states` [ends, choices] the state of
    the tensor under each choice, `slots` [nodes, ends, choices] where in the messages (flat) that is,
    `once` [ends] one over how many of them are in the same term. `order` sorts the choices of all
    ends by state, `starts` are where each state that occurs begins in it, `present` [nodes, states
    that occur] where in the messages it is. By direction (backward, forward): `lends` [nodes, states
    that occur] whether they lend to that tensor, `rest` [nodes] what they keep, and `pulls`; `part`
    [nodes] is what each of those tensors gets.
    """

    nodes: Ints
    cost: Floats
    ends: Ints
    states: Ints
    slots: Ints
    once: Floats
    order: Ints
    starts: Ints
    present: Ints
    part: Floats
    lends: tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]
    rest: tuple[Floats, Floats]
    pulls: tuple[tuple[Pull, ...], tuple[Pull, ...]]


@dataclass(frozen=True, eq=False)
class Fold:
    """How often the nodes of a problem occur in the whole one: `copies`, and its edges.

    Those are given by the edges at which the nodes that stand for its ends have the same place (see
    shorten.Shortened), with how often that occurs.
    """

    copies: Ints
    edges: Mapping[tuple[int, ...], int]


def pull_of(terms: Terms, rows: Ints, columns: Ints, each: Ints | None = None) -> Pull:
    """Return the pull at one column of some terms, all producers or none.

    `each` says how many terms in a row are for the same end, one by default.
    """
    ends = terms.ends[rows]
    mine = ends[np.arange(len(ends)), columns]
    starts = np.arange(len(ends)) if each is None else np.cumsum(each) - each

    def of_all(count: Floats) -> Floats:
        sums: Floats = np.repeat(np.add.reduceat(count, starts), np.diff([*starts, len(ends)]))
        return count / sums

    count = terms.count[rows]
    source, wants = None, ends[:, 1:]
    if columns.any():
        source, others = ends[:, 0], np.arange(1, ends.shape[1]) != columns[:, None]
        wants = ends[:, 1:][others].reshape(len(ends), -1)
    weight, share = of_all(count**COMMON), of_all(count)
    return Pull(mine[starts], starts, share, weight, terms.cost, source, wants)


def node_at(edge: Edge, position: int) -> int:
    """Return the node at one end of an edge: 0 its producer, 1 + the reader's number."""
    return edge.producer if position == 0 else edge.readers[position - 1][0]


def reader_groups(readers: int, most: int) -> list[tuple[int, ...]]:
    """Part readers into groups of at most so many, which one term can have."""
    count = -(-readers // most)
    return [tuple(map(int, part)) for part in np.array_split(np.arange(readers), count)]


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
