"""Search one problem and make the plan, with the baselines beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

from autoddl.collector import uncollected
from autoddl.errors import AutoDDLError, InfeasibleError
from autoddl.make_plan import Assigned, make_plan, within_memory
from autoddl.plan import Estimate, Plan, Rows
from autoddl.search.baselines import BASELINES, NEEDS, assignments
from autoddl.search.objective import TIME, space
from autoddl.search.problem import Problem
from autoddl.search.result import Assignment, SearchResult
from autoddl.search.solvers import SOLVERS

LEAST_PART = 0.5  # of the budget that a search on the compute stream has, whatever went before


def solve(
    problem: Problem,
    *,
    search: str,
    budget: float,
    seed: int,
    limit: int | None,
    stop_gap: float = 0.0,
    objective: str = TIME,
    progress: Callable[[float, float], None] | None = None,
    begin_at: Sequence[Assignment] = (),
) -> Plan:
    """Search a problem and return the plan with its baselines; it may begin at `begin_at`, too.

    For the time of a step searches minimise compute plus communication. Where a baseline's step takes
    less, because more of it overlaps, that baseline is the plan; the gap stays that of the search.
    """
    begin = time.perf_counter()
    searched = space(problem, objective)
    inner = searched.problem
    inner.check_memory(limit)
    starts = assignments(inner)
    if search in BASELINES and search not in starts:
        raise AutoDDLError(
            f"search: {search!r} does not apply to this program on mesh {problem.mesh}, it needs "
            f"{NEEDS[search]}; allowed here are {', '.join((*SOLVERS, *starts))}"
        )

    known = {name: searched.whole(assignment) for name, assignment in starts.items()}
    assigned = cache(partial(Assigned, problem, limit=limit))
    costs_s: list[float] = []  # of what searches find: a baseline that overlaps more has its own

    def find(bound: int | None) -> SearchResult:
        if search in starts:
            found = inner.result(search, starts[search])
        else:
            left = max(0.0, budget - (time.perf_counter() - begin))
            found = SOLVERS[search](
                inner,
                budget=left,
                stop_gap=stop_gap,
                seed=seed,
                memory_bytes=bound,
                starts=(*starts.values(), *begin_at),
                progress=progress,
            )
        costs_s.append(found.cost_s)
        found = replace(found, assignment=searched.whole(found.assignment))
        if search in starts or objective != TIME:
            return found
        return _with_overlap(assigned, found, known, limit)

    def memory(assignment: Assignment) -> int:
        return assigned(assignment).memory_bytes

    def rows() -> tuple[Estimate, ...]:
        with uncollected():
            return tuple(assigned(a).estimate(name) for name, a in known.items())

    chooses = search not in starts
    try:
        result = within_memory(inner, find, limit, chooses=chooses, memory=memory)
    except InfeasibleError:
        fits = [a for a in known.values() if chooses and limit is not None and memory(a) <= limit]
        if not fits:
            raise
        best = min(fits, key=lambda a: assigned(a).step_s)
        name = next(n for n, a in known.items() if a == best)
        result = problem.result(f"{search}, then {name} for its memory", best)
        costs_s.append(result.cost_s)
    found = {
        "solver": result.solver,
        "objective": objective,
        "seed": seed,
        "searches": max(1, len(costs_s)),
        "seconds": time.perf_counter() - begin,
        "lower_bound_s": result.lower_bound_s,
        "gap": _gap(result.lower_bound_s, costs_s[-1] + assigned(result.assignment).again_s),
    }
    return make_plan(
        problem,
        result,
        memory_limit_bytes=limit,
        baselines=Rows(rows),
        search=found,
        assigned=assigned(result.assignment),
    )


def _gap(bound_s: float, cost_s: float) -> float:
    return 1 - bound_s / cost_s if cost_s > 0 else 0.0


def _with_overlap(
    assigned: Callable[[Assignment], Assigned],
    result: SearchResult,
    starts: Mapping[str, Assignment],
    limit: int | None,
) -> SearchResult:
    """Return the baseline whose step takes less than that of a search's result, if there is one.

    Of those that a bound shows to be slower than the fastest no step is simulated, unless the fastest
    does not fit.
    """
    step_s = assigned(result.assignment).step_s
    others = {name: assigned(a) for name, a in starts.items()}
    faster: dict[str, float] = {}

    def simulate(below_s: Callable[[], float]) -> list[str]:
        for name in sorted(others, key=lambda name: others[name].least_step_s):
            if others[name].least_step_s < below_s() and others[name].step_s < step_s:
                faster[name] = others[name].step_s
        return sorted(faster, key=faster.__getitem__)

    def fits(name: str) -> bool:
        return limit is None or others[name].memory_bytes <= limit

    names = simulate(lambda: min(faster.values(), default=step_s))[:1]
    if names and not fits(names[0]):
        names = [name for name in simulate(lambda: step_s) if fits(name)]
    if not names:
        return result
    name, other = names[0], others[names[0]]
    label = f"{result.solver}, then {name} for its overlap"
    found = other.problem.result(label, other.assignment)
    return replace(found, lower_bound_s=result.lower_bound_s, trace=result.trace)


def best_stream(
    streams: Sequence[bool],
    planned: Callable[[bool, float], Plan],
    cost_s: Callable[[Plan], float],
    *,
    budget: float,
) -> Plan:
    """Return the cheapest plan of some kinds of streams, the first where memory did not bind it.

    Raises:
        InfeasibleError: none fits; that of the kind that needs least.
    """
    begin, plans = time.perf_counter(), []
    failures: list[InfeasibleError] = []
    for stream in streams:
        left_s = budget - (time.perf_counter() - begin)
        try:
            plan = planned(stream, max(left_s, LEAST_PART * budget))
        except InfeasibleError as error:
            failures.append(error)
            continue
        plans.append(plan)
        if plan.search["searches"] == 1:
            break
    if not plans:
        raise min(failures, key=lambda error: error.needed_bytes or 0)
    return min(plans, key=cost_s)
