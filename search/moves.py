"""Moves: change several nodes at once, all alternatives of a move priced together with NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autoddl.search.problem import Edge, Floats, Ints, Problem


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
    differ = {i for i, pair in enumerate(zip(assignment, other, strict=True)) if pair[0] != pair[1]}
    found = []
    while differ:
        part = [min(differ)]
        differ.discard(part[0])
        for node in part:  # grows while it is walked
            beside = differ.intersection(neighbours(problem, node))
            part += sorted(beside)
            differ -= beside
        found.append(Move(tuple((node, np.array([other[node]])) for node in part)))
    return found
