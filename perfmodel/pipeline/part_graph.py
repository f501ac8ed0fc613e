"""Which parts of a cluster of several kinds of devices may follow each other in a pipeline.

A class of parts takes devices of one or more pools, the devices of a kind. Parts fill a pool node by
node, in the order in which they are put before each other: one that is no larger than a node lies in one,
so that devices which are too few for it are left free; a larger one takes whole nodes.

Of 3 nodes with 4 V100 and one with 4 T4, parts of 4: the graph has 4·2 combinations of what is used, and
for each the class of the part that was put last, on which the links to the next one depend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autoddl.perfmodel.pipeline.placed_cut import NONE, Ints, PartGraph


class Pair(NamedTuple):
    """Two classes of parts, one before the other; `near` in the same node."""

    before: int
    behind: int
    near: bool


@dataclass(frozen=True)
class PlacedParts:
    """A graph of parts. Row n of its transfers is for `pairs[n]`.

    Edge n puts its part on the devices of each pool from `begin[n][pool]` to `end[n][pool]`. Node n has
    `parts[n]` parts.
    """

    graph: PartGraph
    pairs: tuple[Pair, ...]
    begin: tuple[tuple[int, ...], ...]
    end: tuple[tuple[int, ...], ...]
    parts: Ints

    @property
    def numbers(self) -> list[int]:
        """Return how many parts there may be in all."""
        return sorted({*self.parts[self.graph.whole].tolist()})

    def of(self, number: int) -> PartGraph:
        """Return the graph of pipelines of so many parts."""
        return self.graph._replace(whole=self.graph.whole & (self.parts == number))


class _Node(NamedTuple):
    used: tuple[int, ...]
    last: int
    parts: int


def part_graph(
    needs: Sequence[Sequence[int]],
    pools: Sequence[int],
    per_node: int,
    *,
    in_flight: Sequence[int],
    exactly: int | None = None,
    leave: bool = False,
) -> PlacedParts:
    """Return the graph of pipelines of at most `len(in_flight)` parts, or `exactly` so many.

    Class c takes `needs[c][p]` of the `pools[p]` devices of pool p, of which each node has `per_node`.
    The n-th part from the end keeps `in_flight[n]` micro-batches. All devices are used, unless they may
    be left (`leave`).
    """
    start = _Node((0,) * len(pools), NONE, 0)
    number, waiting = {start: 0}, [start]
    pairs: dict[Pair, int] = {}
    rows: list[tuple[int, int, int, int, int]] = []
    begins, ends = [], []
    for node in waiting:  # grows while it is read
        if node.parts == len(in_flight):
            continue
        for kind, need in enumerate(needs):
            begin = tuple(_begin(u, n, per_node) for u, n in zip(node.used, need, strict=True))
            end = tuple(b + n for b, n in zip(begin, need, strict=True))
            if any(e > size for e, size in zip(end, pools, strict=True)):
                continue
            if begin != node.used and not leave:
                continue
            link = NONE
            if node.parts:
                pair = Pair(kind, node.last, _near(node, needs, begin, end, kind, per_node))
                link = pairs.setdefault(pair, len(pairs))
            after = _Node(end, kind, node.parts + 1)
            if after not in number:
                number[after] = len(number)
                waiting.append(after)
            rows.append((number[node], number[after], kind, link, in_flight[node.parts]))
            begins.append(begin)
            ends.append(end)
    order = sorted(range(len(rows)), key=lambda row: rows[row][1])
    columns = np.array([rows[row] for row in order], dtype=np.int64).reshape(-1, 5).T
    parts = np.array([node.parts for node in number])
    done = [leave or node.used == tuple(pools) for node in number]
    whole = np.array(done) & (parts == exactly if exactly else parts > 0)
    tail, head, kinds, links, flying = (np.ascontiguousarray(column) for column in columns)
    graph = PartGraph(tail, head, kinds, links, flying, whole)
    spans = tuple(begins[row] for row in order), tuple(ends[row] for row in order)
    return PlacedParts(graph, tuple(pairs), *spans, parts)


def _begin(used: int, need: int, per_node: int) -> int:
    """Return where a part begins in a pool: behind what is used, or at the next node."""
    left = -used % per_node
    return used if need == 0 or need <= left else used + left


def _near(
    node: _Node, needs: Sequence[Sequence[int]], begin: Sequence[int], end: Sequence[int], kind: int,
    per_node: int,
) -> bool:  # fmt: skip
    """Tell whether a part lies in the same node as the one behind it."""
    mine = [p for p, n in enumerate(needs[kind]) if n]
    behind = [p for p, n in enumerate(needs[node.last]) if n]
    if len(mine) != 1 or mine != behind:
        return False
    (pool,) = mine
    first, last = begin[pool] // per_node, (end[pool] - 1) // per_node
    before = node.used[pool] - needs[node.last][pool]
    return first == last == before // per_node == (node.used[pool] - 1) // per_node
