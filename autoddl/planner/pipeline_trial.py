"""Candidates with stages: states from one search, then the best cut for them.

The states of all tensors come from one exact search under the prices of a step (search.repeated),
which also bounds the step of every cut. The cut is the best for these states; the step is simulated,
the memory of each stage is what the engine's model says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from autoddl.budget import Span
from autoddl.planner.candidate_plans import Candidate
from autoddl.planner.costs.cut import cut_into_stages
from autoddl.planner.costs.stage_links import Links
from autoddl.planner.costs.staged_assignment import Staged
from autoddl.planner.race import Contender, Solution
from autoddl.planner.request import Request
from autoddl.sbp.program import Program
from autoddl.search.baselines import assignments
from autoddl.search.network.cost_network import CostNetwork
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

    def search(
        self, span: Span, *, rough: bool, below_s: float = math.inf
    ) -> Iterator[float | Solution]:
        """Search the states of all tensors, whatever memory they take, and cut into stages.

        Where these don't fit, search for states of less memory, and at last for those of the least.
        """
        one, request, limit = self.candidate, self.request, self.request.limit_bytes
        problem = request.problem(one.mesh, self.micro(one.micro_batches), ways=(one.way,))
        weighted = repeated(problem, one.stages, one.micro_batches)
        yield weighted.lower_bound_s()
        starts = list(assignments(weighted).values())

        def found(memory_bytes: int | None, stop_gap: float) -> SearchResult:
            return SOLVERS[request.search](
                weighted,
                SearchOptions(
                    budget=span.seconds,
                    clock=span.clock,
                    stop_gap=max(request.stop_gap, stop_gap),
                    seed=request.seed,
                    memory_bytes=memory_bytes,
                    starts=starts,
                ),
            )

        result = found(None, ROUGH_GAP if rough else 0.0)
        bound_s, slack = result.lower_bound_s, result.gap if rough else 0.0
        yield bound_s
        staged = self._cut(problem, result)
        needed = self.needed_bytes = staged.memory_bytes
        if limit is not None and needed > limit:
            least, share = weighted.least_memory_bytes, int(result.memory_bytes * limit / needed)
            for bound in dict.fromkeys((max(least, share), least)):
                result = found(bound, ROUGH_GAP)
                staged = self._cut(problem, result)
                self.needed_bytes = min(self.needed_bytes, staged.memory_bytes)
                if staged.memory_bytes <= limit:
                    break
        if limit is None or staged.memory_bytes <= limit:
            yield Solution(
                one,
                staged,
                replace(result, lower_bound_s=bound_s),
                cost_s=max(staged.bounded_s, bound_s),
                judged_s=staged.timeline.step_s,
                slack=slack,
            )

    def _cut(self, problem: CostNetwork, result: SearchResult) -> Staged:
        one, request = self.candidate, self.request
        links = Links(request.profile, request.cluster)
        counts = one.stages, one.micro_batches
        return cut_into_stages(problem, result.assignment, *counts, links, request.limit_bytes)
