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
from typing import Any

import numpy as np

from autoddl.arguments import AUTO
from autoddl.errors import AutoDDLError, InfeasibleError
from autoddl.make_plan import Assigned, make_plan
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.timeline import MODEL_ERROR
from autoddl.plan import Estimate, Plan
from autoddl.sbp.mesh import Cluster, Level, Mesh
from autoddl.sbp.micro_batch import micro_batch
from autoddl.sbp.positions import Positions, positions
from autoddl.sbp.program import Program
from autoddl.search.baselines import assignments
from autoddl.search.problem import Problem
from autoddl.search.repeated import repeated
from autoddl.search.result import SearchResult
from autoddl.search.solvers import SOLVERS
from autoddl.search.stages import Chain, cut, strict_in_flight
from autoddl.staging import Links, Staged

PLACES = 256  # about so many places of a program are candidates for cuts
ROUNDS = 4  # cuts until the whole memory fits
ROUGH_GAP = 0.01  # of searches for states of less memory


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
    build: Callable[[Program, Mesh], Problem]
    allow: frozenset[str] = frozenset()
    choice: Choice = Choice()


@dataclass(frozen=True)
class Candidate:
    """A number of stages and micro-batches, and the mesh of each stage."""

    stages: int
    micro_batches: int
    mesh: Mesh


@dataclass
class Outcome:
    """What came of a candidate."""

    candidate: Candidate
    bound_s: float | None = None
    step_s: float | None = None
    needed_bytes: int | None = None
    failure: AutoDDLError | None = None


@dataclass
class _Run:
    """The best plan so far, and the time that is left."""

    options: Options
    begin: float = field(default_factory=time.perf_counter)
    best: Plan | None = None
    outcomes: list[Outcome] = field(default_factory=list)

    def left_s(self) -> float:
        return max(0.0, self.options.budget - (time.perf_counter() - self.begin))

    def can_win(self, bound_s: float) -> bool:
        return self.best is None or bound_s < self.best.estimate.step_s


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
        others = [] if choice.stages == 1 else list(candidates(program, options))
        if not others:
            raise
        try:
            return best_pipeline(program, others, options)
        except InfeasibleError as more:
            raise more from error
    if plan is not None and not auto:
        return plan
    found = best_pipeline(program, list(candidates(program, options)), options, plan)
    if plan is not None and found.pipeline is not None:
        rows = (replace(plan.estimate, name="one stage"), *plan.baselines)
        found = replace(found, baselines=rows)
    return found


def candidates(program: Program, options: Options) -> Iterator[Candidate]:
    """Yield what may be chosen: equal stages of all the cluster's devices, and micro-batches.

    Where the user has not fixed them: all divisors of the number of devices, and numbers of
    micro-batches that divide the batch, from that of the stages to eight times it. One stage with
    one micro-batch is none of them.
    """
    choice, cluster = options.choice, options.cluster
    counts = [choice.stages] if isinstance(choice.stages, int) else _divisors(cluster.size)
    for count in counts:
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
    program: Program, found: Sequence[Candidate], options: Options, best: Plan | None = None
) -> Plan:
    """Return the plan whose step takes least among the candidates and `best`; `search` tells of all.

    Raises:
        InfeasibleError: nothing fits into memory; says what would.
        AutoDDLError: no candidate has a plan; what was wrong with the first one.
    """
    run = _Run(options, best=best)
    problems = list(_problems(program, found, run))
    problems.sort(key=lambda item: item[2].lower_bound_s())
    for number, (outcome, problem, weighted) in enumerate(problems):
        outcome.bound_s = weighted.lower_bound_s()
        if not run.can_win(outcome.bound_s):
            continue
        try:
            _searched(outcome, problem, weighted, run, len(problems) - number)
        except AutoDDLError as error:
            outcome.failure = error
    if run.best is None:
        raise _failure(run.outcomes, options)
    told = {"seconds": time.perf_counter() - run.begin, "pipelines": _told(run.outcomes)}
    return replace(run.best, search={**run.best.search, **told})


def _problems(
    program: Program, found: Sequence[Candidate], run: _Run
) -> Iterator[tuple[Outcome, Problem, Problem]]:
    micro: dict[int, Program | AutoDDLError] = {}
    for candidate in found:
        outcome = Outcome(candidate)
        run.outcomes.append(outcome)
        count = candidate.micro_batches
        try:
            if count not in micro:
                micro[count] = micro_batch(program, count, allow=run.options.allow)
            part = micro[count]
            if isinstance(part, AutoDDLError):
                raise part
            problem = run.options.build(part, candidate.mesh)
        except AutoDDLError as error:
            outcome.failure = error
            micro.setdefault(count, error)
            continue
        yield outcome, problem, repeated(problem, candidate.stages, count)


def _searched(outcome: Outcome, problem: Problem, weighted: Problem, run: _Run, rest: int) -> None:
    """Search one candidate, and keep its plan if it is the best that fits."""
    candidate, options = outcome.candidate, run.options
    limit = options.limit_bytes
    seconds = run.left_s() / rest
    starts = list(assignments(weighted).values())

    def search(memory_bytes: int | None, stop_gap: float) -> SearchResult:
        return SOLVERS[options.search](
            weighted, budget=seconds, stop_gap=stop_gap, seed=options.seed,
            memory_bytes=memory_bytes, starts=starts,
        )  # fmt: skip

    result = search(None, options.stop_gap)
    outcome.bound_s = bound_s = result.lower_bound_s
    if not run.can_win(bound_s):
        return
    staged = cut_into_stages(problem, result, candidate, options)
    needed = staged.needed_bytes
    if limit is not None and needed > limit:  # states of less memory, of which more stages fit
        share = int(result.memory_bytes * limit / needed)
        less = search(max(weighted.least_memory_bytes, share), max(options.stop_gap, ROUGH_GAP))
        staged = cut_into_stages(problem, less, candidate, options)
        result = replace(less, lower_bound_s=bound_s)
    outcome.needed_bytes = min(needed, staged.needed_bytes)
    if limit is not None and staged.needed_bytes > limit:
        return
    outcome.step_s = staged.timeline.step_s
    if run.can_win(outcome.step_s):
        run.best = staged_plan(staged, result, options)


def cut_into_stages(
    problem: Problem, result: SearchResult, candidate: Candidate, options: Options
) -> Staged:
    """Return the best cut of an assignment; where none fits into memory the one that needs least.

    Forward results of stages that don't fit are made again for the backward pass.
    """
    assigned = Assigned(problem, result.assignment)
    found = positions(problem.program)
    links = Links(options.profile, options.cluster, candidate.mesh.size)

    def staged(bounds: Sequence[int], recomputed: Sequence[int] = ()) -> Staged:
        return Staged(
            assigned, found, bounds, candidate.micro_batches, links, recomputed=recomputed
        )

    chain, places = _chain(staged(()), found, candidate.stages)
    blocks = _Blocks(problem.program)
    preferred = [n for n, place in enumerate(places[1:-1], 1) if blocks.begins(place)]
    limit = options.limit_bytes
    allowed, tried = limit, []
    for _ in range(1 if limit is None else ROUNDS):
        bounds = _bounds(chain, candidate, allowed, preferred)
        tried.append(staged([places[b] for b in bounds]))
        if limit is None or tried[-1].needed_bytes <= limit:
            return tried[-1]
        over = [n for n, memory in enumerate(tried[-1].memory) if memory.total > limit]
        tried.append(staged(tried[-1].bounds, over))
        if tried[-1].needed_bytes <= limit:
            return tried[-1]
        allowed = int((allowed or limit) * limit / tried[-2].needed_bytes)
    return min(tried, key=lambda t: t.needed_bytes)


def _bounds(
    chain: Chain, candidate: Candidate, limit: int | None, preferred: Sequence[int]
) -> tuple[int, ...]:
    """Return the units before which the stages but the first begin."""
    stages, count = candidate.stages, candidate.micro_batches
    try:
        chosen = cut(chain, stages, count, limit_bytes=limit, preferred=preferred)
    except InfeasibleError:  # then the cut whose stages need about the same memory
        mean = sum(strict_in_flight(stages, count)) / stages
        pairs = zip(chain.held_bytes, chain.active_bytes, strict=True)
        weighed = tuple(float(held + mean * active) for held, active in pairs)
        chosen = cut(replace(chain, seconds=weighed), stages, count)
    return chosen.bounds[1:-1]


def _chain(whole: Staged, found: Positions, stages: int) -> tuple[Chain, list[int]]:
    """Return units between places where a cut is worth it, and these places, with both ends.

    All stages but the last copy forward results into buffers: each of them costs that on average.
    """
    program, count = whole.program, found.count
    seconds, once = np.zeros(count), np.zeros(count)
    for (_, phase, price), op in zip(whole.prices["compute"], program.ops, strict=True):
        (once if phase == "once" else seconds)[found.op[op.name]] += price.seconds
    for item, phase, price_s in whole.boxings():
        place = min((found.op[op] for op, _ in item.readers if op in found.op), default=count - 1)
        (once if phase == "once" else seconds)[place] += price_s
    for name, price_s in whole.sums():
        seconds[found.op[program.producer[name].name]] += price_s
    copied = 1 - 1 / stages if whole.micro_batches > 1 else 0.0
    for name, _, price_s in whole.copies():
        place = found.held[name] if name in found.held else found.op[program.producer[name].name]
        seconds[place] += copied * price_s
    held, active = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    for name, size, forward in whole.sizes():
        place = found.held[name] if name in found.held else found.op[program.producer[name].name]
        (active if forward else held)[place] += size
    crossing = _crossing(whole, found)
    places = _places(crossing, count)
    sums = [np.add.reduceat(values, places[:-1]) for values in (seconds, once, held, active)]
    return (
        Chain(
            tuple(sums[0].tolist()), tuple(sums[1].tolist()),
            tuple(float(crossing[p - 1]) for p in places[1:-1]),
            tuple(int(v) for v in sums[2]), tuple(int(v) for v in sums[3]),
        ),
        places,
    )  # fmt: skip


def _crossing(whole: Staged, found: Positions) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return for every place between positions the seconds of what crosses it, both ways."""
    change = np.zeros(found.count + 1)
    for tensor, state in whole.made.items():
        producer = whole.program.producer.get(tensor)
        here = found.held[tensor] if producer is None else found.op[producer.name]
        readers = [
            found.op[op.name]
            for op, _ in whole.program.consumers.get(tensor, ())
            if op.phase != "optimizer"
        ]
        low, high = min([here, *readers]), max([here, *readers])
        if low < high:
            sent_s = whole.links.seconds(0, 1, whole.local(tensor, state))
            change[low] += sent_s
            change[high] -= sent_s
    return np.cumsum(change)[: found.count - 1]


def _places(crossing: np.ndarray[Any, np.dtype[np.float64]], count: int) -> list[int]:
    """Return the cheapest places of each stretch of the program."""
    stretch = max(1, count // PLACES)
    found = {0, count}
    for begin in range(0, len(crossing), stretch):
        found.add(begin + int(crossing[begin : begin + stretch].argmin()) + 1)
    return sorted(found)


class _Blocks:
    """Where another module of the outermost list of modules begins, as "model.blocks.3"."""

    def __init__(self, program: Program) -> None:
        self.modules = [_block(op.module) for op in program.ops if op.phase == "forward"]

    def begins(self, place: int) -> bool:
        return self.modules[place - 1] != self.modules[place]


def _block(module: str) -> str:
    """Return a module path up to its first number."""
    parts = module.split(".")
    end = next((n for n, part in enumerate(parts) if part.isdigit()), len(parts))
    return ".".join(parts[: end + 1])


def staged_plan(staged: Staged, result: SearchResult, options: Options) -> Plan:
    """Return the plan of a cut."""
    plan = make_plan(
        staged.assigned.problem, result, memory_limit_bytes=options.limit_bytes,
        search=_search(staged, result, options), assigned=staged.assigned,
    )  # fmt: skip
    return replace(
        plan,
        fingerprint=staged.program.structure,
        redistributions=staged.redistributions,
        pipeline=staged.pipeline,
        estimate=estimate("plan", staged),
    )


def estimate(name: str, staged: Staged) -> Estimate:
    """Return what a step takes on the busiest stage's devices, and what these wait."""
    step, count = staged.step, staged.micro_batches
    step_s = staged.timeline.step_s
    totals = []
    for work in step.stages:
        busy = {"compute": 0.0, "boxing": 0.0}
        for times, parts in ((count, work.forward + work.backward), (1, work.once)):
            for stream, seconds in parts:
                busy[stream] += times * seconds
        totals.append((sum(busy.values()), busy["compute"], busy["boxing"]))
    total, compute_s, communication_s = max(totals)
    relative = staged.assigned.prediction.cost
    share = relative.uncertainty_s / relative.step_s if relative.step_s else 0.0
    return Estimate(
        name, compute_s, communication_s, max(memory.total for memory in staged.memory),
        uncertainty_s=step_s * math.hypot(MODEL_ERROR, share),
        overlap_s=max(0.0, total - step_s),
        idle_s=max(0.0, step_s - total),
    )  # fmt: skip


def _search(staged: Staged, result: SearchResult, options: Options) -> dict[str, Any]:
    cost_s = staged.bounded_s
    return {
        "solver": result.solver,
        "objective": "time",
        "seed": options.seed,
        "seconds": 0.0,
        "lower_bound_s": result.lower_bound_s,
        "gap": max(0.0, 1 - result.lower_bound_s / cost_s) if cost_s > 0 else 0.0,
    }


def _told(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    return [
        {
            "stages": o.candidate.stages,
            "micro_batches": o.candidate.micro_batches,
            "mesh": o.candidate.mesh.describe(),
            "lower_bound_s": o.bound_s,
            "step_s": o.step_s,
            "failure": None if o.failure is None else str(o.failure),
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
