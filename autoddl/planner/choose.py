"""Choose plans: without stages, or with as many as the user or the memory wants."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise

from autoddl.compiled import clock_s
from autoddl.errors import AutoDDLError, InfeasibleError
from autoddl.plan.search_report import Outcome, PinCost
from autoddl.plan.value import ROOMY, PlanValue
from autoddl.planner.assemble import plan_of, report_of
from autoddl.planner.candidate_plans import Candidate, mesh_rounds, too_large, ways_on
from autoddl.planner.channel_statistics import check_statistics
from autoddl.planner.plan_options import AUTO, LAYERS
from autoddl.planner.race import Race, Solution
from autoddl.planner.request import Request
from autoddl.planner.stages.stage_order import in_order
from autoddl.planner.stages.staged_trial import staged_trials
from autoddl.planner.whole.halved import can_be_worth, halved
from autoddl.planner.whole.less_again import with_again, with_less
from autoddl.planner.whole.whole_step import OnMesh, WholeStep
from autoddl.planner.whole.with_strides import WITHOUT_STRIDES, with_strides
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.rewrites.in_parts.sync_batchnorm import synchronised
from autoddl.sbp.rewrites.in_parts.whole_masks import with_whole_masks
from autoddl.sbp.rewrites.micro_batch import check_stages, micro_batch
from autoddl.sbp.rewrites.recomputed_layers import in_layers, kept_by_modules
from autoddl.sbp.rules.batchnorm import LOCAL_STATISTICS
from autoddl.sbp.rules.dropout import LOCAL_MASKS
from autoddl.sbp.rules.registry import written
from autoddl.search.budget import Allowance
from autoddl.search.network.pins import told
from autoddl.search.reductions.objective import TIME
from autoddl.search.solvers.named import SOLVERS

TOO_LARGE = "too many states"
# What the best plan had to beat, as baselines
WHOLE_BATCH, ONE_STAGE, IN_PARTS, EVEN = "one batch", "one stage", "in parts", "even cuts"
NONE_AGAIN, ALL_AGAIN = "nothing again", "whole layers again"
STRIDES = 0.05  # of the budget, where all else took less: then they get as long as that
STAGES = 0.5  # of the budget for stages where whole steps have spent it and none of them fits
# Of the budget for the whole batch where halves may be better, which have twice the ops; and for
# statistics in parts, which mostly are
FIRST = 0.6
# Of the budget for what pins cost, and of a step from when on they are told
PINS, DEAR = 0.2, 0.01
# The same with stages, where single ops are tried with the best number of micro-batches alone
STAGED_IN_PARTS = 0.8


def best(request: Request, count: int) -> tuple[PlanValue, ...]:
    """Return up to so many plans of those that the user allows, all within memory, of unlike states.

    The first is the best. Behind it come those of other candidates and baselines, those with the
    shortest predicted steps first. Where nothing is asked for and one stage does not fit into memory
    there are as many stages as it takes.

    Raises:
        AutoDDLError: there is no plan; says what is wrong or missing.
    """
    begin, budget = clock_s(), request.budget.begin()
    share = PINS * budget.seconds if request.pin else 0.0
    allowance = budget.next(budget.seconds - share)
    race = _raced(request, Race(count), allowance)
    if race.best is not None:
        seconds = max(allowance.spent_s(), STRIDES * allowance.seconds)
        strided = with_strides(request, race.best, allowance.next(seconds))
        if strided is not None:
            race.enter(strided)
    first = _made(request, race, clock_s() - begin)
    if request.pin:
        first = _with_dear_pins(request, first, budget.next(share))
    return (first, *_others(request, race, first)[: count - 1]) if count > 1 else (first,)


def _raced(request: Request, race: Race, allowance: Allowance) -> Race:
    """Race whole steps, then two halves of the batch, then stages, as far as each is allowed."""
    auto = request.pipeline == AUTO
    whole = request.micro_batches in (None, 1) and not request.cluster.sizes
    staged = not auto and (request.pipeline not in (None, 1) or not whole)
    if staged or len(request.state_pins) < len(request.pin or {}):
        return _staged(request, race, allowance)
    if request.recompute == LAYERS and in_layers(request.program) is request.program:
        kept = ", ".join(
            f"{name} ({size:,} B)" for name, size in kept_by_modules(request.program)[:3]
        )
        raise AutoDDLError(
            f"recompute: got {LAYERS!r} for a program without layers, modules of numbered lists "
            "(nn.ModuleList, nn.Sequential) of which the backward pass reads what is inside; allowed are "
            f"'auto' and 'none'; in such a list could be {kept or 'nothing that the backward pass reads'}"
        )
    if request.duplex is True:
        return _unstaged(halved(request), race, allowance)
    try:
        if whole:
            seconds = allowance.seconds / (2 if auto else 1)
            _with_halves(request, race, allowance.next(seconds))
            if race.best is not None and _is_short(request, race.best) and _may_repeat(request):
                _with_layers_again(request, race, allowance.next(seconds))
                allowance = allowance.next(seconds)
    except InfeasibleError as error:
        race, told = Race(race.keep), error
        if _may_repeat(request):
            allowance = allowance.next(allowance.seconds)
            told = _with_layers_again(request, race, allowance) or error
        staged = request.pipeline != 1 and request.search in SOLVERS and request.timed
        staged &= _runs_in_micro_batches(request)
        if not staged or not any(staged_trials(request, partial(micro_batch, request.program))):
            if race.best is None:
                raise told from None
            return race
        rest = allowance.next(max(allowance.left_s(), STAGES * allowance.seconds))
        try:
            return _staged(request, race, rest, _least_stages(told, request))
        except AutoDDLError as why:
            if race.best is not None:
                return race
            both = InfeasibleError(f"{told}. Stages do not help: {why}")
            staged_bytes = getattr(why, "needed_bytes", None)
            both.needed_bytes = min(filter(None, (told.needed_bytes, staged_bytes)), default=None)
            both.least_bytes = told.least_bytes
            raise both from None
    staged = auto and (_runs_in_micro_batches(request) or race.best is None)
    return _staged(request, race, allowance) if staged else race


def _runs_in_micro_batches(request: Request) -> bool:
    """Tell whether a graph goes through the engine in micro-batches; scripts of such plans do anyway."""
    if request.program.device not in request.engine.limits.writes_once:
        return True
    return not any(op.phase == "forward" and written(op) for op in request.program.ops)


def _with_halves(request: Request, race: Race, allowance: Allowance) -> None:
    """Search plans without stages, and then, if that is asked for, the halves of the batch in turn."""
    if request.duplex != AUTO:
        _whole_or_in_parts(request, race, allowance)
        return
    whole = _whole_or_in_parts(request, race, allowance.next(FIRST * allowance.seconds)).best
    if whole is not None and can_be_worth(request, whole):
        with suppress(AutoDDLError):
            two = halved(request, whole.candidate.mesh)
            _unstaged(two, race, allowance.next(allowance.left_s()))


def _is_short(request: Request, best: Solution) -> bool:
    """Tell whether more memory might bring a better plan."""
    return not best.settled or best.candidate.way != request.ways_of()[0]


def _may_repeat(request: Request) -> bool:
    """Tell whether layers may be computed again where memory is short, and there are some."""
    return request.recompute == AUTO and in_layers(request.program) is not request.program


def _with_layers_again(
    request: Request, race: Race, allowance: Allowance
) -> InfeasibleError | None:
    """Search plans whose layers are computed again, as if that was asked for; return why there is none.

    So the best is never slower than what "layers" brings. Then as little of it as fits is.
    """
    own = Race(race.keep)
    try:
        _with_halves(replace(request, recompute=LAYERS, duplex=False), own, allowance)
    except InfeasibleError as error:
        return error
    best = own.best
    if best is not None and request.objective == TIME:
        own.enter(with_less(request, _kept_program(request, best), best))
    race.join(own)
    return None


def _whole_or_in_parts(request: Request, race: Race, allowance: Allowance) -> Race:
    """Search plans whose BatchNorm and dropout are in parts, and then those that gather what they see."""
    again = in_layers if request.recompute == LAYERS else lambda program: program
    parted = _in_parts(request, request.program)
    given = replace(request, program=again(request.program))
    if parted is request.program:
        return _unstaged(given, race, allowance)
    with suppress(InfeasibleError):
        first = allowance.next(FIRST * allowance.seconds)
        _unstaged(replace(request, program=again(parted)), race, first)
    return _unstaged(given, race, allowance.next(allowance.left_s()))


def _kept_program(request: Request, solution: Solution) -> Program:
    """Return the program of a solution without stages as it is where nothing is computed again."""
    whole = request.program
    return _in_parts(request, whole) if solution.candidate.in_parts else whole


def _in_parts(request: Request, program: Program) -> Program:
    """Return a program with what may be in parts so, the same if there is nothing."""
    parted = program if LOCAL_STATISTICS in request.allow else synchronised(program)
    if LOCAL_MASKS in request.allow:
        return parted
    return with_whole_masks(parted, alike=request.engine.masks_alike)


def _least_stages(error: InfeasibleError, request: Request) -> int:
    """Return how many stages are worth trying first: half as many as would hold one stage's memory.

    Micro-batches need less.
    """
    if error.needed_bytes is None or request.limit_bytes is None:
        return 1
    return math.ceil(error.needed_bytes / request.limit_bytes / 2)


def _unstaged(request: Request, race: Race, allowance: Allowance) -> Race:
    """Search the candidates without stages: the lowest bounds first, equal ones in the given order.

    Meshes with shares get as much again, after the others: so no plan is slower for them.
    """
    meshes, wide = list[Mesh](), set[Mesh]()
    for number, some in enumerate(mesh_rounds(request)):
        meshes += some
        wide |= {m for m in some if len(meshes) > 1 and too_large(request.program, m)}
        places = [
            OnMesh(request, mesh, turn, ways_on(request, mesh), allowance.seconds / len(some))
            for turn, mesh in enumerate(some)
            if mesh not in wide
        ]
        if places:
            own = allowance.next(allowance.seconds) if number else allowance
            race.run((WholeStep(place, way) for place in places for way in place.ways), own)
        if number and not race.lacks_memory(some):
            break
    if race.best is None:
        raise race.failure() or InfeasibleError(
            f"mesh: tensors have too many states on all meshes {', '.join(map(str, meshes))}; give one"
        )
    for mesh in wide:
        race.outcomes[Candidate(1, 1, mesh, request.ways_of()[0])] = Outcome(
            1, 1, mesh.describe(), note=TOO_LARGE
        )
    turn = {mesh: number for number, mesh in enumerate(meshes)}
    told = sorted(race.outcomes.items(), key=lambda item: (item[0].duplex, turn[item[0].mesh]))
    race.outcomes = dict(told)
    return race


def _micro_batch(request: Request, count: int) -> Program:
    """Return the program of a micro-batch that goes through stages."""
    check_stages(request.program)
    part = micro_batch(request.program, count, allow=request.allow)
    check_statistics(part, count)
    return part


def _staged(request: Request, race: Race, allowance: Allowance, least: int = 1) -> Race:
    """Search the candidates with stages, which have to be better than the best so far.

    Raises:
        InfeasibleError: nothing fits into memory; says what would.
        AutoDDLError: no candidate has a plan; what was wrong with the first one.
    """
    micro = cache(partial(_micro_batch, request))
    before = race.best
    if _in_parts(request, request.program) is not request.program:
        parted = cache(lambda count: _in_parts(request, micro(count)))
        trials = staged_trials(request, parted, least, in_parts=True)
        race.run(
            trials, allowance.next(STAGED_IN_PARTS * allowance.seconds), stop_gap=request.stop_gap
        )
        allowance = allowance.next(allowance.left_s())
    trials = staged_trials(request, micro, least)
    if race.best is not None and race.best is not before:  # then these are tried as single ops
        best = race.best.candidate
        numbers = (best.stages, best.micro_batches), (0, best.micro_batches)
        trials = (
            trial
            for trial in trials
            if (trial.candidate.stages, trial.candidate.micro_batches) in numbers
        )
    race.run(trials, allowance, stop_gap=request.stop_gap)
    if race.best is not None:
        return race
    needed = {o.memory_bytes: c for c, o in reversed(race.outcomes.items()) if o.memory_bytes}
    if needed:
        least, one = min(needed.items())
        error = InfeasibleError(
            f"memory {request.limit_bytes:,} B per device: no plan fits on {request.cluster}; the one "
            f"that needs least, {one.text}, needs {least:,} B; give that, more devices, "
            "or a smaller batch"
        )
        error.needed_bytes = least
        raise error
    number = request.pipeline if isinstance(request.pipeline, int) else "equal"
    raise race.failure() or AutoDDLError(
        f"pipeline: the devices of {request.cluster} can't be parted into {number} stages that way; "
        "give a divisor of their number, and micro_batches that divide the batch"
    )


def _made(request: Request, race: Race, seconds: float) -> PlanValue:
    """Return the plan of the best solution, which took so many seconds to find.

    Its baselines begin with the best of what was raced before: one stage, or one batch without halves.
    """
    best, baselines = race.winners[-1], race.winners[0].baselines
    for before, after in pairwise(race.winners):
        name, old, new = ONE_STAGE, before.candidate, after.candidate
        if new.strides:
            name = WITHOUT_STRIDES
        elif new.duplex:
            name = WHOLE_BATCH
        elif new.pipelined == old.pipelined and _cuts_evenly(old) and not _cuts_evenly(new):
            name = EVEN
        elif not new.pipelined and new.recomputed != old.recomputed:
            name = ALL_AGAIN if old.recomputed else NONE_AGAIN
        elif new.pipelined == old.pipelined and old.in_parts and not new.in_parts:
            name = IN_PARTS
        baselines = replace(before.row, name=name), *baselines
    if best.candidate.recomputed:
        kept = with_again(request, _kept_program(request, best), best, ()).found
        baselines = kept.estimate(ROOMY), *baselines
    elif best.found.recomputed:
        baselines = best.found.with_nothing_again().estimate(ROOMY), *baselines
    several = len(race.outcomes) > 1 or best.candidate.pipelined
    report = report_of(
        best.result,
        best.cost_s,
        objective=request.objective,
        seed=request.seed,
        seconds=seconds,
        searches=best.searches,
        outcomes=tuple(race.outcomes.values()) if several else (),
        untried=race.untried,
    )
    found = best.found
    if request.schedule is not None and found.stages > 1:
        limits = [request.limit_of(p.assigned.problem.profile.kinds) for p in found.parts]
        found = in_order(found, request.schedule, limits)
    return plan_of(
        found, report, baselines=baselines, limit=request.limit_bytes,
        duplex=best.candidate.duplex,
    )  # fmt: skip


def _with_dear_pins(request: Request, plan: PlanValue, allowance: Allowance) -> PlanValue:
    """Return a plan that tells which pins make its step longer: each is left out once, in an equal part.

    The stages and meshes stay, and a plan without stages is what the search begins with.
    """
    pin, dear = request.pin or {}, list[PinCost]()
    stages = len(plan.parts) if plan.pipelined else 1
    mesh = request.mesh if plan.pipelined else plan.mesh
    less = replace(
        request, mesh=mesh, pipeline=stages, micro_batches=plan.micro_batches, duplex=plan.duplex,
        start=plan, progress=None,
    )  # fmt: skip
    for number, (pattern, text) in enumerate(pin.items()):
        others = {name: other for name, other in pin.items() if name != pattern}
        race, left_s = Race(), allowance.left_s() / (len(pin) - number)
        if left_s:
            with suppress(AutoDDLError):
                _raced(replace(less, pin=others), race, allowance.next(left_s))
        if race.best and race.best.row.step_s * (1 + DEAR) < plan.estimate.step_s:
            dear.append(PinCost(told(pattern, text), race.best.row.step_s))
    return replace(plan, search=replace(plan.search, pins=tuple(dear)))


def _cuts_evenly(candidate: Candidate) -> bool:
    return candidate.mesh.cuts == candidate.mesh.shape


def _others(request: Request, race: Race, first: PlanValue) -> list[PlanValue]:
    """Return plans of other states than the first, and what they are compared with, the fastest first."""
    limit, plans = request.limit_bytes, []
    for solution in race.found.values():
        found = [(solution.found, solution.result, solution.cost_s)]
        for name, rival in solution.rivals:
            if limit is None or rival.memory_bytes <= limit:
                result = rival.whole.problem.result(name, rival.whole.assignment)
                found.append((rival, result, result.cost_s))
        for states, result, cost_s in found:
            report = report_of(result, cost_s, objective=request.objective, seed=request.seed)
            duplex = solution.candidate.duplex
            plans.append(plan_of(states, report, limit=limit, duplex=duplex))
    plans.sort(key=lambda plan: plan.estimate.step_s)
    unlike = {plan.states: plan for plan in reversed([first, *plans])}
    del unlike[first.states]
    return list(reversed(unlike.values()))
