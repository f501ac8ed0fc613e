"""Branch and bound over candidates: search the most promising ones, and leave out what can't win.

A candidate's `bound_s` is below every plan that it has. With bounds of 3, 5 and 4 ms and a plan of 4.5 ms
on the first, the third is searched, the second is not. Searching tightens bounds: a candidate may be
left out between a search and the work of making a plan of what it found. Where several plans are wanted
a candidate is left out only if it can be none of the best so many.

Source: A. H. Land, A. G. Doig, An automatic method of solving discrete programming problems, 1960.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from autoddl.errors import AutoDDLError, InfeasibleError
from autoddl.plan.parts import Estimate
from autoddl.plan.search_report import Outcome
from autoddl.planner.candidate_plans import Candidate
from autoddl.planner.stages.staged_assignment import Staged
from autoddl.planner.whole.one_stage import OneStage
from autoddl.sbp.mesh import Mesh
from autoddl.search.budget import Allowance
from autoddl.search.result import SearchResult

# Relative; a mesh of more axes has to be better by so much. The model does not tell less apart, and
# what two calibrations of the same machine measure must not decide between two grids.
WORTH = 1e-3
# Relative; what halves of a batch gain on ranks is off by so much of the step on average, mostly less
# than predicted (experiments.fidelity.gains). With half of it the same plans there are halves; with twice
# the multi-layer perceptron at 1 Gbit/s does without the 5 % that they gain, predicted 6.
WORTH_OF_HALVES = 0.05
PATIENCE = 3  # budgets after which a race ends without a plan
PRUNED, IMPOSSIBLE, NO_ROOM = "no better plan", "impossible", "does not fit into memory"


@dataclass(frozen=True)
class Solution:
    """What was found for a candidate, and `judged_s`, in which solutions are compared.

    The gap of `result` is that to `cost_s`, of a step in which nothing overlaps. `rivals` are the plans
    of the `baselines`, by name, as far as these have been made. A rough search may have left a `slack`
    relative to its bound. If it is `settled` other streams are not tried.
    """

    candidate: Candidate
    found: Staged
    result: SearchResult
    cost_s: float
    judged_s: float
    baselines: Sequence[Estimate] = ()
    rivals: Sequence[tuple[str, OneStage]] = ()
    searches: int = 1
    seconds: float = 0.0
    slack: float = 0.0
    settled: bool = True

    @cached_property
    def row(self) -> Estimate:
        """Return what the plan takes."""
        return self.found.estimate("plan")


class Contender(ABC):
    """A candidate that can be searched.

    `share` is the part of the budget that a search gets at least while there is so much left, and
    `least_s` what it gets in any case; it has had so many `seconds`.
    """

    candidate: Candidate
    bound_s: float | None = None
    needed_bytes: int | None = None
    share: float = 0.0
    least_s: float = 0.0
    seconds: float = 0.0

    @abstractmethod
    def turn(self) -> tuple[float, ...]:
        """Return its place in the order of trials."""

    @abstractmethod
    def search(
        self, allowance: Allowance, *, rough: bool, below_s: float = math.inf
    ) -> Iterator[float | Solution]:
        """Yield bounds, each after more work, and at last the solution, if it fits into memory.

        It may be `rough` where there are other candidates. One that is judged to take `below_s` seconds
        or more is of no use, and may be left out.
        """


@dataclass
class Race:
    """The best solution so far, and what came of each trial, of one field of trials after the other.

    `winners` are the best of each field that brought a better one. Where the `keep` best solutions are
    wanted all that are found are kept.
    """

    keep: int = 1
    best: Solution | None = None
    winners: list[Solution] = field(default_factory=list)
    found: dict[Candidate, Solution] = field(default_factory=dict)
    outcomes: dict[Candidate, Outcome] = field(default_factory=dict)
    failures: list[tuple[Candidate, AutoDDLError]] = field(default_factory=list)
    untried: int = 0

    def run(
        self, trials: Iterable[Contender], allowance: Allowance, *, stop_gap: float = 0.0
    ) -> None:
        """Search trials for what is better than the best so far.

        Each gets an equal part of the seconds that are left; while there are several, rough searches
        will do, and the winner's is made better at the end. When the budget is spent and there is a
        plan, the others are left; without one those with stages that need least memory come next.
        """
        waiting, winner = self.in_order(trials), None
        while waiting:
            if allowance.over() and self.best is not None:
                break
            if allowance.over() and waiting[0].candidate.pipelined:
                if allowance.spent_s() > PATIENCE * max(allowance.seconds, waiting[0].least_s):
                    break
                waiting.sort(key=lambda t: (-t.candidate.stages, -t.candidate.micro_batches))
            trial = waiting.pop(0)
            others = [t for t in waiting if t.candidate.place != trial.candidate.place]
            places = 1 + len({t.candidate.place for t in others})
            solution = self.tried(trial, places, allowance)
            if solution is None:
                continue
            if solution.settled:
                waiting = others
            if self.can_win(trial.candidate, solution.judged_s):
                self.best, winner = solution, trial
        self.untried += len(waiting)
        best = self.best
        if winner is None or best is None:
            return
        if best.slack > stop_gap and not allowance.over():
            finer = Race().tried(winner, 1, allowance)
            known = self.outcomes[winner.candidate]
            self.outcomes[winner.candidate] = replace(known, seconds=winner.seconds)
            if finer is not None and finer.judged_s <= best.judged_s * (1 + 1e-9):
                self.best = best = finer
                self.found.update({winner.candidate: finer} if self.keep > 1 else {})
        self.winners.append(best)

    def join(self, other: Race) -> None:
        """Take in what another race over the same devices has found."""
        self.found |= other.found
        self.outcomes |= other.outcomes
        self.failures += other.failures
        self.untried += other.untried
        mine, best = self.best, other.best
        if best is not None and (mine is None or best.judged_s < mine.judged_s):
            self.best = best
            self.winners += other.winners

    def lacks_memory(self, meshes: Collection[Mesh]) -> bool:
        """Tell whether nothing that was tried on these meshes fits into memory."""
        notes = {found.note for one, found in self.outcomes.items() if one.mesh in meshes}
        short = [error for one, error in self.failures if one.mesh in meshes]
        return notes == {IMPOSSIBLE} and all(isinstance(error, InfeasibleError) for error in short)

    def enter(self, solution: Solution) -> None:
        """Take in a solution that was made of another one, if it is better than the best."""
        if self.best is None or solution.judged_s < self.best.judged_s:
            self.best = solution
            self.winners.append(solution)
            self.found |= {solution.candidate: solution} if self.keep > 1 else {}

    def can_win(self, candidate: Candidate, judged_s: float) -> bool:
        """Tell whether a solution is better than the best so far; axes and halves must be worth it."""
        if self.best is None:
            return True
        more, other = 0, self.best.candidate
        if not candidate.pipelined and not other.pipelined:
            more = candidate.mesh.ndim - other.mesh.ndim
        worth = WORTH * ((more > 0) - (more < 0))
        worth += WORTH_OF_HALVES * (candidate.duplex - other.duplex)
        return judged_s < self.best.judged_s * (1 - worth)

    def wanted(self, candidate: Candidate, judged_s: float) -> bool:
        """Tell whether a solution is better than the best so far, or one of those to be kept."""
        if self.keep > 1 and judged_s < self.to_beat_s():
            return True
        return self.can_win(candidate, judged_s)

    def to_beat_s(self) -> float:
        """Return the seconds from which on a solution is of no use."""
        if self.keep > 1:
            known = sorted(solution.judged_s for solution in self.found.values())
            return known[self.keep - 1] if len(known) >= self.keep else math.inf
        return math.inf if self.best is None else self.best.judged_s

    def failure(self) -> AutoDDLError | None:
        """Return what was wrong with the first candidate; of its streams with that which needs least."""
        if not self.failures:
            return None
        same = [e for c, e in self.failures if c.place == self.failures[0][0].place]
        short = [error for error in same if isinstance(error, InfeasibleError)]
        return min(short, key=lambda error: error.needed_bytes or 0) if short else same[0]

    def in_order(self, trials: Iterable[Contender]) -> list[Contender]:
        """Return trials in the order in which they are to be tried; not those that fail before."""
        ready: list[tuple[tuple[float, ...], Contender]] = []
        for trial in trials:
            try:
                ready.append((trial.turn(), trial))
            except AutoDDLError as error:
                self._failed(trial, error)
        return [trial for _, trial in sorted(ready, key=lambda pair: pair[0])]

    def tried(self, trial: Contender, rest: int, allowance: Allowance) -> Solution | None:
        """Return the solution of one trial of `rest`, if it can win."""
        one, solution, left_s = trial.candidate, None, allowance.left_s()
        seconds = min(left_s, max(left_s / rest, trial.share * allowance.seconds))
        own, failure = allowance.next(max(seconds, trial.least_s)), None
        try:
            for found in trial.search(own, rough=rest > 1, below_s=self.to_beat_s()):
                if isinstance(found, Solution):
                    solution = found
                    break
                trial.bound_s = found
                if not self.wanted(one, found):
                    break
        except AutoDDLError as error:
            failure = error
        trial.seconds += own.spent_s()
        if failure is not None:
            self._failed(trial, failure)
            return None
        if solution is not None:
            if self.keep > 1:
                self.found[one] = solution
            self._note(trial, "", solution)
        else:
            self._note(trial, PRUNED if trial.needed_bytes is None else NO_ROOM)
        return solution

    def _note(self, trial: Contender, note: str, solution: Solution | None = None) -> None:
        """Keep what came of a trial."""
        one = trial.candidate
        found = None if solution is None else solution.found
        meshes = [one.mesh] if found is None else found.meshes
        self.outcomes[one] = Outcome(
            stages=one.stages if found is None else found.stages,
            micro_batches=one.micro_batches,
            mesh=", ".join(mesh.describe() for mesh in meshes),
            compute_stream=one.way.compute_stream,
            duplex=one.duplex,
            lower_bound_s=trial.bound_s if solution is None else solution.result.lower_bound_s,
            step_s=None if solution is None else solution.row.step_s,
            memory_bytes=trial.needed_bytes,
            note=note,
            seconds=trial.seconds,
        )

    def _failed(self, trial: Contender, error: AutoDDLError) -> None:
        """Keep why there is no plan."""
        self.failures.append((trial.candidate, error))
        self._note(trial, str(error) if trial.candidate.pipelined else IMPOSSIBLE)
