"""Coordinate descent with restarts (AutoDDL §4.4), on four scales.

A coordinate is a move: all cells of one kind together, one cell, one node, or a forest of nodes at
once; in turn each takes its best alternative with everything else fixed. At a fixed point the search
starts again: from the given starts and what a lower bound suggests (suggest.py), the best first, then
from the best point with one cell changed at random. Each connected part of what a new fixed point has
in another way than the best one is a coordinate, too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from copy import copy
from dataclasses import replace

import numpy as np

from autoddl.search import cells
from autoddl.search.moves import Move, difference, neighbours, patches, price, single
from autoddl.search.problem import Floats, Ints, Problem
from autoddl.search.result import Assignment, Progress, SearchResult
from autoddl.search.suggest import suggested
from autoddl.search.trees import Forests

IMPROVEMENT = 1e-9  # relative; smaller differences are rounding
# How far above the best a point may be to be worth going on with, after the cells and after the
# nodes: in terms of what both cost beyond the lower bound.
REFINE_WITHIN, POLISH_WITHIN = 3.0, 2.0
PATIENCE = 6  # forests in a row that bring nothing before a point counts as fixed
FORESTS = 60  # and how many there are at most in a row
WORTHWHILE = 1e-5  # relative; what a forest, or another round, has to bring
RESTARTS = 256  # at most
# Restarts in a row without improvement that end a search: one for so many nodes, within these limits.
STAGNATION, STAGNATION_MOST, NODES_EACH = 24, 64, 32
SUGGESTING = 0.5  # so much of the budget may it take to suggest starts
REACH = 3  # steps from a changed cell within which nodes may follow

Key = tuple[int, float]


def search(
    problem: Problem,
    *,
    budget: float = 20.0,
    seed: int = 0,
    restarts: int | None = None,
    memory_bytes: int | None = None,
    stop_gap: float = 0.0,
    starts: Iterable[Assignment] = (),
    progress: Progress | None = None,
    suggests: bool = True,
    least_s: float = 0.0,
) -> SearchResult:
    """Return the best assignment of `restarts` descents, or of those that fit into `budget` seconds.

    By default it goes on until restarts no longer help. The result is never worse than any of
    `starts`, nor than no parallelism at all. A lower bound `suggests` other starts, if it may;
    `least_s` is one that is known. `memory_bytes` limits the memory per device.
    `progress(elapsed_s, best_cost_s)` is called after every descent. The same seed gives the same
    result unless the budget ends the search, or a part of it (SUGGESTING) the suggestions.

    Raises:
        InfeasibleError: no assignment fits into `memory_bytes`.
    """
    problem.check_memory(memory_bytes)
    begin = time.perf_counter()
    descent = Descent(problem, memory_bytes=memory_bytes, deadline=begin + budget)
    descent.least_s = max(descent.least_s, least_s)
    rng = np.random.default_rng(seed)
    first: list[Sequence[int]] = [*starts] or [cheapest(problem)]
    first += [replicated(problem), *([] if memory_bytes is None else [least_memory(problem)])]
    if suggests:
        first += descent.suggested(begin + SUGGESTING * budget)
    first.sort(key=descent.key)
    best = ideal = list(first[0])
    first = sorted(map(descent.without_limit().swept, first), key=descent.key)
    trace = [(time.perf_counter() - begin, problem.cost_s(best))]
    most = len(first) + RESTARTS if restarts is None else max(restarts, len(first))
    patience = min(STAGNATION_MOST, max(STAGNATION, len(problem.nodes) // NODES_EACH))
    idle = 0
    for number in range(most):
        stagnant = restarts is None and idle == patience
        if descent.late() or stagnant or problem.near(problem.cost_s(best), stop_gap):
            break
        if number < len(first):
            found, ideal = _descended(descent, first[number], best, ideal, rng)
        else:
            found = _restarted(descent, best, ideal, number, rng)
        found = descent.crossed(found, best, rng)
        idle += number >= len(first)
        if descent.key(found) < descent.key(best):
            best, idle = found, 0
        trace.append((time.perf_counter() - begin, problem.cost_s(best)))
        if progress is not None:
            progress(*trace[-1])
    return replace(
        problem.result("coordinate", best),
        trace=tuple(trace),
        evaluations=len(first) + descent.evaluations,
    )


def _descended(
    descent: Descent,
    start: Sequence[int],
    best: list[int],
    ideal: list[int],
    rng: np.random.Generator,
) -> tuple[list[int], list[int]]:
    """Return the fixed point below a start, and the best one so far for any amount of memory.

    Where memory binds the way leads through the latter: a start that is made to fit at once loses
    what made it good.
    """
    loose = descent.without_limit()
    found = loose.run(start, rng, ideal)
    ideal = found if loose.key(found) < loose.key(ideal) else ideal
    if descent.key(found)[0] > 0 and not loose.hopeless(found, best, REFINE_WITHIN):
        found = descent.run(descent.grow(found, rng), rng, best)
    return found, ideal


def _restarted(
    descent: Descent, best: list[int], ideal: list[int], number: int, rng: np.random.Generator
) -> list[int]:
    """Return another fixed point: near the best one, or in turn from the ideal one made to fit."""
    if number % 2 and descent.key(ideal)[0] > 0:
        return descent.settle(descent.grow(ideal, rng), rng)
    start, near = descent.disturbed(best, rng)
    return descent.settle(start, rng, near)


def replicated(problem: Problem) -> Assignment:
    """Return the assignment in which every device does everything: first choices are all B."""
    return (0,) * len(problem.nodes)


def cheapest(problem: Problem) -> Assignment:
    """Return the assignment in which every node has its cheapest compute."""
    return _argmin([node.compute_s for node in problem.nodes])


def least_memory(problem: Problem) -> Assignment:
    """Return the assignment in which every node holds the fewest bytes."""
    return _argmin([node.memory_bytes for node in problem.nodes])


def _argmin(arrays: Sequence[Floats | Ints]) -> Assignment:
    """Return where each array is least; in those that nodes share it is looked for once."""
    once = {id(array): array for array in arrays}
    least = {key: int(array.argmin()) for key, array in once.items()}
    return tuple([least[id(array)] for array in arrays])


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
        self.nodes = [
            i for i, n in enumerate(problem.nodes) if len(n.choices) > 1 and i not in frozen
        ]
        self.singles = {node: single(problem, node) for node in self.nodes}
        self.cells = cells.build(problem) if not frozen else cells.Cells((), ())
        self.forests = Forests(problem, frozen)
        self.priced = [0]  # alternatives, in an object that copies share
        self.least_s = problem.lower_bound_s()  # below which little or nothing is expected

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
        moves = (*self.cells.tied, *self.cells.single) or tuple(self.singles.values())
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
        point = list(point)
        memory = self.problem.memory_bytes(point)
        queue = deque(n for n in self.nodes if within is None or n in within)
        allowed, waiting = frozenset(queue), set(queue)
        while queue and not self.late():
            node = queue.popleft()
            waiting.discard(node)
            choice, memory = self._choose(point, memory, self.singles[node])
            if choice is None:
                continue
            point[node] = choice
            fresh = [n for n in neighbours(self.problem, node) if n in allowed and n not in waiting]
            queue += fresh
            waiting.update(fresh)
        return point

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
        seconds, memory = self.problem.cost_s(point), self.problem.memory_bytes(point)
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


__all__ = ["Descent", "cheapest", "least_memory", "replicated", "search"]
