"""Choose plans: without stages, or with as many as the user or the memory wants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial

from autoddl.compiled import clock_s
from autoddl.errors import AutoDDLError, InfeasibleError
from autoddl.plan.search_report import Outcome
from autoddl.plan.value import PlanValue
from autoddl.planner.assemble import plan_of, report_of
from autoddl.planner.candidate_plans import Candidate, meshes_and_ways, too_large
from autoddl.planner.plan_options import AUTO
from autoddl.planner.race import Solution, Standing, race
from autoddl.planner.request import Request
from autoddl.planner.stages.staged_trial import staged_trials
from autoddl.planner.whole.halved import can_be_worth, halved
from autoddl.planner.whole.whole_step import OnMesh, WholeStep
from autoddl.sbp.program import Program
from autoddl.sbp.rewrites.micro_batch import check_stages, micro_batch
from autoddl.search.budget import Allowance
from autoddl.search.solvers.named import SOLVERS

TOO_LARGE = "too many states"
WHOLE_BATCH = "one batch"  # the name of the best plan without halves among the baselines
FIRST = 0.6  # of the budget for the whole batch where halves may be better; they have twice the ops


def best(request: Request, count: int) -> tuple[PlanValue, ...]:
    """Return up to so many plans of those that the user allows, all within memory, of unlike states.

    The first is the best. Behind it come those of other candidates and baselines, those with the
    shortest predicted steps first. Where nothing is asked for and one stage does not fit into memory
    there are as many stages as it takes.

    Raises:
        AutoDDLError: there is no plan; says what is wrong or missing.
    """
    request, begin = replace(request, keep=count), clock_s()
    races = _races(request, request.budget.begin())
    first = _made(request, *races, seconds=clock_s() - begin)
    return (first, *_others(request, races, first)[: count - 1]) if count > 1 else (first,)


def _races(request: Request, allowance: Allowance) -> tuple[Standing, Standing | None]:
    """Return the race that the best plan wins, and that of those without stages before it."""
    auto = request.pipeline == AUTO
    whole = request.micro_batches in (None, 1) and not request.cluster.sizes
    if not auto and (request.pipeline not in (None, 1) or not whole):
        return _staged(request, allowance), None
    if request.duplex is True:
        return _unstaged(halved(request), allowance), None
    single: Standing | None = None
    try:
        if whole:
            single = _with_halves(request, allowance.next(allowance.seconds / (2 if auto else 1)))
    except InfeasibleError as error:
        staged = request.pipeline != 1 and request.search in SOLVERS and request.timed
        if not staged or not any(staged_trials(request, partial(micro_batch, request.program))):
            raise
        try:
            return _staged(request, allowance, least=_least_stages(error, request)), None
        except AutoDDLError as why:
            raise InfeasibleError(f"{error}. Stages do not help: {why}") from None
    if not auto:
        assert single is not None
        return single, None
    return _staged(request, allowance, best=single.best if single else None), single


def _with_halves(request: Request, allowance: Allowance) -> Standing:
    """Search plans without stages, and then, if that is asked for, the halves of the batch in turn."""
    if request.duplex != AUTO:
        return _unstaged(request, allowance)
    run = _unstaged(request, allowance.next(FIRST * allowance.seconds))
    whole = run.best
    if whole is None or not can_be_worth(request, whole):
        return run
    try:
        two = halved(request, whole.candidate.mesh)
    except AutoDDLError:
        return run
    more = _unstaged(two, allowance.next(allowance.left_s()), best=whole)
    if more.best is not None and more.best is not whole:
        rows = replace(whole.row, name=WHOLE_BATCH), *whole.baselines
        run.best = replace(more.best, baselines=rows)
    run.outcomes |= more.outcomes
    run.found |= more.found
    return run


def _least_stages(error: InfeasibleError, request: Request) -> int:
    """Return how many stages are worth trying first: half as many as would hold one stage's memory.

    Micro-batches need less.
    """
    if error.needed_bytes is None or request.limit_bytes is None:
        return 1
    return math.ceil(error.needed_bytes / request.limit_bytes / 2)


def _unstaged(request: Request, allowance: Allowance, *, best: Solution | None = None) -> Standing:
    """Search the candidates without stages: the lowest bounds first, equal ones in the given order."""
    meshes = dict(meshes_and_ways(request))
    wide = {m for m in meshes if len(meshes) > 1 and too_large(request.program, m)}
    places = [
        OnMesh(request, mesh, number, ways, allowance.seconds / len(meshes))
        for number, (mesh, ways) in enumerate(meshes.items())
        if mesh not in wide
    ]
    run = race(
        (WholeStep(place, way) for place in places for way in place.ways), allowance, best=best,
        keep=request.keep,
    )  # fmt: skip
    if run.best is None:
        raise run.failure() or InfeasibleError(
            f"mesh: tensors have too many states on all meshes {', '.join(map(str, meshes))}; give one"
        )
    for mesh in wide:
        run.outcomes[Candidate(1, 1, mesh, request.ways_of()[0])] = Outcome(
            1, 1, mesh.describe(), note=TOO_LARGE
        )
    in_turn = [
        Candidate(1, 1, mesh, way, duplex=request.duplex is True)
        for mesh, ways in meshes.items()
        for way in ways
    ]
    run.outcomes = {one: run.outcomes[one] for one in in_turn if one in run.outcomes}
    return run


def _micro_batch(request: Request, count: int) -> Program:
    """Return the program of a micro-batch that goes through stages."""
    check_stages(request.program)
    return micro_batch(request.program, count, allow=request.allow)


def _staged(
    request: Request, allowance: Allowance, *, best: Solution | None = None, least: int = 1
) -> Standing:
    """Search the candidates with stages; `best` is what they have to be better than.

    Raises:
        InfeasibleError: nothing fits into memory; says what would.
        AutoDDLError: no candidate has a plan; what was wrong with the first one.
    """
    micro = cache(partial(_micro_batch, request))
    trials = staged_trials(request, micro, least)
    run = race(trials, allowance, stop_gap=request.stop_gap, best=best, keep=request.keep)
    if run.best is not None:
        return run
    needed = {o.memory_bytes: c for c, o in reversed(run.outcomes.items()) if o.memory_bytes}
    if needed:
        least, one = min(needed.items())
        raise InfeasibleError(
            f"memory {request.limit_bytes:,} B per device: no plan fits on {request.cluster}; the one "
            f"that needs least, {one.text}, needs {least:,} B; give that, more devices, "
            "or a smaller batch"
        )
    number = request.pipeline if isinstance(request.pipeline, int) else "equal"
    raise run.failure() or AutoDDLError(
        f"pipeline: the devices of {request.cluster} can't be parted into {number} stages that way; "
        "give a divisor of their number, and micro_batches that divide the batch"
    )


def _made(
    request: Request, run: Standing, single: Standing | None = None, *, seconds: float
) -> PlanValue:
    """Return the plan of the best solution; `single` is the race of those without stages before.

    Both took so many seconds.
    """
    best, baselines = run.best, run.best.baselines if run.best else ()
    assert best is not None
    outcomes = list(run.outcomes.values())
    if single is not None:
        outcomes = [*single.outcomes.values(), *outcomes]
        if single.best is not None and best.candidate.pipelined:
            baselines = (replace(single.best.row, name="one stage"), *single.best.baselines)
    several = len(outcomes) > 1 or best.candidate.pipelined
    report = report_of(
        best.result,
        best.cost_s,
        objective=request.objective,
        seed=request.seed,
        seconds=seconds,
        searches=best.searches,
        outcomes=tuple(outcomes) if several else (),
        untried=run.untried,
    )
    return plan_of(
        best.found, report, baselines=baselines, limit=request.limit_bytes,
        duplex=best.candidate.duplex,
    )  # fmt: skip


def _others(
    request: Request, races: Sequence[Standing | None], first: PlanValue
) -> list[PlanValue]:
    """Return plans of other states than the first, and what they are compared with, the fastest first."""
    limit, plans = request.limit_bytes, []
    for solution in (s for run in races if run is not None for s in run.found.values()):
        found = [(solution.found, solution.result, solution.cost_s)]
        for name, rival in solution.rivals:
            if limit is None or rival.memory_bytes <= limit:
                result = rival.whole.problem.result(name, rival.whole.assignment)
                found.append((rival, result, result.cost_s))
        for states, result, cost_s in found:
            report = report_of(result, cost_s, objective=request.objective, seed=request.seed)
            plans.append(
                plan_of(
                    states, report, limit=limit, duplex=solution.candidate.duplex
                )
            )  # fmt: skip
    plans.sort(key=lambda plan: plan.estimate.step_s)
    unlike = {plan.states: plan for plan in reversed([first, *plans])}
    del unlike[first.states]
    return list(reversed(unlike.values()))
