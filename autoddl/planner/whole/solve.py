"""Search one problem: the states of all tensors that cost least, within the memory of the devices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, lru_cache, partial

import numpy as np

from autoddl.calls import uncollected
from autoddl.errors import AutoDDLError, InfeasibleError
from autoddl.plan.parts import Estimate
from autoddl.planner.candidate_plans import Candidate
from autoddl.planner.race import Solution
from autoddl.planner.request import Request
from autoddl.planner.whole.assigned import Assigned
from autoddl.planner.whole.one_stage import OneStage
from autoddl.planner.whole.plan_choices import choices_of, is_of
from autoddl.planner.within_memory import until_it_fits
from autoddl.sbp.lazy import LazyTuple
from autoddl.sbp.rewrites.recomputed_layers import recomputes
from autoddl.search.baselines import BASELINES, NEEDS, assignments
from autoddl.search.budget import Allowance
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.objective import COMMUNICATION, TIME, space
from autoddl.search.reductions.saved_tensors import SavedTensors
from autoddl.search.result import Assignment, SearchOptions, SearchResult
from autoddl.search.solvers.named import HIDUP, SOLVERS
from autoddl.search.step.overlap import StepSearch

# Measured on GPT-3, a 24-layer GPT, GPT-2 and BERT, each under two or three limits: with about half and
# twice these values the plans are the same.
AGAIN = 5e-4  # the gap at which a search ends that only holds less than the one before
_ROUNDS = 5  # searches until the whole memory fits; the most that one took is 3
# Times the limit; of a plan that needs more, where there are other streams to try. With 3 BERT at 70 % of
# its memory tries both; with 1.25 GPT-2 gives up in half the time.
HOPELESS = 1.5
KNOWN = 32  # assignments whose layouts and timelines are kept: baselines, and the latest candidates


class ProblemSearch:
    """The search of one problem: repeated for less memory until all of it fits.

    It takes a `allowance`. `baselines` are those of the same problem on other streams, where they are
    known. Where there are `others` to try, memory that is far too short for these ends the search.

    For the time of a step they minimise what the simulation says it takes (search/step), where boxings
    are ops of the compute stream, and nothing overlaps, compute plus communication. HiDup's search finds
    what its own model takes for the shortest step.
    """

    def __init__(
        self,
        problem: CostNetwork,
        request: Request,
        allowance: Allowance,
        *,
        baselines: Mapping[str, Assignment] | None = None,
        others: bool = False,
    ) -> None:
        self.allowance, self.request, self.limit = allowance, request, request.limit_bytes
        starts = _baselines(problem, request.objective, baselines or {})
        waits = problem.compute_stream and self.limit is not None
        self.problem = SavedTensors.apply(problem).network if waits else problem
        self.space = space(self.problem, request.objective)
        self.inner = self.space.network
        self.inner.check_memory(self.limit)
        self.saved = SavedTensors(self.inner)
        self.starts = {name: self.saved.as_read(start) for name, start in starts.items()}
        self.known = [self.saved.as_read(start) for start in _planned(request, problem)]
        if request.search in BASELINES and request.search not in starts:
            raise AutoDDLError(
                f"search: {request.search!r} does not apply to this program on mesh {problem.mesh}, it "
                f"needs {NEEDS[request.search]}; allowed here are {', '.join((*SOLVERS, *starts))}"
            )
        self.chooses = request.search not in starts
        self.most = HOPELESS if others else math.inf
        self.assigned = lru_cache(maxsize=KNOWN)(partial(Assigned, self.problem))
        self.steps: StepSearch | None = None
        self.models = request.search == HIDUP
        timed = request.objective == TIME and not problem.compute_stream
        if self.chooses and timed and not self.models:
            solver = SOLVERS[request.search]
            self.steps = StepSearch(self.inner, solver, self.assigned, self.limit)
        self.costs_s: list[float] = []  # what searches find

    def solution(self, candidate: Candidate) -> Solution:
        """Return what is found for a candidate within memory.

        Raises:
            InfeasibleError: nothing is found that fits, or a baseline, which has no choice, does not.
        """
        result = self._result()
        found = OneStage(self.assigned(result.assignment))
        row, rivals = found.estimate("plan"), LazyTuple(self._rivals)
        return Solution(
            candidate,
            found,
            result,
            cost_s=self.costs_s[-1],
            judged_s=self._judged_s(row),
            baselines=LazyTuple(lambda: _rows(rivals)),
            rivals=rivals,
            searches=max(1, len(self.costs_s)),
            settled=len(self.costs_s) == 1 and not (self.steps and self.steps.binds),
            seconds=self.allowance.spent_s(),
        )

    def _judged_s(self, row: Estimate) -> float:
        objective = self.request.objective
        if objective == COMMUNICATION:
            return row.communication_s
        return row.step_s if objective == TIME else row.compute_s + row.communication_s

    @cached_property
    def again(self) -> dict[str, Assignment]:
        """Return the baselines with as much made again for the backward pass as can be."""
        saved = self.saved
        return {name: saved.as_made(saved.invert(held)) for name, held in self.starts.items()}

    def _result(self) -> SearchResult:
        """Return what is found within memory; the fastest baseline that fits, if a search finds none."""
        try:
            return self._within_memory()
        except InfeasibleError as error:
            if error.hopeless or not self.chooses or self.limit is None:
                raise
            known = {name: self.space.invert(self._fitting(name)) for name in self.starts}
            fits = [name for name, start in known.items() if self._memory(start) <= self.limit]
            if not fits:
                raise
        name = min(fits, key=lambda n: self.assigned(known[n]).step_s)
        solver = f"{self.request.search}, then {name} for its memory"
        result = self.problem.result(solver, known[name])
        self.costs_s.append(result.cost_s)
        return result

    def _within_memory(self) -> SearchResult:
        """Return what a search finds whose whole memory is within the limit.

        Searches are under a limit on the part of the memory that can be summed up op by op. Where the
        whole is too large the search is repeated with less for that part, down to the least there is;
        the lower bound stays that of the first search. Where it is far too large for a candidate that
        is not the only one the search is given up.
        """
        limit, least, needed = self.limit, self.inner.least_memory_bytes, list[int]()
        if limit is None:
            return self._find(None)

        def tighter(bound: int, result: SearchResult) -> int | None:
            needed.append(self._memory(result.assignment))
            hopeless = needed[-1] > self.most * limit
            if needed[-1] <= limit or hopeless or not self.chooses or bound == least:
                return None
            if len(needed) == _ROUNDS - 1:
                return least
            return max(min(bound, result.memory_bytes) - (needed[-1] - limit), least)

        results = list(until_it_fits(limit, self._find, tighter, _ROUNDS))
        result = results[-1]
        if needed[-1] <= limit:
            return replace(result, lower_bound_s=min(each.lower_bound_s for each in results))
        what = "the plan with the least memory that was found" if self.chooses else result.solver
        what += ", with all layers computed again," if recomputes(self.problem.program) else ""
        remedy = "or a smaller batch" if self.chooses else "or plan with search='coordinate'"
        error = InfeasibleError(
            f"memory {limit:,} B per device on mesh {self.problem.mesh}: {what} needs "
            f"{min(needed):,} B, {min(needed) - limit:,} B more; give more memory or devices, {remedy}"
        )
        error.needed_bytes, error.hopeless = min(needed), needed[-1] > self.most * limit
        raise error

    def _find(self, bound: int | None) -> SearchResult:
        """Search with so many bytes for the part of the memory that can be summed up."""
        request = self.request
        if not self.chooses:
            result = self.inner.result(request.search, self._fitting(request.search))
        else:
            found = *self.starts.values(), *self.again.values(), *self.known
            known = () if self.models else found
            options = SearchOptions(
                budget=self.allowance.left_s(),
                clock=self.allowance.clock,
                stop_gap=max(request.stop_gap, AGAIN) if self.costs_s else request.stop_gap,
                seed=request.seed,
                memory_bytes=bound,
                starts=dict.fromkeys(known),
                progress=request.progress,
            )
            solver = (
                self.steps.search if self.steps else partial(SOLVERS[request.search], self.inner)
            )
            result = solver(options)
        result = replace(result, assignment=self.space.invert(result.assignment))
        if self.models and request.objective == TIME:
            result = replace(result, cost_s=self.assigned(result.assignment).step_s)
        self.costs_s.append(result.cost_s)
        return result

    def _memory(self, assignment: Assignment) -> int:
        """Return all bytes on the device that needs most."""
        return self.assigned(assignment).memory_bytes

    def _fitting(self, name: str) -> Assignment:
        """Return the assignment of a baseline; the one that holds less where the other does not fit."""
        held, limit = self.starts[name], self.limit
        if limit is None or held == self.again[name]:
            return held
        roomy = self.inner.memory_bytes(held) <= limit
        return (
            held if roomy and self._memory(self.space.invert(held)) <= limit else self.again[name]
        )

    def _rivals(self) -> tuple[tuple[str, OneStage], ...]:
        """Return the baselines by name."""
        with uncollected():
            chosen = {name: self.space.invert(self._fitting(name)) for name in self.starts}
            return tuple((name, OneStage(self.assigned(s))) for name, s in chosen.items())


def _rows(rivals: Sequence[tuple[str, OneStage]]) -> tuple[Estimate, ...]:
    """Return what baselines cost."""
    with uncollected():
        return tuple(rival.estimate(name) for name, rival in rivals)


def _planned(request: Request, problem: CostNetwork) -> Iterator[Assignment]:
    """Yield the assignment of the plan to begin with, if it is one of the problem's."""
    start = request.start
    if start is not None and request.objective != COMMUNICATION and is_of(start, problem):
        with suppress(AutoDDLError):
            yield Assignment(np.array(list(choices_of(start, problem)), dtype=np.int64))


def _baselines(
    problem: CostNetwork, objective: str, known: Mapping[str, Assignment]
) -> dict[str, Assignment]:
    """Return the baselines in the space of an objective, the known ones where they are possible."""
    inner = space(problem, objective).network
    possible = all(math.isfinite(inner.cost_s(assignment)) for assignment in known.values())
    return dict(known) if known and possible else assignments(inner)
