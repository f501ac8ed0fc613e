"""Moves: change several nodes at once, all alternatives of a move priced together with NumPy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from autoddl.search.problem import Edge, Floats, Ints, Problem

if TYPE_CHECKING:
    from autoddl.search.flat import Point


@dataclass(frozen=True, eq=False)
class Move:
    """Alternatives for some nodes: alternative k sets each node to the k-th entry of its column.

    Nodes that always move alike share one column object, which lets equal edges be priced once.
    """

    columns: tuple[tuple[int, Ints], ...]

    @cached_property
    def column(self) -> dict[int, Ints]:
        """Return the column of every node that moves."""
        return dict(self.columns)

    @property
    def size(self) -> int:
        """Return the number of alternatives."""
        return len(self.columns[0][1])

    def apply(self, assignment: Sequence[int], alternative: int) -> list[int]:
        """Return the assignment after taking one alternative."""
        changed = list(assignment)
        for node, column in self.columns:
            changed[node] = int(column[alternative])
        return changed

    def or_stay(self, assignment: Sequence[int]) -> Move:
        """Return this move with one more alternative at the end: to leave everything as it is."""
        shared: dict[tuple[int, int], Ints] = {}
        columns = []
        for node, column in self.columns:
            key = id(column), assignment[node]
            if key not in shared:
                shared[key] = np.append(column, assignment[node])
            columns.append((node, shared[key]))
        return Move(tuple(columns))


def single(problem: Problem, node: int) -> Move:
    """Return the move of one node over all its choices."""
    return Move(((node, np.arange(len(problem.nodes[node].choices))),))


def price(problem: Problem, assignment: Sequence[int], move: Move) -> tuple[Floats, Ints]:
    """Return (seconds, bytes) of everything that `move` touches, one entry per alternative.

    The rest of the cost does not depend on the move, so differences between entries are exact.
    """
    seconds = np.zeros(move.size)
    memory = np.zeros(move.size, dtype=np.int64)
    edges: dict[int, None] = {}
    for index, column in move.columns:
        node = problem.nodes[index]
        seconds += node.compute_s[column]
        memory += node.memory_bytes[column]
        edges.update(dict.fromkeys(problem.touching[index]))
    known: dict[tuple[object, ...], Floats] = {}
    for index in edges:
        edge = problem.edges[index]
        key = _key(edge, assignment, move)
        if key not in known:
            known[key] = _edge_seconds(edge, assignment, move)
        seconds += known[key]
    return seconds, memory


def _key(edge: Edge, assignment: Sequence[int], move: Move) -> tuple[object, ...]:
    """Identify an edge up to equal tables, state arrays and columns."""
    column = move.column
    parts: list[object] = [id(edge.table)]
    for node, states in ((edge.producer, edge.source), *edge.readers):
        parts.append(id(states))
        parts.append(id(column[node]) if node in column else ~assignment[node])
    return tuple(parts)


def _edge_seconds(edge: Edge, assignment: Sequence[int], move: Move) -> Floats:
    column, cost = move.column, edge.table.cost
    if edge.producer in column:
        rows = cost[edge.source[column[edge.producer]]]
    else:
        rows = cost[edge.source[assignment[edge.producer]]][None, :]
    wanted = np.zeros((move.size, cost.shape[0]), dtype=bool)
    every = np.arange(move.size)
    for node, states in edge.readers:
        if node in column:
            wanted[every, states[column[node]]] = True
        else:
            wanted[:, states[assignment[node]]] = True
    total: Floats = np.where(wanted, rows, 0.0).sum(axis=1)
    return total


def difference(
    problem: Problem, assignment: Sequence[int], other: Sequence[int]
) -> tuple[float, int]:
    """Return (seconds, bytes) that `other` costs more than `assignment`."""
    pairs = zip(range(len(problem.nodes)), assignment, other, strict=True)
    columns = tuple((node, np.array([a, b])) for node, a, b in pairs if a != b)
    if not columns:
        return 0.0, 0
    seconds, memory = price(problem, assignment, Move(columns))
    before, after = float(seconds[0]), float(seconds[1])
    return 0.0 if before == after else after - before, int(memory[1] - memory[0])  # or infinite


def neighbours(problem: Problem, node: int) -> list[int]:
    """Return the nodes that share a tensor with a node."""
    found: dict[int, None] = {}
    for index in problem.touching[node]:
        edge = problem.edges[index]
        found.update(dict.fromkeys((edge.producer, *(n for n, _ in edge.readers))))
    found.pop(node, None)
    return list(found)


def patches(problem: Problem, assignment: Sequence[int], other: Sequence[int]) -> list[Move]:
    """Return the moves that make an assignment another one: nodes that share tensors move together.

    What one of them costs does not depend on the others, as they share no tensor.
    """
    goal = np.array(other, dtype=np.int64)
    found: defaultdict[int, list[tuple[int, Ints]]] = defaultdict(list)
    apart = parted(problem, assignment, goal)
    for node, part in zip(apart.nodes.tolist(), apart.part.tolist(), strict=True):
        found[part].append((node, goal[node : node + 1]))
    return [Move(tuple(found[part])) for part in range(apart.count)]


@dataclass(frozen=True, eq=False)
class Parts:
    """Where two assignments differ: `nodes` that do, and the `edges` that any of these touch.

    `part` and `edge_part` number the parts that share no tensor, in the order of their first nodes.
    """

    nodes: Ints
    part: Ints
    edges: Ints
    edge_part: Ints

    @property
    def count(self) -> int:
        """Return how many there are."""
        return int(self.part.max(initial=-1)) + 1

    def sums(self, by_node: Floats | Ints, by_edge: Floats | None = None) -> Floats:
        """Return the sum of what nodes, and edges, have in each part."""
        found = np.bincount(self.part, weights=by_node[self.nodes], minlength=self.count)
        if by_edge is not None:
            found += np.bincount(self.edge_part, by_edge[self.edges], minlength=self.count)
        return np.asarray(found, dtype=np.float64)


def parted(problem: Problem, assignment: Point, other: Point) -> Parts:
    """Return the parts in which two assignments differ."""
    net = problem.flat.network
    differ = np.asarray(assignment) != np.asarray(other)
    nodes, ends = np.flatnonzero(differ), np.flatnonzero(differ[net.node])
    edge, node = np.searchsorted(net.begin, ends, side="right") - 1, net.node[ends]
    edges, first, at = np.unique(edge, return_index=True, return_inverse=True)
    least = np.arange(len(differ))  # the first node that each is known to be in one part with
    while len(edges):
        known = least[node]
        found = np.minimum.reduceat(known, first)[at]
        if (found == known).all():
            break
        np.minimum.at(least, known, found)
        while (least[least] != least).any():
            least = least[least]
    _, part = np.unique(least[nodes], return_inverse=True)
    number = np.full(len(differ), -1)
    number[nodes] = part
    return Parts(nodes, part, edges, number[node[first]])
