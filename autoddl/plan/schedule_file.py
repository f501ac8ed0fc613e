"""The schedule of a plan with stages as JSON: by rank, what it does in a step in order.

    {"format": "autoddl.schedule", "version": 1, "order": "1f1b", "micro_batches": 2,
     "ranks": [{"rank": 0, "stage": 0, "tasks": "F0 F0>1 F1 F1>1 B0<1 B0 LA0 B1<1 B1 LA1 AG"}, …],
     "messages": [{"pass": "F", "source": 0, "target": 1, "tensors": ["…"]}, …]}

The tasks are those of perfmodel.pipeline.step_tasks. An order that was edited is read back: the tasks of
all ranks of a stage, which are the same. Local accumulation follows its backward pass, and gradients are
applied at the end; both may be left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from autoddl import json_files, store
from autoddl.errors import AutoDDLError, one_line, shown
from autoddl.json_files import Count
from autoddl.perfmodel.pipeline.schedules import CREDITS
from autoddl.perfmodel.pipeline.step_tasks import AG, LA, StepTasks, tasks_of
from autoddl.plan.value import PlanValue

FORM = "autoddl.schedule", 1
_REMEDY = "write it with plan.schedule(), and edit the tasks alone"


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    rank: Count
    stage: Count
    tasks: str


class _File(msgspec.Struct, forbid_unknown_fields=True):
    micro_batches: Count
    ranks: tuple[_Row, ...]
    order: str = ""
    runs: str = ""
    messages: tuple[dict[str, Any], ...] = ()


def to_json(plan: PlanValue) -> dict[str, Any]:
    """Return the schedule that a script of a plan keeps.

    Raises:
        AutoDDLError: the plan has no stages.
    """
    if len(plan.parts) == 1:
        raise AutoDDLError(
            "schedule: the plan has one stage, which needs none; plan with pipeline='auto' or a number"
        )
    texts, name = plan.tasks.texts, dict(zip(("format", "version"), FORM, strict=True))
    told: dict[str, Any] = {
        **name,
        "order": plan.order_name,
        "micro_batches": plan.micro_batches,
        "ranks": [
            {"rank": rank, "stage": stage, "tasks": texts[stage]}
            for stage, part in enumerate(plan.parts)
            for rank in part.ranks
        ],
        "messages": [
            {
                "pass": turn,
                "source": source,
                "target": target,
                "tensors": _sent(plan, source, target),
            }
            for turn, source, target in plan.links
        ],
    }
    if plan.engine.schedule == CREDITS:
        told["runs"] = "in a script; nn.Graph runs what is ready, within credits"
    return told


def _sent(plan: PlanValue, source: int, target: int) -> list[str]:
    ends = source, target
    return [item.tensor for item in plan.messages if (item.source, item.target) == ends]


def with_schedule(plan: PlanValue, given: Mapping[str, Any] | str | Path) -> PlanValue:
    """Return a plan whose stages do their tasks in the order of a schedule, or of its file.

    Raises:
        AutoDDLError: in one line, what is wrong with it: no schedule, of other ranks, a task that is
            missing or too early, waits that never end, or more micro-batches in flight than fit.
    """
    if plan.engine.schedule == CREDITS:
        raise AutoDDLError(
            f"schedule: the plan is for {plan.engine.title}, which runs what is ready, within credits; "
            "plan with engine='script', whose scripts keep a schedule"
        )
    where, text = "schedule", b""
    if isinstance(given, str | Path):
        where = f"schedule file {store.told(given)}"
        text = store.content(given, where, _REMEDY)
    else:
        text = _encoded(given)
    file = json_files.decode(text, _File, form=FORM, where=where, remedy=_REMEDY)
    try:
        tasks = _tasks(plan, file)
    except AutoDDLError as error:
        raise AutoDDLError(f"{where}: {str(error).removeprefix('schedule: ')}") from None
    for stage, (most, part) in enumerate(zip(tasks.in_flight, plan.parts, strict=True)):
        if most > part.in_flight:
            raise AutoDDLError(
                f"{where}: stage {stage} has {most} micro-batches in flight, the plan's memory is for "
                f"{part.in_flight}; plan with schedule='gpipe', which keeps all"
            )
    return plan.in_own_order(tasks)


def _encoded(given: Any) -> bytes:
    try:
        return msgspec.json.encode(given)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise AutoDDLError(
            f"schedule: no JSON can be made of the {type(given).__name__} ({one_line(str(error), 100)}); "
            f"{_REMEDY}"
        ) from None


def _tasks(plan: PlanValue, file: _File) -> StepTasks:
    if file.micro_batches != plan.micro_batches:
        raise AutoDDLError(
            f"schedule: {file.micro_batches} micro-batches, the plan has {plan.micro_batches}; {_REMEDY}"
        )
    expected = {rank: stage for stage, part in enumerate(plan.parts) for rank in part.ranks}
    if {row.rank: row.stage for row in file.ranks} != expected or len(file.ranks) != len(expected):
        got = [(row.rank, row.stage) for row in file.ranks]
        raise AutoDDLError(
            f"schedule: ranks and stages {shown(got, 100)}, the plan has "
            f"{shown(sorted(expected.items()), 100)}; {_REMEDY}"
        )
    first: dict[int, _Row] = {}
    for row in file.ranks:
        same = first.setdefault(row.stage, row)
        if row.tasks.split() != same.tasks.split():
            raise AutoDDLError(
                f"schedule: rank {row.rank} has other tasks than rank {same.rank}, both of stage "
                f"{row.stage}; give all ranks of a stage the same"
            )
    told = [first[stage].tasks.split() for stage in range(len(plan.parts))]
    written = tuple(" ".join(t for t in tasks if not _follows(t)) for tasks in told)
    found = tasks_of(written, plan.links, plan.micro_batches)
    _check_following(told, found)
    return found


def _follows(task: str) -> bool:
    return task.startswith((LA, AG))


def _check_following(told: Sequence[Sequence[str]], found: StepTasks) -> None:
    """Raise AutoDDLError where local accumulation or the update stand anywhere but where they belong."""
    for stage, (tasks, text) in enumerate(zip(told, found.texts, strict=True)):
        right = text.split()
        if any(map(_follows, tasks)) and list(tasks) != right:
            at, got, wanted = next(
                (n, *pair)
                for n, pair in enumerate(zip_longest(tasks, right, fillvalue=""))
                if len({*pair}) > 1
            )
            raise AutoDDLError(
                f"schedule: stage {stage} has {shown(got, 60) if got else 'nothing'} at task {at}, not "
                f"{wanted or 'nothing'}; each {LA} follows its backward pass, {AG} is last; or leave "
                "them all out"
            )
