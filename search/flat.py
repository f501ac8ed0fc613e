"""The arrays of all nodes and edges of a problem one behind the other, to price assignments at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autoddl.search.node_moves import Network, Touching, priced

if TYPE_CHECKING:
    from autoddl.search.columns import EdgeColumns, Floats, Ints, NodeColumns

    Point = Sequence[int] | Ints

KNOWN = 64  # assignments of which the costs are kept: searches begin at those of others


class Flat:
    """Price assignments: what every node and every edge costs under one, as arrays.

    Arrays that nodes or edges share are held once. An end is where a node makes or reads an edge's
    tensor: first the producers of all edges in turn, then the readers of all edges.
    """

    def __init__(self, nodes: NodeColumns, edges: EdgeColumns) -> None:
        forms = nodes.forms
        self.count = np.array([len(form.choices) for form in forms], dtype=np.int64)[nodes.form]
        self._compute, self._compute_at = _joined([f.compute_s for f in forms], nodes.form)
        self._memory, self._memory_at = _joined([f.memory_bytes for f in forms], nodes.form)
        readers = np.diff(edges.begin) - 1
        self._count = len(readers)
        self._edge = np.repeat(np.arange(self._count), readers)  # of every reader
        producer = np.zeros(len(edges.node), dtype=np.bool_)
        producer[edges.begin[:-1]] = True
        ends = np.concatenate((np.flatnonzero(producer), np.flatnonzero(~producer)))
        self._states, self.states_at = _joined(edges.arrays, edges.states[ends])
        self.node = edges.node[ends]
        self.first_reader = np.concatenate(([0], readers.cumsum()))
        self._cost, self.table_at = _joined([table.cost for table in edges.tables], edges.table)
        sizes = np.array([len(table.cost) for table in edges.tables], dtype=np.int64)
        self.size = sizes[edges.table]
        self._known: dict[tuple[int, ...], tuple[float, float, int]] = {}

    def costs(self, assignment: Sequence[int]) -> tuple[float, float, int]:
        """Return the seconds of compute and of redistributions, and the bytes, all nodes together."""
        if not isinstance(assignment, tuple):
            return priced(self.network, _array(assignment))
        found = self._known.get(assignment)
        if found is None:
            if len(self._known) == KNOWN:
                del self._known[next(iter(self._known))]  # the oldest
            found = self._known[assignment] = priced(self.network, _array(assignment))
        return found

    def compute_s(self, assignment: Point) -> Floats:
        """Return the compute seconds of every node."""
        return np.asarray(self._compute[self._compute_at + _array(assignment)])

    def memory_bytes(self, assignment: Point) -> Ints:
        """Return the bytes of every node."""
        return np.asarray(self._memory[self._memory_at + _array(assignment)])

    def states(self, assignment: Point) -> tuple[Ints, Ints]:
        """Return the states of the edges' tensors, and those that their readers want."""
        found: Ints = self._states[self.states_at + _array(assignment)[self.node]]
        return found[: self._count], found[self._count :]

    def paid(self, assignment: Point) -> tuple[Ints, Ints, Ints, Ints]:
        """Return the readers that want another state than the producer makes, edge by edge.

        They are numbered over all edges; with their edges, the state that is made, and the wanted one.
        """
        source, wanted = self.states(assignment)
        reader = np.flatnonzero(wanted != source[self._edge])
        edge = self._edge[reader]
        return reader, edge, source[edge], wanted[reader]

    def payments(self, assignment: Point) -> tuple[Ints, Floats]:
        """Return the nodes that are the first to want a tensor in another state, and what that costs."""
        reader, edge, source, wanted = self.paid(assignment)
        most = int(self.size.max(initial=1))
        first = np.sort(np.unique(edge * most + wanted, return_index=True)[1])
        edge = edge[first]
        at = self.table_at[edge] + source[first] * self.size[edge] + wanted[first]
        return self.node[self._count + reader[first]], self._cost[at]

    def communication_s(self, assignment: Point) -> Floats:
        """Return the redistribution seconds of every edge: once per wanted state."""
        _, edge, source, wanted = self.paid(assignment)
        most = int(self.size.max(initial=1))
        pairs, first = np.unique(edge * most + wanted, return_index=True)
        edge, wanted = np.divmod(pairs, most)
        seconds = self._cost[self.table_at[edge] + source[first] * self.size[edge] + wanted]
        return np.asarray(np.bincount(edge, weights=seconds, minlength=self._count), dtype=float)

    def redistributed(self, assignment: Sequence[int]) -> list[int]:
        """Return the edges of which some reader wants another state than the producer makes."""
        found: list[int] = np.unique(self.paid(assignment)[1]).tolist()
        return found

    @cached_property
    def network(self) -> Network:
        """Return the same arrays, the ends of each edge together."""
        begin = self.first_reader + np.arange(self._count + 1)
        edge = np.repeat(np.arange(self._count), np.diff(begin))
        end = np.arange(begin[-1])
        end = np.where(end == begin[edge], edge, self._count - 1 + end - edge)
        return Network(
            self.count,
            self._compute,
            self._compute_at,
            self._memory,
            self._memory_at,
            begin,
            self.node[end],
            self._states,
            self.states_at[end],
            np.asarray(self._cost, dtype=np.float64),
            self.table_at,
            self.size,
        )

    @cached_property
    def touching(self) -> Touching:
        """Return the edges of every node, in ascending order."""
        edge, count = np.concatenate((np.arange(self._count), self._edge)), self._count + 1
        node, edge = np.divmod(np.unique(self.node * count + edge), count)
        return Touching(np.searchsorted(node, np.arange(len(self.count) + 1)), edge)


def _array(assignment: Point) -> Ints:
    return np.asarray(assignment, dtype=np.int64)


def _joined(arrays: Sequence[npt.NDArray[Any]], numbers: Ints) -> tuple[npt.NDArray[Any], Ints]:
    """Return all arrays one behind the other, equal objects once, and where each of some begins."""
    once = {id(array): array for array in arrays}
    begins = np.cumsum([0, *[array.size for array in once.values()]]).tolist()
    begin = dict(zip(once, begins, strict=False))
    held = [array.reshape(-1) for array in once.values()]
    joined = np.concatenate(held) if held else np.zeros(0, dtype=np.int64)
    return joined, np.array([begin[id(array)] for array in arrays], dtype=np.int64)[numbers]
