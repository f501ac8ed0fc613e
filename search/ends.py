"""The ends of edges, and which ends of another problem stand for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoddl.search.columns import EdgeColumns, Ints


@dataclass(frozen=True, eq=False)
class Ends:
    """For the producer and each reader of edges, where a node has the same tensor in another problem.

    The ends of edge i are numbered from `begin[i]` on: its producer, then its readers. `edge` is the
    other problem's edge, `position` which of its ends; -1 where it has none.
    """

    begin: Ints
    edge: Ints
    position: Ints

    @classmethod
    def of_all(cls, edges: EdgeColumns) -> Ends:
        """Return where the ends of all edges are: at the same edges and positions."""
        edge = np.repeat(np.arange(len(edges.table)), np.diff(edges.begin))
        return cls(edges.begin, edge, np.arange(len(edge)) - edges.begin[edge])

    def at(self, edge: int, position: int) -> tuple[int, int] | None:
        """Return the edge of the other problem, and which of its ends, for one of an edge's ends."""
        end = self.begin[edge] + position
        return None if self.edge[end] < 0 else (int(self.edge[end]), int(self.position[end]))

    def of(self, edges: Sequence[int]) -> Ends:
        """Return the ends of some edges."""
        rows = np.asarray(edges, dtype=np.int64)
        counts = np.diff(self.begin)[rows]
        begin = np.concatenate(([0], counts.cumsum()))
        ends = np.repeat(self.begin[rows] - begin[:-1], counts) + np.arange(begin[-1])
        return Ends(begin, self.edge[ends], self.position[ends])


def standing_for(whole: EdgeColumns, place: Ints, short: EdgeColumns) -> Ends:
    """Return at which edges the ends of each edge have those that stand for them; see Shortened.

    Both number operands alike.
    """
    wanted_at, known_at = Ends.of_all(whole), Ends.of_all(short)
    count = 2 * len(whole.operands)
    known = short.node * count + 2 * short.operand + (known_at.position > 0)
    wanted = place[whole.node] * count + 2 * whole.operand + (wanted_at.position > 0)
    order = np.argsort(known, kind="stable")
    found = order[np.searchsorted(known[order], wanted, side="right") - 1]
    there = known[found] == wanted
    return Ends(
        whole.begin,
        np.where(there, known_at.edge[found], -1),
        np.where(there, known_at.position[found], -1),
    )


def alike(whole: EdgeColumns, ends: Ends, short: EdgeColumns) -> bool:
    """Tell whether the edges that stand for each edge have its prices, states and number of readers.

    Both number tables and arrays alike.
    """
    own = Ends.of_all(whole)
    if (ends.position != own.position).any():
        return False
    same = np.diff(short.begin)[ends.edge] == np.diff(whole.begin)[own.edge]
    same &= short.table[ends.edge] == whole.table[own.edge]
    stand_in = short.begin[ends.edge] + ends.position
    return bool(same.all()) and bool((short.states[stand_in] == whole.states).all())
