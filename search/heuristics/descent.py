"""Block coordinate descent from a point: moves of blocks, then of single variables, until none improves.

A block is a layer with what follows it (cells.py); single variables are iterated conditional modes
(evaluator.py). With two variables x, y ∈ {0, 1} that cost 3 at (0, 0), 4 at (0, 1) and (1, 0), 1 at (1,
1), no single variable improves on (0, 0), but the block {x, y} goes from 3 to 1.

Source: AutoDDL §4.4; Besag 1986 (iterated conditional modes).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property

import numpy as np

from autoddl.search.budget import DESCENT, Allowance
from autoddl.search.heuristics.cells import build, single
from autoddl.search.network.cost_network import CostNetwork, Floats, Ints, as_ints
from autoddl.search.network.evaluator import OUT, WAITING, BlockMove, Queue, block_of, descend
from autoddl.search.result import Assignment, Point, SearchOptions

IMPROVEMENT = 1e-9  # relative; smaller differences are rounding
TURNS = 256  # variables between two looks at the clock, which counts them
NO_LIMIT = 1 << 62  # bytes

Key = tuple[int, float]


def replicated(network: CostNetwork) -> Assignment:
    """Return the assignment in which every device does everything: first choices are all B."""
    return Assignment(np.zeros(len(network), dtype=np.int64))


def cheapest(network: CostNetwork) -> Assignment:
    """Return the assignment in which every variable has its cheapest compute."""
    return _least(network, [domain.compute_s for domain in network.variables.domains])


def least_memory(network: CostNetwork) -> Assignment:
    """Return the assignment in which every variable holds the fewest bytes."""
    return _least(network, [domain.memory_bytes for domain in network.variables.domains])


def _least(network: CostNetwork, amounts: Sequence[Floats | Ints]) -> Assignment:
    least = np.array([amount.argmin() for amount in amounts], dtype=np.int64)
    return Assignment(least[network.variables.domain])


def first_points(network: CostNetwork, options: SearchOptions) -> list[Assignment]:
    """Return where a search begins: at what is given, or else a guess; and what always fits."""
    given = [*(options.starts or [cheapest(network)]), replicated(network)]
    return given if options.memory_bytes is None else [*given, least_memory(network)]


class Descent:
    """Descend from given points."""

    def __init__(
        self, network: CostNetwork, *,
        memory_bytes: int | None = None, allowance: Allowance | None = None,
    ) -> None:  # fmt: skip
        self.network = network
        self.limit = NO_LIMIT if memory_bytes is None else memory_bytes
        self.allowance = allowance
        self.free = np.flatnonzero(network.variables.sizes > 1).tolist()
        self.evaluations = 0  # alternatives that were priced

    @cached_property
    def cells(self) -> list[BlockMove]:
        """Return the moves of blocks."""
        return build(self.network)

    def key(self, assignment: Point) -> Key:
        """Return what is minimised: bytes over the limit first, then seconds."""
        seconds, held = self.network.costs(assignment)
        return max(0, held - self.limit), seconds

    def late(self) -> bool:
        """Tell whether the time is up."""
        return self.allowance is not None and self.allowance.over()

    def _count(self, evaluations: float) -> None:
        if self.allowance is not None:
            self.allowance.clock.count(evaluations)

    def disturbed(self, assignment: Point, rng: np.random.Generator) -> Ints:
        """Return a point with one block changed at random."""
        point = as_ints(assignment).copy()
        moves = self.cells or [single(self.network, variable) for variable in self.free]
        if moves:
            move = moves[int(rng.integers(len(moves)))]
            point[move.variables] = move.columns[:, int(rng.integers(move.columns.shape[1]))]
        return point

    def run(self, start: Point) -> Ints:
        """Return the fixed point below `start`: of blocks and of variables."""
        point = as_ints(start).copy()
        while not self.late():
            before = self.key(point)
            self._sweep(point)
            point = self.refine(point)
            if not _better(self.key(point), before):
                break
        return point

    def _sweep(self, point: Ints) -> None:
        """Take the best alternative of each block in turn until none improves."""
        idle, turn, moves = 0, 0, self.cells
        memory = self.network.memory_bytes(point)
        while moves and idle < len(moves) and not self.late():
            move = moves[turn % len(moves)]
            choice, memory = self.choose(point, memory, move)
            idle = 0 if choice is not None else idle + 1
            if choice is not None:
                point[move.variables] = move.columns[:, choice]
            turn += 1

    def refine(self, start: Point, within: Collection[int] | None = None) -> Ints:
        """Descend variable by variable; one is looked at again when a neighbour has changed.

        Only variables `within` some move, if given.
        """
        point = as_ints(start).copy()
        kind = np.full(len(point), OUT)
        ring = np.array([v for v in self.free if within is None or v in within], dtype=np.int64)
        kind[ring] = WAITING
        memory = self.network.memory_bytes(point)
        queue = Queue(ring, kind, np.array([0, len(ring), memory, 0]))
        arrays, incidence = self.network.arrays, self.network.incidence
        while queue.counts[1] and not self.late():
            descend(arrays, incidence, point, queue, self.limit, IMPROVEMENT, TURNS)
            self._count(DESCENT)
        self.evaluations += int(queue.counts[3])
        return point

    def choose(self, point: Ints, memory: int, move: BlockMove) -> tuple[int | None, int]:
        """Return the best alternative of a move, None where none improves, and the memory then."""
        stay = np.append(move.columns, point[move.variables][:, None], axis=1)
        seconds, held = block_of(self.network.arrays, move._replace(columns=stay), point)
        self.evaluations += len(seconds) - 1
        self._count(DESCENT / TURNS * len(seconds))
        after = memory - int(held[-1]) + held
        excess = np.maximum(0, after - self.limit)
        choice = int(np.lexsort((seconds, excess))[0])
        if not _better(
            (int(excess[choice]), float(seconds[choice])), (int(excess[-1]), float(seconds[-1]))
        ):
            return None, memory
        return choice, int(after[choice])


def _better(new: Key, old: Key) -> bool:
    return new[0] < old[0] or (new[0] == old[0] and new[1] < old[1] * (1 - IMPROVEMENT) - 1e-15)
