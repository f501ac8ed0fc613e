"""Search for the shortest step in which ops and boxings overlap, with a bound on that step.

Candidates are the assignment of least compute plus communication, the given starts, by turns those that
are cheapest with the weights of critical paths (critical_path.py) and those behind the bound
(step_bound.py), and what becomes of the best if equal layers take another choice (layer_moves.py), or
some layers all the choices that they have in another candidate (crossings.py). A simulation judges
them. While that leads to something another round begins at the best step so far. The networks are
solved by a solver of cost networks, whichever it is.

    24 layers of GPT on 4x8: least sum 180 ms, its step 130 ms → what its critical path does not have
    counts less: sum 193 ms, step 103 ms → moves → 101.1 ms; no step takes less than 100.6 ms.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from autoddl.errors import InfeasibleError
from autoddl.perfmodel.timeline import StepTimeline
from autoddl.search.budget import MACHINE, SIMULATION, Allowance
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.result import DEFAULTS, Assignment, SearchOptions, SearchResult
from autoddl.search.step import tuning
from autoddl.search.step.bound_network import StepBounds
from autoddl.search.step.critical_path import PathWeights, critical_prices
from autoddl.search.step.crossings import Crossings
from autoddl.search.step.dependency_path import DependencyPath
from autoddl.search.step.layer_moves import LayerMoves, in_turn, moved, ranked
from autoddl.search.step.step_bound import StepBound

Solver = Callable[[CostNetwork, SearchOptions], SearchResult]

OVER = object()  # in place of a turn


class Judged(Protocol):
    """An assignment whose step is simulated."""

    @property
    def assignment(self) -> Assignment:
        """Return what it is."""

    @property
    def step_s(self) -> float:
        """Return the seconds of the step."""

    @property
    def timeline(self) -> StepTimeline:
        """Return when everything runs."""

    @property
    def memory_bytes(self) -> int:
        """Return all bytes on the device that needs most."""


class StepSearch:
    """The search of one network; `judge` tells what a plan takes.

    The best one is the fastest of those whose whole memory is within `limit` bytes, or if there is none,
    that with the least. The limit `binds` if something faster does not fit. What is known is kept from
    one search to the next, which may be under another limit of the memory that can be summed up.
    """

    def __init__(
        self,
        network: CostNetwork,
        solver: Solver,
        judge: Callable[[Assignment], Judged],
        limit: int | None = None,
    ) -> None:
        self.network, self.solver, self.judge, self.limit = network, solver, judge, limit
        levels = {axis.level for axis in network.mesh.axes}
        # Where messages share launches a step is less than the sum, too.
        shares = network.setting.queue is not None
        self._overlaps = shares or any(map(network.profile.overlapped, levels))
        self.best: Judged | None = None
        self.bound_s, self.fastest_s = network.lower_bound_s(), math.inf
        self.trace: list[tuple[float, float]] = []
        self.evaluations = 0
        self._seen: set[Assignment] = set()
        # Those of them that are more than a move away from others, in the order in which they came.
        self._candidates: dict[Assignment, None] = {}
        # The best one and the bound after the last round.
        self._known: tuple[Judged | None, float] = None, 0.0
        self._options, self._allowance = DEFAULTS, Allowance.of(MACHINE, 0.0)
        self._candidates_end_s = self._moves_end_s = 0.0  # since the begin, of this round

    @property
    def binds(self) -> bool:
        """Tell whether something faster than the best one is known, which does not fit."""
        return self.fastest_s < self._best_s()

    def search(self, options: SearchOptions = DEFAULTS) -> SearchResult:
        """Return the best assignment, with its step as the cost, and a bound on the steps of all.

        Options are those of solvers. The bound is that of the first search.

        Raises:
            InfeasibleError: no assignment fits into `options.memory_bytes`.
        """
        self._options, again = options, self.best is not None
        self._allowance = Allowance.of(options.clock, options.budget)
        first = self._solved(self.network, options, tuning.FIRST * options.budget)
        self._offer(first.assignment)
        # Slower ones are no candidates: crossings with all of them make nine steps 1.4 % longer.
        for start in sorted(options.starts, key=lambda start: self.judge(start).step_s):
            if self.judge(start).step_s < self._best_s():
                self._offer(start)
        if self._overlaps:
            self._candidates_end_s = tuning.CANDIDATES * options.budget
            ways = [] if again else [self._raise_bound()]
            free = self._follow_paths(tuning.FREE)
            self._take_turns([*ways, self._follow_paths(), free])
            self._moves_end_s = self._end_s if again else self._middle_s
            self._move()
            while not again and self._goes_further():
                self._candidates_end_s, self._moves_end_s = self._middle_s, self._end_s
                self._take_turns([self._raise_bound(), self._follow_paths()])
                self._move()
        elif not again:
            self.bound_s = first.lower_bound_s  # the step is the sum
        found = self.best
        assert found is not None
        if options.progress is not None:
            options.progress(self._elapsed_s(), found.step_s)
        return SearchResult(
            first.solver, found.assignment, found.step_s, min(self.bound_s, found.step_s),
            self.network.memory_bytes(found.assignment), tuple(self.trace), self.evaluations,
        )  # fmt: skip

    def _elapsed_s(self) -> float:
        return self._allowance.spent_s()

    def _goes_on(self, until_s: float) -> bool:
        """Tell whether it is not that late, and the gap not as small as is asked for."""
        near = self.bound_s >= (1 - max(self._options.stop_gap, tuning.PROVEN)) * self._best_s()
        return self._elapsed_s() < until_s and not near

    @property
    def _end_s(self) -> float:
        return tuning.MOVES * self._options.budget

    @property
    def _middle_s(self) -> float:
        """Return the middle of what time is left."""
        return (self._elapsed_s() + self._end_s) / 2

    def _goes_further(self) -> bool:
        """Tell whether another round is worth it, as the last one led to something, and there is time."""
        before, self._known = self._known, (self.best, self.bound_s)
        rises = self.bound_s > (1 + tuning.SOLVED) * before[1] or self.best is not before[0]
        return (
            rises and tuning.TRIES * self._gap() > tuning.LEAST_TRIES and self._goes_on(self._end_s)
        )

    def _best_s(self) -> float:
        """Return the best step of those that fit, if any does."""
        return self.best.step_s if self.best is not None and self._fits(self.best) else math.inf

    def _fits(self, one: Judged) -> bool:
        return self.limit is None or one.memory_bytes <= self.limit

    def _offer(self, assignment: Assignment, *, moved: bool = False) -> Judged:
        """Keep an assignment if it is the best so far, and as a candidate if it is not just `moved`."""
        one, best = self.judge(assignment), self.best
        if not moved:
            self._candidates[assignment] = None
        if assignment in self._seen:
            return one
        self._seen.add(assignment)
        self._allowance.clock.count(SIMULATION)
        self.fastest_s = min(self.fastest_s, one.step_s)
        if best is None or self._better(one, best):
            self.best = one
            self.trace.append((self._elapsed_s(), one.step_s))
            if self._options.progress is not None:
                self._options.progress(*self.trace[-1])
        return one

    def _solved(self, network: CostNetwork, options: SearchOptions, seconds: float) -> SearchResult:
        found = self.solver(network, replace(options, budget=seconds))
        self.evaluations += found.evaluations
        return found

    def _roughly(
        self, network: CostNetwork, part: float, *, starts: Collection[Assignment] = ()
    ) -> SearchResult | None:
        """Return what the solver finds in a part of the budget, of what is left for candidates.

        None if that is nothing: less time may be too little for a solver.
        """
        options, budget_s = self._options, self._options.budget
        seconds = max(0.0, min(self._candidates_end_s - self._elapsed_s(), part * budget_s))
        gap = max(options.stop_gap, tuning.SOLVED)
        asked = replace(options, starts=starts, stop_gap=gap, progress=None)
        try:
            return self._solved(network, asked, seconds)
        except InfeasibleError:
            return None

    def _take_turns(self, ways: Sequence[Iterator[None]]) -> None:
        """Let each of some ways look for a candidate, one after the other, again and again."""
        waiting = deque(ways)
        while waiting and self._goes_on(self._candidates_end_s):
            way = waiting.popleft()
            if next(way, OVER) is not OVER:
                waiting.append(way)

    def _follow_paths(self, free: float = 1.0) -> Iterator[None]:
        """Look for better steps, each with the weights of the critical paths so far.

        The first path is that of the best step, or where gradients and parameters move for next to
        nothing (`free`) that of the cheapest assignment then.
        """
        weights, idle = PathWeights(self.network, free), 0
        here = self.best if free == 1.0 else None
        while idle < tuning.PATIENCE:
            if here is not None:
                weights.learn(here.timeline)
            before = self.best
            network = weights.prices().apply(self.network)
            found = self._roughly(network, tuning.ONE, starts=self._options.starts)
            if found is None:
                return
            here = self._offer(found.assignment)
            idle = 0 if self.best is not before else idle + 1
            yield

    def _better(self, one: Judged, other: Judged) -> bool:
        """Tell whether one is better: it fits and is faster, or needs fewer bytes while none fits.

        What all of it needs takes nearly twice as long to tell as its step, so it comes last.
        """
        if self._fits(other):
            return one.step_s < other.step_s and self._fits(one)
        needs = (one.memory_bytes, one.step_s) < (other.memory_bytes, other.step_s)
        return self._fits(one) or needs

    def _move(self) -> None:
        """Take moves of the best one that make its step shorter.

        Those that cost least on the critical path come first: of equal layers and crossings with all
        candidates, of one size after the other, in turn. What was vain before the last better step
        comes behind all others, what is known is passed over.
        """
        idle, vain, here = 0, set[bytes](), None
        moves, crossings = self.network.derived(LayerMoves), self.network.derived(Crossings)
        while self.best is not None and self.best is not here and self._goes_on(self._moves_end_s):
            here = self.best
            most = max(tuning.LEAST_TRIES, round(tuning.TRIES * self._gap()))
            weighted = critical_prices(self.network, here.timeline).apply(self.network)
            single = moves.cheapest(here.assignment, weighted, most + len(vain))
            crossed = crossings.moves(here.assignment, self._candidates, weighted)
            every = in_turn(single, in_turn(*map(ranked, crossed)))
            every.sort(key=lambda move: move.key in vain)  # stable
            for move in every:
                there = moved(here.assignment, move)
                if there in self._seen:
                    continue
                self._offer(there, moved=True)
                idle = 0 if self.best is not here else idle + 1
                if not 0 < idle < most or not self._goes_on(self._moves_end_s):
                    break
                vain.add(move.key)
        if self.best is not None:
            self._candidates[self.best.assignment] = None

    def _gap(self) -> float:
        """Return the most that is to be gained, relatively."""
        return 1 - self.bound_s / self._best_s()

    def _raise_bound(self) -> Iterator[None]:
        """Raise the bound along the dependency path of the best one; what it leads to is offered, too."""
        best = self.best
        assert best is not None
        path = DependencyPath.longest(best.timeline)
        bound = StepBound(StepBounds(self.network, path))
        # With the best one alone GPT-3's step on 128x8 was 1.2 % longer, when bounds came first.
        for known in self._candidates:
            bound.cut(self.judge(known).timeline)
        for found in bound.rise(partial(self._roughly, part=2 * tuning.ONE)):
            self._offer(found.assignment)
            self.bound_s = max(self.bound_s, bound.bound_s)
            yield
