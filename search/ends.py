"""The ends of edges as columns, and which ends of another problem stand for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoddl.search.problem import Ints, Problem


@dataclass(frozen=True, eq=False)
class Ends:
    """For the producer and each reader of edges, where a node has the same tensor in another problem.

    The ends of edge i are numbered from `begin[i]` on: its producer, then its readers. `edge` is the
    other problem's edge, `position` which of its ends; -1 where it has none.
    """

    begin: Ints
    edge: Ints
    position: Ints

    def at(self, edge: int, position: int) -> tuple[int, int] | None:
        """Return the edge of the other problem, and which of its ends, for one of an edge's ends."""
        end = self.begin[edge] + position
        return None if self.edge[end] < 0 else (int(self.edge[end]), int(self.position[end]))

    def of(self, edges: Sequence[int]) -> Ends:
        """Return the ends of some edges."""
        rows = np.asarray(edges, dtype=np.int64)
        counts = np.diff(self.begin)[rows]
        begin = np.cumsum([0, *counts])
        ends = np.repeat(self.begin[rows] - begin[:-1], counts) + np.arange(begin[-1])
        return Ends(begin, self.edge[ends], self.position[ends])


class Columns:
    """The ends of all edges, one behind the other: for each edge its producer, then its readers.

    `begin` is the first of each edge, and `edge`, `position` there, `node`, and `name` (what the node
    calls the tensor that it makes or reads) are by end; equal `states` and `table` are one object.
    """

    def __init__(self, problem: Problem, names: dict[str, int] | None = None) -> None:
        """Number operands as `names` does, if given, and go on from there."""
        flat = problem.flat
        first = np.array(flat.first_reader)
        self.begin = first + np.arange(len(first))
        self.counts = np.diff(self.begin)
        self.edge = np.repeat(np.arange(len(first) - 1), self.counts)
        self.position = np.arange(self.begin[-1]) - self.begin[self.edge]
        reads = len(first) - 2 + first[self.edge] + self.position
        at = np.where(self.position == 0, self.edge, reads)
        self.node, self.states = flat.node[at], flat.states_at[at]
        self.table = flat.table_at[self.edge]
        self.names = {} if names is None else names
        number = self.names.setdefault
        operands = [number(name, len(self.names)) for e in problem.edges for name in e.operands]
        self.name = 2 * np.array(operands, dtype=np.int64) + (self.position > 0)

    @property
    def ends(self) -> Ends:
        """Return where these ends are: the same edges and positions."""
        return Ends(self.begin, self.edge, self.position)


def standing_for(whole: Columns, place: Ints, short: Columns) -> Ends:
    """Return at which edges the ends of each edge have those that stand for them; see Shortened."""
    count = 2 * len(whole.names)
    known, wanted = short.node * count + short.name, place[whole.node] * count + whole.name
    order = np.argsort(known, kind="stable")
    found = order[np.searchsorted(known[order], wanted, side="right") - 1]
    there = known[found] == wanted
    return Ends(
        whole.begin,
        np.where(there, short.edge[found], -1),
        np.where(there, short.position[found], -1),
    )


def alike(whole: Columns, ends: Ends, short: Columns, origin: Ints) -> bool:
    """Tell whether the edges that stand for each edge have its prices, states and number of readers.

    `origin` are the ends of the whole problem that those of the shorter one are.
    """
    if (ends.position != whole.position).any():
        return False
    first = short.begin[ends.edge]
    same = short.counts[ends.edge] == whole.counts[whole.edge]
    same &= whole.table[origin[first]] == whole.table
    return bool(same.all()) and bool(
        (whole.states[origin[first + ends.position]] == whole.states).all()
    )
