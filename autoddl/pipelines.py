"""Plans with stages: how many, where to cut, how many micro-batches, the mesh of each stage.

For a number of stages k, of micro-batches m and a mesh the states of all tensors come from one exact
search under the prices of a step (search.repeated), which also bounds the step of every cut. The cut is
the best for these states (search.stages); the step is simulated, the memory of each stage is that of
OneFlow's own allocation. Candidates whose bound is above the best step are not searched.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

from autoddl.arguments import AUTO
from autoddl.errors import AutoDDLError, InfeasibleError
from autoddl.perfmodel.profile import Profile
from autoddl.plan import Plan
from autoddl.sbp.mesh import Cluster, Level, Mesh
from autoddl.sbp.micro_batch import micro_batch
from autoddl.sbp.program import Program
from autoddl.search.baselines import assignments
from autoddl.search.problem import Problem
from autoddl.search.repeated import repeated
from autoddl.search.result import SearchResult
from autoddl.search.solvers import SOLVERS
from autoddl.stage_cuts import Candidate, cut_into_stages, staged_plan
from autoddl.staging import Links

ROUGH_GAP = 0.01  # of searches for states of less memory, and of candidates among many
LEAST_S = 0.5  # of each search
PATIENCE = 3  # budgets after which it ends without a plan


@dataclass(frozen=True)
class Choice:
    """What the user has fixed: stages (a number, "auto" or None), micro-batches, a mesh."""

    stages: int | str | None = None
    micro_batches: int | None = None
    mesh: Mesh | None = None
    max_axes: int | None = None


@dataclass(frozen=True)
class Options:
    """What the user asks of a search, for all candidates alike."""

    profile: Profile
    cluster: Cluster
    limit_bytes: int | None
    search: str
    budget: float
    stop_gap: float
    seed: int
    build: Callable[[Mesh, Program], Problem]
    allow: frozenset[str] = frozenset()
    choice: Choice = Choice()
    timed: bool = True  # the objective is the time of a step


@dataclass
class Outcome:
    """What came of a candidate."""

    candidate: Candidate
    bound_s: float | None = None
    step_s: float | None = None
    needed_bytes: int | None = None
    failure: AutoDDLError | None = None
    note: str = ""


@dataclass
class _Run:
    """The best plan so far, and the time that is left."""

    options: Options
    begin: float = field(default_factory=time.perf_counter)
    best: Plan | None = None
    chosen: Candidate | None = None  # of which it is a plan
    gap: float = 0.0  # that a rough search of it has left
    outcomes: list[Outcome] = field(default_factory=list)

    def spent_s(self) -> float:
        return time.perf_counter() - self.begin

    def left_s(self) -> float:
        return max(0.0, self.options.budget - self.spent_s())

    def can_win(self, bound_s: float) -> bool:
        return self.best is None or bound_s < self.best.estimate.step_s

    def same(self, step_s: float) -> bool:
        """Tell whether a step takes as long as the best one, which may be better bounded then."""
        return self.best is not None and math.isclose(step_s, self.best.estimate.step_s)


def stage_cluster(cluster: Cluster, stages: int) -> Cluster | None:
    """Return the devices of one of so many equal stages, outermost levels cut first; None if none are."""
    levels = []
    left = stages
    for level in cluster.levels:
        shared = math.gcd(level.size, left)
        if left > 1 and shared != left and shared != level.size:
            return None
        levels.append(Level(level.name, level.size // shared))
        left //= shared
    if left > 1:
        return None
    kept = [level for level in levels if level.size > 1] or levels[-1:]
    return Cluster(tuple(kept))


def whole_cluster(mesh: Mesh | None, cluster: Cluster | None, stages: int | str | None) -> Cluster:
    """Return all devices: `cluster`, or so many times those of the mesh as there are stages."""
    if cluster is not None or mesh is None:
        assert cluster is not None
        return cluster
    outer, *inner = mesh.cluster.levels
    count = stages if isinstance(stages, int) else 1
    return Cluster((Level(outer.name, outer.size * count), *inner))


def choose(program: Program, options: Options, one_stage: Callable[[float], Plan]) -> Plan:
    """Return the plan with the stages that the user asks for; `one_stage` plans without.

    Where nothing is asked for and one stage does not fit into memory, it has as many as it takes.

    Raises:
        AutoDDLError: there is no plan; says what is wrong or missing.
    """
    choice = options.choice
    single = choice.stages in (None, 1) and choice.micro_batches in (None, 1)
    auto = choice.stages == AUTO
    if not single and not auto:
        return best_pipeline(program, list(candidates(program, options)), options)
    plan = None
    try:
        if choice.micro_batches in (None, 1):
            plan = one_stage(options.budget / 2 if auto else options.budget)
    except InfeasibleError as error:
        staged = choice.stages != 1 and options.search in SOLVERS and options.timed
        others = list(candidates(program, options)) if staged else []
        if not others:
            raise
        try:
            return best_pipeline(program, others, options, least=_least_stages(error, options))
        except AutoDDLError as more:
            raise InfeasibleError(f"{error}. Stages do not help: {more}") from None
    if plan is not None and not auto:
        return plan
    found = best_pipeline(program, list(candidates(program, options)), options, plan)
    if plan is not None and found.pipeline is not None:
        rows = (replace(plan.estimate, name="one stage"), *plan.baselines)
        found = replace(found, baselines=rows)
    return found


def _least_stages(error: InfeasibleError, options: Options) -> int:
    """Return how many stages are worth trying first: half as many as would hold one stage's memory.

    Micro-batches need less.
    """
    if error.needed_bytes is None or options.limit_bytes is None:
        return 1
    return math.ceil(error.needed_bytes / options.limit_bytes / 2)


def candidates(program: Program, options: Options) -> Iterator[Candidate]:
    """Yield what may be chosen: equal stages of all the cluster's devices, and micro-batches.

    Where the user has not fixed them: all divisors of the number of devices, and numbers of
    micro-batches that divide the batch, from that of the stages to eight times it. One stage with
    one micro-batch is none of them.
    """
    choice, cluster = options.choice, options.cluster
    counts = [choice.stages] if isinstance(choice.stages, int) else _divisors(cluster.size)
    most = sum(op.phase == "forward" for op in program.ops)
    for count in counts:
        if count > most:
            continue
        part = stage_cluster(cluster, count)
        if part is None:
            continue
        fixed = choice.mesh if choice.mesh is not None and choice.mesh.size == part.size else None
        meshes = [fixed] if fixed is not None else list(part.meshes(choice.max_axes))
        for number in _micro_batches(program, count, choice.micro_batches):
            if (count, number) != (1, 1):
                yield from (Candidate(count, number, mesh) for mesh in meshes)


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _micro_batches(program: Program, stages: int, given: int | None) -> list[int]:
    if given is not None:
        return [given]
    shapes = [program.tensor[name].shape for name in program.inputs]
    batch = math.gcd(*(shape[0] for shape in shapes if shape)) if shapes else 1
    found = [n for n in _divisors(batch) if stages <= n <= 8 * stages]
    if not found:
        return []

    def nearest(wanted: int) -> int:
        return min(found, key=lambda n: abs(math.log(n / wanted)))

    return sorted({nearest(stages * times) for times in (1, 2, 4, 8)})


def best_pipeline(
    program: Program, found: Sequence[Candidate], options: Options, best: Plan | None = None,
    *, least: int = 1,
) -> Plan:  # fmt: skip
    """Return the plan whose step takes least among the candidates and `best`; `search` tells of all.

    Those that waste least time waiting for the first and last micro-batch come first, and those
    with less than `least` stages last. When the budget is spent and there is a plan others are left;
    without one those that need least memory come next.

    Raises:
        InfeasibleError: nothing fits into memory; says what would.
        AutoDDLError: no candidate has a plan; what was wrong with the first one.
    """
    run = _Run(options, best=best)
    micro = cache(partial(micro_batch, program, allow=options.allow))
    ordered = sorted(
        found, key=lambda c: (c.stages < least, (c.stages - 1) / c.micro_batches, c.stages)
    )
    while ordered:
        rest = len(ordered)
        if run.left_s() == 0:
            if run.best is not None or run.spent_s() > PATIENCE * options.budget:
                break
            ordered.sort(key=lambda c: (c.stages, c.micro_batches), reverse=True)
        candidate = ordered.pop(0)
        outcome = Outcome(candidate)
        run.outcomes.append(outcome)
        try:
            problem = options.build(candidate.mesh, micro(candidate.micro_batches))
            _searched(outcome, problem, run, rest)
        except AutoDDLError as error:
            outcome.failure, outcome.note = error, str(error)
    if run.best is None:
        raise _failure(run.outcomes, options)
    if run.chosen is not None and run.gap > options.stop_gap and run.left_s() > 0:
        problem = options.build(run.chosen.mesh, micro(run.chosen.micro_batches))
        _searched(Outcome(run.chosen), problem, run, 1)
    told = {
        "seconds": time.perf_counter() - run.begin,
        "pipelines": _told(run.outcomes),
        "pipelines_left": len(ordered),
    }
    return replace(run.best, search={**run.best.search, **told})


def _searched(outcome: Outcome, problem: Problem, run: _Run, rest: int) -> None:
    """Search one candidate of `rest`, and keep its plan if it is the best that fits.

    As long as there are others, a gap of ROUGH_GAP will do.
    """
    candidate, options = outcome.candidate, run.options
    weighted = repeated(problem, candidate.stages, candidate.micro_batches)
    outcome.bound_s = weighted.lower_bound_s()
    if not run.can_win(outcome.bound_s):
        return
    starts = list(assignments(weighted).values())
    share = max(run.left_s() / rest, options.budget / 3)  # many are ruled out by their bound
    seconds = max(min(run.left_s(), share), LEAST_S)

    def search(memory_bytes: int | None, stop_gap: float) -> SearchResult:
        return SOLVERS[options.search](
            weighted, budget=seconds, stop_gap=stop_gap, seed=options.seed,
            memory_bytes=memory_bytes, starts=starts,
        )  # fmt: skip

    rough = rest > 1
    result = search(None, max(options.stop_gap, ROUGH_GAP if rough else 0.0))
    gap = result.gap if rough else 0.0
    outcome.bound_s = bound_s = result.lower_bound_s
    if not run.can_win(bound_s):
        return
    links, limit = Links(options.profile, options.cluster, candidate.mesh.size), options.limit_bytes
    staged = cut_into_stages(problem, result.assignment, candidate, links, limit)
    needed = staged.needed_bytes
    if limit is not None and needed > limit:  # states of less memory
        fits = int(result.memory_bytes * limit / needed)
        less = search(max(weighted.least_memory_bytes, fits), max(options.stop_gap, ROUGH_GAP))
        staged = cut_into_stages(problem, less.assignment, candidate, links, limit)
        result = replace(less, lower_bound_s=bound_s)
    outcome.needed_bytes = min(needed, staged.needed_bytes)
    if limit is not None and staged.needed_bytes > limit:
        return
    outcome.step_s = staged.timeline.step_s
    if run.can_win(outcome.step_s) or (candidate == run.chosen and run.same(outcome.step_s)):
        run.chosen, run.gap = candidate, gap
        run.best = staged_plan(staged, result, limit=limit, seed=options.seed)


def _told(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    return [
        {
            "stages": o.candidate.stages,
            "micro_batches": o.candidate.micro_batches,
            "mesh": o.candidate.mesh.describe(),
            "lower_bound_s": o.bound_s,
            "step_s": o.step_s,
            "memory_bytes": o.needed_bytes,
            "note": o.note,
        }
        for o in outcomes
    ]


def _failure(outcomes: Sequence[Outcome], options: Options) -> AutoDDLError:
    """Say what is missing: the memory of the candidate that needs least, or what was wrong."""
    tried = [(o.needed_bytes, o.candidate) for o in outcomes if o.needed_bytes is not None]
    if tried:
        needed, best = min(tried, key=lambda pair: pair[0])
        return InfeasibleError(
            f"memory {options.limit_bytes:,} B per device: no plan fits on {options.cluster}; the one "
            f"that needs least, {best.stages} stages of mesh {best.mesh} with {best.micro_batches} "
            f"micro-batches, needs {needed:,} B; give that, more devices, or a smaller batch"
        )
    failures = [o.failure for o in outcomes if o.failure is not None]
    return (
        failures[0]
        if failures
        else AutoDDLError(
            f"pipeline: the devices of {options.cluster} can't be parted into equal stages that way; "
            "give a divisor of their number, and micro_batches that divide the batch"
        )
    )
