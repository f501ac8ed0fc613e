"""Coordinate descent with restarts (AutoDDL §4.4), on three scales.

A coordinate is a move: all cells of one kind together, one cell, or one node; in turn each takes its
best alternative with everything else fixed. At a fixed point the search restarts from another point:
the given starts first, then random signatures for each kind of cell.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from autoddl.search import cells
from autoddl.search.moves import Move, price, single
from autoddl.search.problem import Floats, Ints, Problem
from autoddl.search.result import Assignment, SearchResult

IMPROVEMENT = 1e-9  # relative; smaller differences are rounding
POLISH_WITHIN = 1.3  # restarts that end further above the best are not refined node by node

Progress = Callable[[float, float], None]


def search(
    problem: Problem,
    *,
    budget: float = 20.0,
    seed: int = 0,
    restarts: int = 8,
    memory_bytes: int | None = None,
    starts: Iterable[Assignment] = (),
    progress: Progress | None = None,
) -> SearchResult:
    """Return the best assignment of `restarts` descents, or of those that fit into `budget` seconds.

    `memory_bytes` limits the memory per device. `progress(elapsed_s, best_cost_s)` is called after
    every descent.

    Raises:
        InfeasibleError: no assignment fits into `memory_bytes`.
    """
    problem.check_memory(memory_bytes)
    begin = time.perf_counter()
    descent = Descent(problem, memory_bytes=memory_bytes, deadline=begin + budget)
    rng = np.random.default_rng(seed)
    best: list[int] | None = None
    trace: list[tuple[float, float]] = []
    first = [*starts, least_memory(problem) if memory_bytes is not None else cheapest(problem)]
    for number in range(max(restarts, len(first))):
        if best is not None and time.perf_counter() > begin + budget:
            break
        start = first[number] if number < len(first) else descent.random_start(rng)
        found = descent.run(start, best)
        if best is None or descent.key(found) < descent.key(best):
            best = found
        trace.append((time.perf_counter() - begin, problem.cost_s(best)))
        if progress is not None:
            progress(*trace[-1])
    assert best is not None
    return SearchResult(
        "coordinate",
        tuple(best),
        problem.cost_s(best),
        problem.lower_bound_s(),
        problem.memory_bytes(best),
        tuple(trace),
    )


def cheapest(problem: Problem) -> Assignment:
    """Return the assignment in which every node has its cheapest compute."""
    return tuple(int(node.compute_s.argmin()) for node in problem.nodes)


def least_memory(problem: Problem) -> Assignment:
    """Return the assignment in which every node holds the fewest bytes."""
    return tuple(int(node.memory_bytes.argmin()) for node in problem.nodes)


class Descent:
    """Descend from given points; `frozen` nodes never move."""

    def __init__(
        self,
        problem: Problem,
        *,
        memory_bytes: int | None = None,
        deadline: float | None = None,
        frozen: frozenset[int] = frozenset(),
    ) -> None:
        self.problem = problem
        self.limit = memory_bytes
        self.deadline = deadline
        self.frozen = frozen
        self.nodes = [
            i for i, n in enumerate(problem.nodes) if len(n.choices) > 1 and i not in frozen
        ]
        self.singles = {node: single(problem, node) for node in self.nodes}
        self.cells = cells.build(problem) if not frozen else cells.Cells((), ())

    def key(self, assignment: Sequence[int]) -> tuple[int, float]:
        """Return what is minimised: bytes over the limit first, then seconds."""
        excess = 0
        if self.limit is not None:
            excess = max(0, self.problem.memory_bytes(assignment) - self.limit)
        return excess, self.problem.cost_s(assignment)

    def random_start(self, rng: np.random.Generator) -> Assignment:
        """Return a point with a random signature for every kind of cell."""
        start = list(cheapest(self.problem))
        for move in self.cells.tied:
            start = move.apply(start, int(rng.integers(move.size)))
        if not self.cells.tied:
            for node in self.nodes:
                start[node] = int(rng.integers(len(self.problem.nodes[node].choices)))
        return tuple(start)

    def run(self, start: Sequence[int], best: Sequence[int] | None = None) -> list[int]:
        """Return the fixed point below `start`; a start that ends far above `best` is not refined."""
        point = list(start)
        while not self._late():
            before = self.key(point)
            point = self._sweep(point, self.cells.tied)
            reference = self.key(best) if best is not None else None
            excess, seconds = self.key(point)
            if reference and (excess > reference[0] or seconds > POLISH_WITHIN * reference[1]):
                return point
            point = self._sweep(point, self.cells.single)
            point = self._refine(point)
            if not self._better(self.key(point), before):
                break
        return point

    def _sweep(self, point: list[int], moves: Sequence[Move]) -> list[int]:
        """Take the best alternative of each move in turn until none improves."""
        idle, turn = 0, 0
        while moves and idle < len(moves) and not self._late():
            changed = self._take(point, moves[turn % len(moves)])
            idle = 0 if changed is not None else idle + 1
            point = changed if changed is not None else point
            turn += 1
        return point

    def _refine(self, point: list[int]) -> list[int]:
        """Descend node by node; a node is looked at again when a neighbour has changed."""
        queue, waiting = deque(self.nodes), set(self.nodes)
        while queue and not self._late():
            node = queue.popleft()
            waiting.discard(node)
            changed = self._take(point, self.singles[node])
            if changed is None:
                continue
            point = changed
            for index in self.problem.touching[node]:
                edge = self.problem.edges[index]
                for other in (edge.producer, *(n for n, _ in edge.readers)):
                    if other in self.singles and other not in waiting and other != node:
                        queue.append(other)
                        waiting.add(other)
        return point

    def _take(self, point: list[int], move: Move) -> list[int] | None:
        """Return the point after the best alternative of a move, or None where none is better."""
        here = Move(tuple((n, np.array([point[n]])) for n, _ in move.columns))
        now_s, now_bytes = price(self.problem, point, here)
        seconds, memory = price(self.problem, point, move)
        rest = 0
        if self.limit is not None:
            rest = self.problem.memory_bytes(point) - int(now_bytes[0])
        excess = self._excess(memory + rest)
        candidates = np.flatnonzero(excess == excess.min())
        choice = int(candidates[seconds[candidates].argmin()])
        now = (int(self._excess(now_bytes + rest)[0]), float(now_s[0]))
        if not self._better((int(excess[choice]), float(seconds[choice])), now):
            return None
        return move.apply(point, choice)

    def _excess(self, memory: Ints) -> Ints:
        if self.limit is None:
            return np.zeros_like(memory)
        return np.maximum(0, memory - self.limit)

    @staticmethod
    def _better(new: tuple[int, float], old: tuple[int, float]) -> bool:
        return new[0] < old[0] or (new[0] == old[0] and new[1] < old[1] * (1 - IMPROVEMENT) - 1e-15)

    def _late(self) -> bool:
        return self.deadline is not None and time.perf_counter() > self.deadline


__all__ = ["Descent", "Floats", "cheapest", "least_memory", "search"]
