"""Candidates with stages: states from one search, then the best cut for them.

The states of all tensors come from one exact search under the prices of a step (search.repeated),
which also bounds the step of every cut. The cut is the best for these states; the step is simulated,
the memory of each stage is that of OneFlow's own allocation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from autoddl.planner.candidate_plans import Candidate
from autoddl.planner.costs.cut import cut_into_stages
from autoddl.planner.costs.stage_links import Links
from autoddl.planner.costs.staged_assignment import Staged
from autoddl.planner.race import Contender, Known, Solution
from autoddl.planner.request import Request
from autoddl.sbp.program import Program
from autoddl.search.baselines import assignments
from autoddl.search.reductions.pipeline_objective import repeated
from autoddl.search.result import SearchOptions, SearchResult
from autoddl.search.solvers.named import SOLVERS

ROUGH_GAP = 0.01  # of searches for states of less memory, and of candidates among many


class PipelineTrial(Contender):
    """A candidate with stages or micro-batches, to be searched.

    `micro` makes the program of one of so many micro-batches. Those with less than `least` stages come
    last: they would hold too much. Many are ruled out by their bound, so each search gets a third of
    the budget while that is there.
    """

    share, least_s = 1 / 3, 0.5

    def __init__(
        self, request: Request, candidate: Candidate, micro: Callable[[int], Program], least: int
    ) -> None:
        self.request, self.candidate, self.micro, self.least = request, candidate, micro, least

    def turn(self) -> tuple[float, ...]:
        """Return its place: first those that wait least for the first and last micro-batch."""
        stages, count = self.candidate.stages, self.candidate.micro_batches
        return stages < self.least, (stages - 1) / count, stages

    def prepare(self) -> float:
        """Make the problem of one micro-batch, and return a bound."""
        stages, count = self.candidate.stages, self.candidate.micro_batches
        self.problem = self.request.problem(self.candidate.mesh, self.micro(count))
        self.weighted = repeated(self.problem, stages, count)
        self.bound_s = self.weighted.lower_bound_s()
        return self.bound_s

    def search(self, seconds: float, before: Sequence[Known], *, rough: bool) -> None:
        """Search the states of all tensors, whatever memory they take."""
        self.seconds, self.starts = seconds, list(assignments(self.weighted).values())
        self.result = self._search(None, ROUGH_GAP if rough else 0.0)
        self.slack = self.result.gap if rough else 0.0
        self.bound_s = self.result.lower_bound_s

    def _search(self, memory_bytes: int | None, stop_gap: float) -> SearchResult:
        request = self.request
        return SOLVERS[request.search](
            self.weighted,
            SearchOptions(
                budget=self.seconds,
                stop_gap=max(request.stop_gap, stop_gap),
                seed=request.seed,
                memory_bytes=memory_bytes,
                starts=self.starts,
            ),
        )

    def solution(self) -> Solution | None:
        """Cut into stages; where these don't fit, search for states of less memory once more."""
        limit, result = self.request.limit_bytes, self.result
        staged = self._cut(result)
        needed = staged.memory_bytes
        if limit is not None and needed > limit:
            fits = int(result.memory_bytes * limit / needed)
            result = self._search(max(self.weighted.least_memory_bytes, fits), ROUGH_GAP)
            staged = self._cut(result)
        self.needed_bytes = min(needed, staged.memory_bytes)
        if limit is not None and staged.memory_bytes > limit:
            return None
        bound_s = self.result.lower_bound_s
        return Solution(
            self.candidate,
            staged,
            replace(result, lower_bound_s=bound_s),
            cost_s=max(staged.bounded_s, bound_s),
            judged_s=staged.timeline.step_s,
            slack=self.slack,
        )

    def _cut(self, result: SearchResult) -> Staged:
        one, request = self.candidate, self.request
        links = Links(request.profile, request.cluster, one.mesh.size)
        counts = one.stages, one.micro_batches
        return cut_into_stages(self.problem, result.assignment, *counts, links, request.limit_bytes)
