"""Which parts of a cluster of several kinds of devices may follow each other in a pipeline.

A class of parts takes devices of one or more pools, each those of a kind in nodes of one size. Parts fill
a pool node by node, in the order in which they are put before each other: one that is no larger than a
node lies in one, a larger one takes whole nodes. All devices are used.

Of 3 nodes with 4 V100 and one with 4 T4, parts of 4: the graph has 4·2 combinations of what is used, and
for each the class of the part that was put last, on which the links to the next one depend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.pipeline.placed_cut import NONE, Ints, PartGraph

MOST_EDGES = 200_000  # take 3 s to list; 4 nodes of 8 devices of two kinds have 130,000


class Pair(NamedTuple):
    """Two classes of parts, one before the other; `near` in the same node."""

    before: int
    behind: int
    near: bool


@dataclass(frozen=True)
class PlacedParts:
    """A graph of parts. Row n of its transfers is for `pairs[n]`.

    Edge n puts its part on the devices of each pool from `begin[n][pool]` to `end[n][pool]`; as many of
    its micro-batches are kept as there are parts from it on, with any number of them. Node n has
    `parts[n]` parts.
    """

    graph: PartGraph
    pairs: tuple[Pair, ...]
    begin: tuple[tuple[int, ...], ...]
    end: tuple[tuple[int, ...], ...]
    parts: Ints

    @property
    def numbers(self) -> list[int]:
        """Return how many parts pipelines have."""
        return sorted({*self.parts[self.graph.whole].tolist()})

    @property
    def reached(self) -> bool:
        """Tell whether there is any pipeline."""
        reached = {0}
        for tail, head in zip(self.graph.tail.tolist(), self.graph.head.tolist(), strict=True):
            if tail in reached:
                reached.add(head)
        return bool(self.graph.whole[list(reached)].any())

    def of(self, number: int) -> PlacedParts:
        """Return the graph of pipelines of so many parts, without what leads to none of these."""
        graph = self.graph
        alive = graph.whole & (self.parts == number)
        whole = alive.copy()
        for tail, head in zip(graph.tail[::-1].tolist(), graph.head[::-1].tolist(), strict=True):
            alive[tail] |= alive[head]  # edges are in the order of their heads
        alive[0] = True  # where every pipeline ends
        kept = np.flatnonzero(alive[graph.head])
        node = np.cumsum(alive) - 1
        fewer = PartGraph(
            node[graph.tail[kept]], node[graph.head[kept]], graph.kind[kept], graph.link[kept],
            graph.in_flight[kept], whole[alive],
        )  # fmt: skip
        begin, end = (tuple(spans[edge] for edge in kept) for spans in (self.begin, self.end))
        return replace(self, graph=fewer, begin=begin, end=end, parts=self.parts[alive])

    def keeping(self, micro_batches: int) -> PlacedParts:
        """Return the graph for so many micro-batches, of which no more can be kept."""
        in_flight = np.minimum(self.graph.in_flight, micro_batches)
        return replace(self, graph=self.graph._replace(in_flight=in_flight))

    def only(self, kinds: Sequence[int]) -> PlacedParts:
        """Return the graph of these classes alone, numbered anew in this order."""
        number = {kind: place for place, kind in enumerate(kinds)}
        links: dict[int, int] = {NONE: NONE}
        pairs: list[Pair] = []
        for old, (before, behind, near) in enumerate(self.pairs):
            if before in number and behind in number:
                links[old] = len(pairs)
                pairs.append(Pair(number[before], number[behind], near))
        graph = self.graph
        ends = zip(graph.kind.tolist(), graph.link.tolist(), strict=True)
        kept = [edge for edge, (kind, link) in enumerate(ends) if kind in number and link in links]
        fewer = PartGraph(
            graph.tail[kept], graph.head[kept], _renumbered(graph.kind[kept], number),
            _renumbered(graph.link[kept], links), graph.in_flight[kept], graph.whole,
        )  # fmt: skip
        begin, end = (tuple(spans[edge] for edge in kept) for spans in (self.begin, self.end))
        return replace(self, graph=fewer, pairs=tuple(pairs), begin=begin, end=end)


class _Node(NamedTuple):
    used: tuple[int, ...]
    last: int
    parts: int


def part_graph(
    needs: Sequence[Sequence[int]], pools: Sequence[int], per_node: Sequence[int], most_parts: int
) -> PlacedParts:
    """Return the graph of pipelines of at most so many parts.

    Class c takes `needs[c][p]` of the `pools[p]` devices of pool p, of which a node has `per_node[p]`.

    Raises:
        AutoDDLError: there are too many ways to place parts.
    """
    start = _Node((0,) * len(pools), NONE, 0)
    number, waiting = {start: 0}, [start]
    pairs: dict[Pair, int] = {}
    rows: list[tuple[int, int, int, int, int]] = []
    begins, ends = [], []
    for node in waiting:  # grows while it is read
        if node.parts == most_parts:
            continue
        for kind, need in enumerate(needs):
            end = tuple(used + n for used, n in zip(node.used, need, strict=True))
            if not all(map(_fits, node.used, need, pools, per_node)):
                continue
            link = NONE
            if node.parts:
                pair = Pair(kind, node.last, _near(node, needs, kind, per_node))
                link = pairs.setdefault(pair, len(pairs))
            after = _Node(end, kind, node.parts + 1)
            if after not in number:
                number[after] = len(number)
                waiting.append(after)
            rows.append((number[node], number[after], kind, link, node.parts + 1))
            begins.append(node.used)
            ends.append(end)
        if len(rows) > MOST_EDGES:
            raise AutoDDLError(
                f"pipeline: over {MOST_EDGES:,} ways to place parts of {len(needs)} classes on "
                f"{sum(pools)} devices; plan with parts='equal'"
            )
    order = sorted(range(len(rows)), key=lambda row: rows[row][1])
    columns = np.array([rows[row] for row in order], dtype=np.int64).reshape(-1, 5).T
    tail, head, kinds, links, flying = (np.ascontiguousarray(column) for column in columns)
    parts = np.array([node.parts for node in number])
    whole = np.array([node.used == tuple(pools) for node in number]) & (parts > 0)
    graph = PartGraph(tail, head, kinds, links, flying, whole)
    spans = tuple(begins[row] for row in order), tuple(ends[row] for row in order)
    return PlacedParts(graph, tuple(pairs), *spans, parts)


def _renumbered(column: Ints, number: Mapping[int, int]) -> Ints:
    return np.array([number[old] for old in column.tolist()], dtype=np.int64)


def _fits(used: int, need: int, size: int, per_node: int) -> bool:
    """Tell whether so many devices of a pool come behind the used ones: in one node, or whole nodes."""
    left = -used % per_node
    return used + need <= size and (need <= left or left == 0)


def _near(node: _Node, needs: Sequence[Sequence[int]], kind: int, per_node: Sequence[int]) -> bool:
    """Tell whether a part that is put before a node lies in the same node of the cluster as its last."""
    mine = [p for p, n in enumerate(needs[kind]) if n]
    behind = [p for p, n in enumerate(needs[node.last]) if n]
    if len(mine) != 1 or mine != behind:
        return False
    (pool,) = mine
    used = node.used[pool]
    places = used - needs[node.last][pool], used - 1, used, used + needs[kind][pool] - 1
    return len({place // per_node[pool] for place in places}) == 1
