"""Look for what helps where no plan fits into memory: each remedy is planned before it is proposed.

Trials get a tenth of the budget each, and all together about the budget again. First comes the least
memory with which there is a plan, which shows what is in the way; then what the user's options forbid,
then fewer samples, then more devices.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autoddl.errors import AutoDDLError, InfeasibleError
from autoddl.plan.value import PlanValue
from autoddl.planner.plan_options import AUTO, LAYERS, Options
from autoddl.planner.request import Request
from autoddl.remedies.changes import freeing, more_devices, size_text, smaller_batches, together
from autoddl.remedies.diagnosis import Change, Diagnosis, Remedy
from autoddl.remedies.holdings import largest, parameter_bytes, states_over
from autoddl.sbp.program import Program
from autoddl.sbp.rewrites.micro_batch import micro_batch
from autoddl.search.budget import EVALUATION_S, Allowance, Budget
from autoddl.search.solvers.named import SOLVERS
from autoddl.terminal.status_line import working

SHARE = 0.1  # of the budget for each trial
FIRST = 0.6  # of the budget, after which no less memory is looked for
LEAST_S = 1.0  # of a budget: with less nothing is tried
DEVICES = ("mesh", "cluster")  # options
MEMORIES = 5  # trials for the least memory
SPARE = 1.25  # times what did not do; what is found then needs less, and that is tried, too

Planned = Callable[[Program, Mapping[str, Any]], PlanValue]
"""Plans a program with changed options; raises as `optimize`."""


def explained(
    error: InfeasibleError, request: Request, asked: Options, plan: Planned
) -> InfeasibleError:
    """Return the error with a diagnosis; `asked` are the options as the user gave them.

    It is the same error where memory is not what is missing, or the budget too small for trials.
    """
    limit, budget = request.limit_bytes, request.budget
    if limit is None or not error.line.startswith("memory"):
        return error
    devices = request.cluster.size
    alone = parameter_bytes(request.program, devices)
    seconds = budget.seconds if budget.evaluations is None else budget.evaluations * EVALUATION_S
    short = None if alone <= limit else _parameters_alone(limit, alone, devices)
    told = error.line if short is None else f"{short}. {error.line}"
    if not seconds or seconds < LEAST_S:
        return _with(error, told)
    trials = _Trials(request, plan, seconds)
    with working("nothing fits, trying what helps") as word:
        trials.tell = word
        found = _diagnosis(error, request, asked, trials, alone)
    needed = found.needed_bytes
    if needed is None:
        return _with(error, told, found)
    where = f"mesh {request.mesh}" if request.mesh is not None else str(request.cluster)
    line = short or f"memory {limit:,} B per device: no plan fits on {where}"
    if needed > limit:
        line += f"; the least that a plan was found for is {needed:,} B, {needed - limit:,} B more"
    return _with(error, line, found)


def _with(error: InfeasibleError, line: str, found: Diagnosis | None = None) -> InfeasibleError:
    new = InfeasibleError(line)
    new.needed_bytes, new.hopeless, new.diagnosis = error.needed_bytes, error.hopeless, found
    return new


def _parameters_alone(limit: int, alone: int, devices: int) -> str:
    each = "the device"
    if devices > 1:
        each = f"each of the {devices} devices, even cut over all of them"
    return (
        f"memory {limit:,} B per device: parameters and optimizer states alone take {alone:,} B on "
        f"{each}"
    )


@dataclass(frozen=True)
class _Watched(Budget):
    """A budget that keeps what was begun of it."""

    begun: list[Allowance] = field(default_factory=list, compare=False)

    def __post_init__(self) -> None:
        """It is a part of one that was checked."""

    def begin(self) -> Allowance:
        """Return all of it, from now on."""
        self.begun.append(super().begin())
        return self.begun[-1]


@dataclass
class _Trials:
    """Plans with changed options, until so many seconds are spent."""

    request: Request
    plan: Planned
    seconds: float
    spent_s: float = 0.0
    tell: Callable[[str], None] = lambda word: None
    remedies: list[Remedy] = field(default_factory=list)
    vain: list[Change] = field(default_factory=list)
    untried: list[Change] = field(default_factory=list)

    @property
    def share(self) -> Budget:
        """Return the budget of one."""
        if self.request.budget.evaluations is None:
            return Budget(seconds=SHARE * self.seconds)
        return Budget(evaluations=SHARE * self.request.budget.evaluations)

    def planned(self, change: Change) -> PlanValue:
        """Return the plan with a change.

        Raises:
            AutoDDLError: there is none.
        """
        self.tell(change.text())
        program, watched = self.request.program, _Watched(**vars(self.share))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # they were told before
                if change.batch is not None:
                    program = micro_batch(program, change.batch[1] // change.batch[0])
                return self.plan(program, {**change.options, "budget": watched})
        finally:
            self.spent_s += sum(each.spent_s() for each in watched.begun)

    def tried(self, change: Change, note: Callable[[PlanValue], str] = lambda plan: "") -> bool:
        """Plan with a change and keep what came of it; tell whether it helps."""
        if self.spent_s >= self.seconds:
            self.untried.append(change)
            return False
        try:
            plan = self.planned(change)
        except InfeasibleError:
            self.vain.append(change)
            return False
        except AutoDDLError:  # it is none for this program or cluster
            return False
        step = plan.estimate
        self.remedies.append(Remedy(change, step.step_s, step.memory_bytes, note(plan)))
        return True

    def first(self, changes: Iterable[Change]) -> None:
        """Try changes of which each does more than the one before, until one helps.

        Of those in vain the last is kept where none does.
        """
        before = list(self.vain)
        for change in changes:
            helps = self.tried(change)
            self.vain[:] = before if helps else [*before, *self.vain[len(before) :][-1:]]
            if helps or change in self.untried:
                return


def _diagnosis(
    error: InfeasibleError, request: Request, asked: Options, trials: _Trials, alone: int
) -> Diagnosis:
    limit = request.limit_bytes or 0
    least = _least(error, request, trials, alone)
    if alone <= limit:
        changes = list(freeing(request))
        helped = [trials.tried(each, _zero) for each in changes]
        every = together(changes)
        if every is not None and not any(helped):
            trials.tried(every, _zero)
        trials.first(smaller_batches(request))
    trials.first(more_devices(request, asked.cluster))
    return Diagnosis(
        limit,
        None if least is None else least.estimate.memory_bytes,
        () if least is None else largest(least),
        tuple(sorted(trials.remedies, key=_price)),
        tuple(trials.vain),
        tuple(trials.untried),
        trials.share,
        tuple(_searched(request)),
    )


def _least(
    error: InfeasibleError, request: Request, trials: _Trials, alone: int
) -> PlanValue | None:
    """Return the plan that needs least memory of those that are found; the memory is a remedy."""
    known = min(filter(None, (error.needed_bytes, error.least_bytes)), default=0)
    size, least, remedy = max(known, alone, (request.limit_bytes or 0) + 1), None, None
    # What one stage needs is soon known, and enough; a search for stages takes all its time to fail.
    bounded = error.needed_bytes is None and request.pipeline is None
    bounded &= request.micro_batches is None
    for _ in range(MEMORIES):
        if trials.spent_s >= FIRST * trials.seconds:
            break
        change = Change({"memory": size_text(size)})
        try:
            one = Change({**change.options, "pipeline": 1})
            plan = trials.planned(one if bounded else change)
        except InfeasibleError as failed:
            if least is not None:
                break
            known = failed.needed_bytes or failed.least_bytes or 0
            size = max(known, int(size * SPARE) + 1)
            continue
        except AutoDDLError:
            break
        step = plan.estimate
        if not bounded:
            least, remedy = plan, Remedy(change, step.step_s, step.memory_bytes)
        if not bounded and size_text(step.memory_bytes) == change.options["memory"]:
            break
        size, bounded = step.memory_bytes, False
    trials.remedies += [] if remedy is None else [remedy]
    return least


def _price(remedy: Remedy) -> tuple[int, float]:
    """Return the order of remedies: what costs nothing, fewer samples, more devices, larger ones."""
    change = remedy.change
    dear = ("batch", *DEVICES, "memory")
    what = "batch" if change.batch is not None else next(iter(change.options), "")
    free = change.options.get("mesh", "") is None  # the same devices
    return 0 if free or what not in dear else 1 + dear.index(what), remedy.step_s


def _zero(plan: PlanValue) -> str:
    over = states_over(plan)
    return f"optimizer states over {over}" if over else ""


def _searched(request: Request) -> Iterable[str]:
    """Yield what the search was free to do."""
    if request.search in SOLVERS and not request.pin:
        yield "parameters, gradients and optimizer states in shards over any axis (ZeRO)"
    if request.recompute in (AUTO, LAYERS):
        yield "layers computed again"
    if request.pipeline in (None, AUTO) and request.search in SOLVERS and request.timed:
        yield "stages and micro-batches"
