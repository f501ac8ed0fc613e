"""Time against memory: of the plans that are known, those that none beats in both.

Of (40 ms, 6 GiB), (43 ms, 8 GiB) and (60 ms, 5 GiB) the second is behind the first; the others are the
front.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from autoddl.calls import uncollected
from autoddl.errors import AutoDDLError
from autoddl.explain.reopened import Reopened
from autoddl.plan.value import PlanValue
from autoddl.planner.candidate_plans import Candidate
from autoddl.planner.whole.solve import ProblemSearch
from autoddl.search.budget import Budget

LIMITS = (0.9, 0.75)  # of the plan's memory, under which it is planned again
EACH = Budget(evaluations=3000)  # of these searches


@dataclass(frozen=True)
class ParetoPoint:
    """A plan, the seconds of its step and its bytes; `front` where no other one beats it in both."""

    name: str
    step_s: float
    memory_bytes: int
    front: bool = False


def pareto(plan: PlanValue, found: Reopened | None = None) -> tuple[ParetoPoint, ...]:
    """Return the plan, its baselines and the other outcomes of its search, in that order.

    With prices also what short searches find within less memory; they stop where nothing fits.
    """
    points = [ParetoPoint("plan", plan.estimate.step_s, plan.estimate.counted_bytes)]
    points += [ParetoPoint(row.name, row.step_s, row.counted_bytes) for row in plan.baselines]
    for each in plan.search.outcomes:
        if each.step_s is None or not each.memory_bytes:
            continue
        same = (each.step_s, each.memory_bytes) == (points[0].step_s, points[0].memory_bytes)
        if not same:
            told = f"{each.stages} stages, {each.micro_batches} micro-batches, mesh {each.mesh}"
            whole = each.stages == each.micro_batches == 1
            points.append(
                ParetoPoint(f"mesh {each.mesh}" if whole else told, each.step_s, each.memory_bytes)
            )
    if found is not None:
        points += replanned(found, plan.estimate.counted_bytes)
    return with_front(points)


def replanned(found: Reopened, memory_bytes: int) -> list[ParetoPoint]:
    """Return what searches find within less memory."""
    points = list[ParetoPoint]()
    one = Candidate(1, 1, found.problem.mesh, found.problem.setting.streams)
    for share in LIMITS:
        request = replace(found.request, limit_bytes=int(share * memory_bytes))
        with uncollected():
            try:
                solution = ProblemSearch(found.problem, request, EACH.begin()).solution(one)
            except AutoDDLError:  # nothing fits, and so nothing within less
                break
            best = solution.found.assigned(0)
            name = f"planned for {share:.0%} of the memory"
            points.append(ParetoPoint(name, best.step_s, best.memory_bytes))
    return points


def with_front(points: Sequence[ParetoPoint]) -> tuple[ParetoPoint, ...]:
    """Return points that know whether they are on the front; of equal ones the first is."""
    return tuple(replace(p, front=not _beaten(p, n, points)) for n, p in enumerate(points))


def _beaten(point: ParetoPoint, place: int, others: Collection[ParetoPoint]) -> bool:
    mine = point.step_s, point.memory_bytes
    for number, other in enumerate(others):
        theirs = other.step_s, other.memory_bytes
        if theirs[0] <= mine[0] and theirs[1] <= mine[1] and (theirs != mine or number < place):
            return True
    return False
