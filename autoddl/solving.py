"""Search one problem and make the plan, with the baselines beside it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

from autoddl.collector import uncollected
from autoddl.errors import AutoDDLError, InfeasibleError
from autoddl.make_plan import Assigned, layout_of, make_plan, within_memory
from autoddl.perfmodel.memory import estimate, never_reused_bytes
from autoddl.plan import Estimate, Plan, Rows
from autoddl.search import crest
from autoddl.search.baselines import BASELINES, NEEDS, assignments
from autoddl.search.kept import with_kept
from autoddl.search.objective import TIME, space
from autoddl.search.passes import as_read, made_again
from autoddl.search.problem import Problem
from autoddl.search.result import Assignment, SearchResult
from autoddl.search.solvers import SOLVERS

AGAIN = 5e-4  # the gap at which a search ends that only holds less than the one before
HOPELESS = 1.5  # times the limit; of a plan that needs more, where there are other streams to try
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
    baselines: Mapping[str, Assignment] | None = None,
    others: bool = False,
) -> Plan:
    """Search a problem and return the plan with its baselines; it may begin at `begin_at`, too.

    `baselines` are those of the same problem on other streams, where they are known. Where there are
    `others` to try, memory that is far too short for these ends the search.

    For the time of a step searches minimise compute plus communication. Where a baseline's step takes
    less, because more of it overlaps, that baseline is the plan; the gap stays that of the search.
    """
    begin = time.perf_counter()
    waits = problem.compute_stream and limit is not None
    starts = _baselines(problem, objective, baselines or {})
    if waits:
        problem, begin_at = with_kept(problem), ()
    searched = space(problem, objective)
    inner = searched.problem
    inner.check_memory(limit)
    if waits:
        starts = {name: as_read(inner, assignment) for name, assignment in starts.items()}
    if search in BASELINES and search not in starts:
        raise AutoDDLError(
            f"search: {search!r} does not apply to this program on mesh {problem.mesh}, it needs "
            f"{NEEDS[search]}; allowed here are {', '.join((*SOLVERS, *starts))}"
        )

    again = {name: made_again(inner, a) for name, a in starts.items()}
    assigned = cache(partial(Assigned, problem))
    costs_s: list[float] = []  # of what searches find: a baseline that overlaps more has its own

    def find(bound: int | None) -> SearchResult:
        if search in starts:
            found = inner.result(search, fitting(search))
        else:
            left = max(0.0, budget - (time.perf_counter() - begin))
            found = SOLVERS[search](
                inner,
                budget=left,
                stop_gap=max(stop_gap, AGAIN) if costs_s else stop_gap,
                seed=seed,
                memory_bytes=bound,
                starts=dict.fromkeys((*starts.values(), *again.values(), *begin_at)),
                progress=progress,
            )
        found = replace(found, assignment=searched.whole(found.assignment))
        if costs_s and limit is not None and search not in starts:
            found = _relieved(problem, found, limit, memory)
        costs_s.append(found.cost_s)
        if search in starts or objective != TIME or problem.compute_stream:
            return found
        if others and limit is not None and memory(found.assignment) > HOPELESS * limit:
            return found  # given up, whatever a baseline takes
        return _with_overlap(assigned, found, starts, limit)

    def memory(assignment: Assignment) -> int:
        return assigned(assignment).memory_bytes

    def fitting(name: str) -> Assignment:
        """Return the assignment of a baseline; the one that holds less where the other does not fit."""
        held = starts[name]
        if limit is None or held == again[name]:
            return held
        roomy = inner.memory_bytes(held) <= limit and memory(searched.whole(held)) <= limit
        return held if roomy else again[name]

    def rows() -> tuple[Estimate, ...]:
        with uncollected():
            chosen = {name: searched.whole(fitting(name)) for name in starts}
            return tuple(assigned(a).estimate(name) for name, a in chosen.items())

    chooses = search not in starts
    try:
        result = within_memory(
            inner,
            find,
            limit,
            chooses=chooses,
            memory=memory,
            most=HOPELESS if others else math.inf,
        )
    except InfeasibleError as error:
        if error.hopeless:
            raise
        known = {name: searched.whole(fitting(name)) for name in starts if chooses}
        fits = [name for name, a in known.items() if limit is not None and memory(a) <= limit]
        if not fits:
            raise
        name = min(fits, key=lambda n: assigned(known[n]).step_s)
        result = problem.result(f"{search}, then {name} for its memory", known[name])
        costs_s.append(result.cost_s)
    left_s = budget - (time.perf_counter() - begin)
    if chooses and limit is not None and len(costs_s) > 1 and left_s > 0:
        moment = crest.moment(problem, result.assignment)
        bound_s = 0.0 if moment is None else moment.bound_s(problem, limit, left_s)
        result = replace(result, lower_bound_s=max(result.lower_bound_s, bound_s))
    found = {
        "solver": result.solver,
        "objective": objective,
        "seed": seed,
        "searches": max(1, len(costs_s)),
        "seconds": time.perf_counter() - begin,
        "lower_bound_s": result.lower_bound_s,
        "gap": _gap(result.lower_bound_s, costs_s[-1]),
    }
    return make_plan(
        problem,
        result,
        memory_limit_bytes=limit,
        baselines=Rows(rows),
        search=found,
        assigned=assigned(result.assignment),
    )


def _baselines(
    problem: Problem, objective: str, known: Mapping[str, Assignment]
) -> dict[str, Assignment]:
    """Return the baselines in the space of an objective, the known ones where they are possible."""
    inner = space(problem, objective).problem
    possible = all(math.isfinite(inner.cost_s(assignment)) for assignment in known.values())
    return dict(known) if known and possible else assignments(inner)


def _gap(bound_s: float, cost_s: float) -> float:
    return 1 - bound_s / cost_s if cost_s > 0 else 0.0


def _relieved(
    problem: Problem, found: SearchResult, limit: int, memory: Callable[[Assignment], int]
) -> SearchResult:
    """Return what a search found, or the same with one tensor relieved (crest.py) where that fits."""
    moment = crest.moment(problem, found.assignment)
    other = found.assignment if moment is None else moment.relieved(problem, found.assignment)
    if problem.cost_s(other) >= found.cost_s or memory(other) > limit:
        return found
    cost_s, held = problem.costs(other)
    return replace(found, assignment=other, cost_s=cost_s, memory_bytes=held)


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


def in_order(streams: Sequence[bool], problem: Problem, limit: int | None) -> Sequence[bool]:
    """Return the kinds of streams in the order in which they are planned.

    The compute stream is the first where there is so little memory that not even what the cheapest
    baseline keeps fits; it takes less.
    """
    if limit is None or len(streams) == 1:
        return streams
    cheapest = min(assignments(problem).values(), key=problem.cost_s)
    return sorted(streams, reverse=problem.memory_bytes(cheapest) > limit)


def is_settled(plan: Plan, problem: Problem) -> bool:
    """Tell whether no plan on other streams is looked for: memory did not bind, or is far too short.

    The latter is so where, with streams of their own, what the plan's boxings never give back exceeds
    the limit alone, or all that the plan takes is far beyond it.
    """
    if not plan.compute_stream:
        return bool(plan.search["searches"] == 1)
    limit, layout = plan.memory_limit_bytes or 0, layout_of(plan)
    program, shape, sizes = problem.program, problem.mesh.shape, problem.sizes
    if never_reused_bytes(program, shape, layout, sizes) > limit:
        return True
    return estimate(program, shape, layout, sizes=sizes).total > HOPELESS * limit


def best_stream(
    streams: Sequence[bool],
    planned: Callable[[bool, float], Plan],
    cost_s: Callable[[Plan], float],
    settled: Callable[[Plan], bool],
    *,
    budget: float,
) -> Plan:
    """Return the cheapest plan of some kinds of streams, or the first that is `settled`.

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
        if len(plans) + len(failures) < len(streams) and settled(plan):
            return plan
    if not plans:
        raise min(failures, key=lambda error: error.needed_bytes or 0)
    return min(plans, key=cost_s)
