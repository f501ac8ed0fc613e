"""Descend from a point: moves of cells, of nodes and of forests until none improves."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from copy import copy
from functools import cached_property

import numpy as np

from autoddl.search import cells
from autoddl.search.moves import Move, difference, neighbours, patches, price, single
from autoddl.search.node_moves import OUT, WAITING, Queue, descend
from autoddl.search.problem import Ints, Problem
from autoddl.search.result import Assignment
from autoddl.search.suggest import suggested
from autoddl.search.trees import Forests

IMPROVEMENT = 1e-9  # relative; smaller differences are rounding
# How far above the best a point may be to be worth going on with, after the cells and after the
# nodes: in terms of what both cost beyond the lower bound.
REFINE_WITHIN, POLISH_WITHIN = 3.0, 2.0
PATIENCE = 6  # forests in a row that bring nothing before a point counts as fixed
FORESTS = 60  # and how many there are at most in a row
WORTHWHILE = 1e-5  # relative; what a forest, or another round, has to bring
TURNS = 256  # nodes between two looks at the clock
NO_LIMIT = 1 << 62  # bytes
REACH = 3  # steps from a changed cell within which nodes may follow

Key = tuple[int, float]


def replicated(problem: Problem) -> Assignment:
    """Return the assignment in which every device does everything: first choices are all B."""
    return (0,) * len(problem.nodes)


def cheapest(problem: Problem) -> Assignment:
    """Return the assignment in which every node has its cheapest compute."""
    return _argmin(problem, "compute_s")


def least_memory(problem: Problem) -> Assignment:
    """Return the assignment in which every node holds the fewest bytes."""
    return _argmin(problem, "memory_bytes")


def _argmin(problem: Problem, what: str) -> Assignment:
    """Return where an array of each node is least."""
    columns = problem.node_columns
    least = np.array([getattr(form, what).argmin() for form in columns.forms], dtype=np.int64)
    return tuple(least[columns.form].tolist())


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
        free = np.flatnonzero(problem.flat.count > 1).tolist()
        self.nodes = [node for node in free if node not in frozen]
        self.cells = cells.build(problem) if not frozen else cells.Cells((), ())
        self.forests = Forests(problem, frozen)
        self.priced = [0]  # alternatives, in an object that copies share
        self.least_s = problem.lower_bound_s()  # below which little or nothing is expected

    @cached_property
    def singles(self) -> tuple[Move, ...]:
        """Return the moves of the nodes, each alone."""
        return tuple([single(self.problem, node) for node in self.nodes])

    @property
    def evaluations(self) -> int:
        """Return how many alternatives were priced; a forest counts the choices of its nodes."""
        return self.priced[0] + self.forests.evaluations

    def without_limit(self) -> Descent:
        """Return the same for any amount of memory."""
        loose = copy(self)
        loose.limit = None
        return loose

    def seconds(self, assignment: Iterable[int]) -> float:
        """Return the cost of an assignment, whatever memory it takes."""
        return self.problem.cost_s(tuple(assignment))

    def key(self, assignment: Sequence[int]) -> Key:
        """Return what is minimised: bytes over the limit first, then seconds."""
        return self._excess(self.problem.memory_bytes(assignment)), self.problem.cost_s(assignment)

    def late(self) -> bool:
        """Tell whether the time is up."""
        return self.deadline is not None and time.perf_counter() > self.deadline

    def disturbed(
        self, point: Sequence[int], rng: np.random.Generator
    ) -> tuple[list[int], set[int]]:
        """Change one cell, or all of one kind, at random; return the point and the nodes nearby."""
        moves = (*self.cells.tied, *self.cells.single) or self.singles
        if not moves:
            return list(point), set()
        move = moves[int(rng.integers(len(moves)))]
        near = self._around(move.column)
        return move.apply(point, int(rng.integers(move.size))), near

    def run(
        self,
        start: Sequence[int],
        rng: np.random.Generator,
        best: Sequence[int] | None = None,
    ) -> list[int]:
        """Return the fixed point below `start`; a start that ends far above `best` is not refined."""
        point = list(start)
        while not self.late():
            before = self.key(point)
            point = self.swept(point)
            if self.hopeless(point, best, REFINE_WITHIN):
                return point
            point = self.refine(self._sweep(point, self.cells.single))
            if self.hopeless(point, best, POLISH_WITHIN):
                return point
            point = self.grow(point, rng)
            if not _better(self.key(point), before, WORTHWHILE):
                break
        return point

    def settle(
        self,
        point: Sequence[int],
        rng: np.random.Generator,
        within: Collection[int] | None = None,
    ) -> list[int]:
        """Return the fixed point of single nodes and of forests; only nodes `within` move."""
        return self.grow(self.refine(point, within), rng, within)

    def hopeless(self, point: Sequence[int], best: Sequence[int] | None, within: float) -> bool:
        """Tell whether a point is too far above the best one."""
        if best is None:
            return False
        (excess, seconds), (best_excess, best_s) = self.key(point), self.key(best)
        least = self.least_s
        return excess > best_excess or seconds - least > within * (best_s - least)

    def swept(self, point: Sequence[int]) -> list[int]:
        """Return the fixed point of the cells of one kind together: cheap, and says much of the rest."""
        return self._sweep(list(point), self.cells.tied)

    def suggested(self, end: float) -> list[Assignment]:
        """Return what a lower bound suggests by `end`; points are hopeless by that bound from now on."""
        known_s = self.problem.cost_s(cheapest(self.problem))
        found = suggested(self.problem, known_s, lambda: time.perf_counter() > end)
        for start in found.starts[:1]:
            least_s = (1 - found.gap) * self.problem.cost_s(start)
            self.least_s = max(self.least_s, least_s) if np.isfinite(least_s) else self.least_s
        return [*found.starts]

    def crossed(
        self, point: list[int], other: Sequence[int], rng: np.random.Generator
    ) -> list[int]:
        """Return the best of two fixed points, part by part of where they differ, and settle there."""
        best, rest = (point, other) if self.key(point) <= self.key(other) else (other, point)
        crossed, memory, near = list(best), self.problem.memory_bytes(best), set[int]()
        for patch in patches(self.problem, best, rest):
            choice, memory = self._choose(crossed, memory, patch)
            if choice is not None:
                crossed = patch.apply(crossed, choice)
                near |= patch.column.keys()
        if not near or self.late():
            return crossed
        return self.settle(crossed, rng, self._around(near))

    def _around(self, nodes: Collection[int]) -> set[int]:
        """Return the nodes and those that a change of them may reach."""
        near = set(nodes)
        for _ in range(REACH):
            near |= {other for node in near for other in neighbours(self.problem, node)}
        return near

    def _sweep(self, point: list[int], moves: Sequence[Move]) -> list[int]:
        """Take the best alternative of each move in turn until none improves."""
        idle, turn = 0, 0
        memory = self.problem.memory_bytes(point)
        while moves and idle < len(moves) and not self.late():
            move = moves[turn % len(moves)]
            choice, memory = self._choose(point, memory, move)
            idle = 0 if choice is not None else idle + 1
            point = point if choice is None else move.apply(point, choice)
            turn += 1
        return point

    def refine(self, point: Sequence[int], within: Collection[int] | None = None) -> list[int]:
        """Descend node by node; a node is looked at again when a neighbour has changed."""
        flat = self.problem.flat
        found, kind = np.array(point, dtype=np.int64), np.full(len(point), OUT)
        nodes = [n for n in self.nodes if within is None or n in within]
        ring = np.array(nodes, dtype=np.int64)
        kind[ring] = WAITING
        memory = self.problem.memory_bytes(point)
        queue = Queue(ring, kind, np.array([0, len(nodes), memory, 0]))
        limit = NO_LIMIT if self.limit is None else self.limit
        while queue.counts[1] and not self.late():
            descend(flat.network, flat.touching, found, queue, limit, IMPROVEMENT, TURNS)
        self.priced[0] += int(queue.counts[3])
        best: list[int] = found.tolist()
        return best

    def _choose(self, point: list[int], memory: int, move: Move) -> tuple[int | None, int]:
        """Return the best alternative of a move, None where none improves, and the memory then."""
        seconds, held = price(self.problem, point, move.or_stay(point))
        self.priced[0] += move.size
        after = memory - int(held[-1]) + held
        excess = self._all_excess(after)
        candidates = np.flatnonzero(excess == excess.min())
        choice = int(candidates[seconds[candidates].argmin()])
        if not _better(
            (int(excess[choice]), float(seconds[choice])), (int(excess[-1]), float(seconds[-1]))
        ):
            return None, memory
        return choice, int(after[choice])

    def grow(
        self,
        point: list[int],
        rng: np.random.Generator,
        within: Collection[int] | None = None,
    ) -> list[int]:
        """Improve by forests; where memory binds, bytes get a price that is adapted on the way."""
        seconds, memory = self.problem.costs(point)
        scale = seconds if np.isfinite(seconds) else self.problem.lower_bound_s()
        idle, byte_s, least = 0, 0.0, 1e-3 * scale / max(1, memory)
        for _ in range(FORESTS):
            if idle == PATIENCE or self.late():
                break
            found = self.forests.improve(point, rng, byte_s=byte_s, within=within)
            more_s, more_bytes = difference(self.problem, point, found)
            old, new = self._excess(memory), self._excess(memory + more_bytes)
            worthwhile = new < old or (new == old and more_s < -WORTHWHILE * seconds)
            idle = 0 if worthwhile else idle + 1
            if (new, more_s) <= (old, 0.0):
                point, seconds, memory = found, seconds + more_s, memory + more_bytes
            if new > 0:
                byte_s = max(2 * byte_s, least)
            elif byte_s > 0:
                byte_s = byte_s / 2 if byte_s > least else 0.0
        return point

    def _excess(self, memory: int) -> int:
        return 0 if self.limit is None else max(0, memory - self.limit)

    def _all_excess(self, memory: Ints) -> Ints:
        return np.maximum(0, memory - self.limit) if self.limit is not None else 0 * memory


def _better(new: Key, old: Key, relative: float = IMPROVEMENT) -> bool:
    return new[0] < old[0] or (new[0] == old[0] and new[1] < old[1] * (1 - relative) - 1e-15)
