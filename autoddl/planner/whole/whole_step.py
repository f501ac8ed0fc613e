"""Candidates without stages: one search of the states of all tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from autoddl.engine.model import StreamUse
from autoddl.planner.candidate_plans import Candidate
from autoddl.planner.race import Contender, Solution
from autoddl.planner.request import Request
from autoddl.planner.whole.solve import HOPELESS, ProblemSearch
from autoddl.sbp.layout import Layout
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.rewrites.in_parts.sync_batchnorm import is_synchronised
from autoddl.sbp.rewrites.in_parts.whole_masks import has_whole_masks
from autoddl.sbp.rewrites.recomputed_layers import ops_again
from autoddl.search.baselines import assignments
from autoddl.search.budget import Allowance
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.retabulated import on_streams

LEAST_PART = 0.5  # of the seconds for a mesh that its second streams get, whatever the first took


@dataclass(frozen=True)
class OnMesh:
    """A mesh with its number among all, and what is the same for all ways to run boxings on it."""

    request: Request
    mesh: Mesh
    number: int
    ways: tuple[StreamUse, ...]
    seconds: float

    @cached_property
    def problem(self) -> CostNetwork:
        """Return the problem with the user's first choice of ways."""
        return self.request.problem(self.mesh)

    @cached_property
    def bound_s(self) -> float:
        """Bound by compute alone, which a step takes at least, however much else overlaps."""
        return self.problem.lower_bound_s() if self.request.timed else 0.0

    @cached_property
    def order(self) -> Sequence[StreamUse]:
        """Return the ways in the order in which they are tried.

        The compute stream is the first where there is so little memory that not even what the cheapest
        baseline keeps fits; it takes less.
        """
        limit, problem = self.request.limit_bytes, self.problem
        if limit is None or len(self.ways) == 1:
            return self.ways
        cheapest = min(assignments(problem).values(), key=problem.cost_s)
        short = problem.memory_bytes(cheapest) > limit
        return sorted(self.ways, key=lambda way: way.compute_stream != short)


class WholeStep(Contender):
    """A candidate without stages, to be searched."""

    def __init__(self, place: OnMesh, way: StreamUse) -> None:
        request = place.request
        self.place, self.candidate = (
            place,
            Candidate(
                1, 1, place.mesh, way, duplex=request.duplex is True,
                in_parts=is_synchronised(request.program) or has_whole_masks(request.program),
                recomputed=len(ops_again(request.program)),
            ),
        )  # fmt: skip

    def turn(self) -> tuple[float, ...]:
        """Return its place: those of low bounds first; rounding must not decide."""
        turn = self.place.order.index(self.candidate.way)
        self.least_s = LEAST_PART * self.place.seconds if turn else 0.0
        return float(f"{self.place.bound_s:.9g}"), self.place.number, turn

    def search(
        self, allowance: Allowance, *, rough: bool, below_s: float = math.inf
    ) -> Iterator[float | Solution]:
        """Search the states of all tensors."""
        yield self.place.bound_s
        request, base, ways = self.place.request, self.place.problem, self.place.order
        timed, other = request.timed, self.candidate.way != request.ways_of()[0]
        stream = self.candidate.way.compute_stream
        found = ProblemSearch(
            on_streams(base, self.candidate.way) if other else base,
            request,
            allowance,
            baselines=assignments(base) if other and timed else None,
            others=not stream and len(ways) > 1,
        ).solution(self.candidate)
        settled = found.settled
        if stream and len(ways) > 1 and self.candidate.way == ways[0]:
            layout = found.found.stage_layout(0)
            settled = is_settled(base, layout, request.limit_bytes or 0)
        yield replace(found, settled=settled)


def is_settled(problem: CostNetwork, layout: Layout, limit: int) -> bool:
    """Tell whether streams of their own are not tried after the compute stream: memory is far too short.

    That is so where what the plan's boxings would never give back exceeds the limit alone, or all that
    the plan would take is far beyond it.
    """
    memory = problem.setting.memory
    if memory.never_reused_bytes(layout) > limit:
        return True
    return memory.estimate(layout, compute_stream=False).total > HOPELESS * limit
