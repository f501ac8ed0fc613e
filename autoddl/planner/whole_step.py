"""Candidates without stages: one search of the states of all tensors.

A mesh that cuts an axis of another one in two can do all that the other can: any group of its axes acts
as one. So what was found on the coarser mesh is where the search on the finer one starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from autoddl.engine.limits import StreamUse, limits_of
from autoddl.perfmodel.oneflow.lowering import never_reused_bytes
from autoddl.perfmodel.oneflow.memory import estimate
from autoddl.planner.candidate_plans import Candidate
from autoddl.planner.race import Contender, Known, Solution
from autoddl.planner.request import Request
from autoddl.planner.solve import HOPELESS, ProblemSearch
from autoddl.sbp.layout import Layout
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.state import NdSbp
from autoddl.search.baselines import assignments
from autoddl.search.network.cost_network import TENSOR, CostNetwork
from autoddl.search.reductions.retabulated import on_stream
from autoddl.search.result import Assignment

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
        self.place, self.candidate = place, Candidate(1, 1, place.mesh, way)

    def turn(self) -> tuple[float, ...]:
        """Return its place: those of low bounds first; rounding must not decide."""
        turn = self.place.order.index(self.candidate.way)
        self.least_s = LEAST_PART * self.place.seconds if turn else 0.0
        return float(f"{self.place.bound_s:.9g}"), self.place.number, turn

    def search(
        self, seconds: float, before: Sequence[Known], *, rough: bool
    ) -> Iterator[float | Solution]:
        """Search the states of all tensors."""
        yield self.place.bound_s
        request, base, ways = self.place.request, self.place.problem, self.place.order
        timed, other = request.timed, self.candidate.way != request.ways[0]
        stream = self.candidate.way.compute_stream
        starts = [carried(m, layout, base) for _, m, layout in before if m != base.mesh]
        found = ProblemSearch(
            on_stream(base, stream, limits=limits_of(request.engine)) if other else base,
            request,
            seconds,
            begin_at=[start for start in starts if start is not None] if timed else (),
            baselines=assignments(base) if other and timed else None,
            others=not stream and len(ways) > 1,
        ).solution(self.candidate)
        settled = found.searches == 1
        if stream and len(ways) > 1 and self.candidate.way == ways[0]:
            settled = is_settled(base, found.found.layout, request.limit_bytes or 0)
        yield replace(found, settled=settled)


def is_settled(problem: CostNetwork, layout: Layout, limit: int) -> bool:
    """Tell whether streams of their own are not tried after the compute stream: memory is far too short.

    That is so where what the plan's boxings would never give back exceeds the limit alone, or all that
    the plan would take is far beyond it.
    """
    shape, sizes = problem.mesh.shape, problem.setting.sizes
    if never_reused_bytes(shape, layout, sizes) > limit:
        return True
    return estimate(shape, layout, sizes=sizes).total > HOPELESS * limit


def carried(mesh: Mesh, layout: Layout, problem: CostNetwork) -> Assignment | None:
    """Return a layout on the finer mesh of a problem: what an axis does, all its parts do.

    None where the mesh does not refine the layout's, or a node has no such choice.
    """
    parts = refinement(mesh, problem.mesh)
    if parts is None:
        return None
    finer: dict[NdSbp, NdSbp] = {}

    def on(state: NdSbp) -> NdSbp:
        if state not in finer:
            finer[state] = NdSbp(s for s, n in zip(state, parts, strict=True) for _ in range(n))
        return finer[state]

    known: dict[int, dict[tuple[NdSbp, ...], int]] = {}
    assignment = []
    variables = problem.variables
    for variable, name in enumerate(variables.name):
        wanted = _states(variables.kinds[variables.kind[variable]], name, layout)
        choices = variables.of(variable).choices
        table = known.setdefault(id(choices), {})
        if not table:
            table |= {tuple(c[o] for o in wanted): i for i, c in enumerate(choices)}
        choice = table.get(tuple(map(on, wanted.values())))
        if choice is None:
            return None
        assignment.append(choice)
    return Assignment.of(assignment)


def _states(kind: str, name: str, layout: Layout) -> NdSignature:
    """Return the states that a layout has for a variable; none for an output, which has no choice."""
    if kind == "op":
        return layout.signatures[name]
    if kind == "output":
        return {}
    return {TENSOR: (layout.inputs if kind == "input" else layout.variables)[name]}


def refinement(coarse: Mesh, fine: Mesh) -> tuple[int, ...] | None:
    """Return for every axis of a mesh how many of a finer one make it up; None if it is not finer."""
    axes, counts = list(fine.axes), []
    for axis in coarse.axes:
        size, count = 1, 0
        while axes and size < axis.size and axes[0].level == axis.level:
            size *= axes.pop(0).size
            count += 1
        if size != axis.size:
            return None
        counts.append(count)
    return None if axes else tuple(counts)
