"""What each stage of a pipeline does in a step, task by task, in a fixed order.

Simulation, trace, generated scripts and schedule files are all made of this value. A task computes
gradients (CG, the pass F3 or B3 of micro-batch 3), adds them up locally (LA, "LA3"), applies them (AG,
"AG"), or is an end of a message: "F3>1" sends what F3 has made to stage 1, "B3<1" receives the gradients
that B3 needs from there. All ranks of a stage have its tasks.

Two stages with 2 micro-batches under 1F1B, where a message blocks both of its ends:

    stage 0:  F0 F0>1 F1 F1>1 B0<1 B0 LA0 B1<1 B1 LA1 AG
    stage 1:  F0<0 F0 F1<0 B0 LA0 B0>0 F1 B1 LA1 B1>0 AG

Source: Rhino, §6.1 and §6.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from autoddl.errors import AutoDDLError, shown
from autoddl.perfmodel.pipeline.pipeline_step import PipelineStep
from autoddl.perfmodel.pipeline.rendezvous import rendezvous_order
from autoddl.perfmodel.pipeline.schedules import order

CG, LA, AG, SEND, RECEIVE = "CG", "LA", "AG", "send", "receive"
_NUMBER = "(0|[1-9][0-9]{0,5})"  # in one spelling, so that texts can be compared
_TASK = re.compile(f"([FB]){_NUMBER}(?:([<>]){_NUMBER})?")
_SIGNS = {">": SEND, "<": RECEIVE}
_ALLOWED = "F0, B0, F0>1 (send to stage 1) and B0<1 (receive from it)"

Link = tuple[str, int, int]
"""The pass that a message of each micro-batch belongs to, the stage that sends, that which receives."""


class Task(NamedTuple):
    """A task of one stage; `other` is the stage at the other end of a message."""

    kind: str
    turn: str = ""
    micro_batch: int = -1
    other: int = -1

    @property
    def text(self) -> str:
        """Return how files, logs and errors call it."""
        if self.kind == AG:
            return AG
        if self.kind == LA:
            return f"{LA}{self.micro_batch}"
        end = {SEND: f">{self.other}", RECEIVE: f"<{self.other}"}.get(self.kind, "")
        return f"{self.turn}{self.micro_batch}{end}"

    def message(self, stage: int) -> tuple[str, int, int, int]:
        """Return turn, micro-batch, source and target of the message of which this is an end."""
        ends = (stage, self.other) if self.kind == SEND else (self.other, stage)
        return self.turn, self.micro_batch, *ends


Orders = tuple[tuple[Task, ...], ...]


@dataclass(frozen=True)
class StepTasks:
    """The tasks of a step, by stage in the order in which it does them.

    Where messages are a `rendezvous` they are among these. Else they go beside, as soon as there is what
    they carry, and belong to no stage's order.
    """

    stages: Orders
    rendezvous: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the tasks of each stage in a line."""
        return tuple(" ".join(task.text for task in tasks) for tasks in self.stages)

    @property
    def written(self) -> tuple[str, ...]:
        """Return passes and messages of each stage in a line: what `tasks_of` makes all tasks of."""
        kept = [[t.text for t in tasks if t.kind not in (LA, AG)] for tasks in self.stages]
        return tuple(map(" ".join, kept))

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Return by stage how many micro-batches are at most between their two passes."""
        most = []
        for tasks in self.stages:
            flying = [0]
            for task in tasks:
                if task.kind == CG:
                    flying.append(flying[-1] + (1 if task.turn == "F" else -1))
            most.append(max(flying))
        return tuple(most)

    def waits(self) -> Iterator[tuple[int, Task, Task]]:
        """Yield stages, with two tasks of which the second waits for the first, which it comes behind."""
        for stage, tasks in enumerate(self.stages):
            for first, then in pairwise(task for task in tasks if task.kind not in (LA, AG)):
                yield stage, first, then


def links_of(step: PipelineStep) -> tuple[Link, ...]:
    """Return the messages that each micro-batch has."""
    return links_between((t.source, t.target) for t in step.transfers)


def links_between(ends: Iterable[tuple[int, int]]) -> tuple[Link, ...]:
    """Return the messages between pairs of stages: where something goes forward, something comes back."""
    pairs = sorted({(min(pair), max(pair)) for pair in ends})
    return (*(("B", b, a) for a, b in pairs), *(("F", a, b) for a, b in pairs))


def step_tasks(step: PipelineStep) -> StepTasks:
    """Return the tasks of a step, in the order that it is given or that of its schedule.

    Raises:
        AutoDDLError: the order is none, leaves something out, or blocks for ever; names the two waits.
    """
    links, count = links_of(step), len(step.stages)
    if step.orders:
        return tasks_of(step.orders, links, step.micro_batches)
    return scheduled(step.schedule, count, step.micro_batches, links, rendezvous=step.rendezvous)


@lru_cache(maxsize=256)
def scheduled(
    schedule: str, stages: int, micro_batches: int, links: tuple[Link, ...], *, rendezvous: bool
) -> StepTasks:
    """Return the tasks of a schedule that fixes their order."""
    passes = [
        [(each.kind, each.micro_batch) for each in order(schedule, stage, stages, micro_batches)]
        for stage in range(stages)
    ]
    if rendezvous:
        pairs = [(a, b) for turn, a, b in links if turn == "F"]
        actions = rendezvous_order(passes, pairs)  # type: ignore[no-untyped-call]
        found = [[_task(stage, *each) for each in mine] for stage, mine in enumerate(actions)]
    else:
        found = [[Task(CG, *each) for each in mine] for mine in passes]
    return StepTasks(_whole(found, micro_batches), rendezvous)


def _task(stage: int, turn: str, n: int, source: int = -1, target: int = -1) -> Task:
    if source < 0:
        return Task(CG, turn, n)
    return Task(SEND, turn, n, target) if source == stage else Task(RECEIVE, turn, n, source)


def _whole(orders: Sequence[Sequence[Task]], micro_batches: int) -> Orders:
    """Return the orders with what gradients are added up and applied by."""
    found = []
    for tasks in orders:
        mine: list[Task] = []
        for task in tasks:
            mine.append(task)
            if (task.kind, task.turn) == (CG, "B") and micro_batches > 1:
                mine.append(Task(LA, "", task.micro_batch))
        found.append((*mine, Task(AG)))
    return tuple(found)


@lru_cache(maxsize=256)
def tasks_of(written: tuple[str, ...], links: tuple[Link, ...], micro_batches: int) -> StepTasks:
    """Return the tasks of orders of rendezvous as text, checked.

    Raises:
        AutoDDLError: as `step_tasks`.
    """
    orders = [[_read(text, stage) for text in line.split()] for stage, line in enumerate(written)]
    for stage, tasks in enumerate(orders):
        _check_stage(stage, tasks, links, micro_batches)
    _check_ends(orders)
    return StepTasks(_whole(orders, micro_batches), rendezvous=True)


def _read(text: str, stage: int) -> Task:
    match = _TASK.fullmatch(text)
    if match is None:
        raise AutoDDLError(
            f"schedule: stage {stage} has {shown(text, 60)}, which is no task; allowed are {_ALLOWED}"
        )
    turn, n, sign, other = match.groups()
    if sign is None:
        return Task(CG, turn, int(n))
    return Task(_SIGNS[sign], turn, int(n), int(other))


def _check_stage(
    stage: int, tasks: Sequence[Task], links: Sequence[Link], micro_batches: int
) -> None:
    """Raise AutoDDLError where a stage lacks a task, has one twice, or too early."""
    needed: dict[Task, list[Task]] = {}  # tasks, and those that come before each
    for n in range(micro_batches):
        for turn in "FB":
            arrive = [Task(RECEIVE, turn, n, a) for k, a, b in links if (k, b) == (turn, stage)]
            needed |= {task: [] for task in arrive}
            needed[Task(CG, turn, n)] = arrive + ([Task(CG, "F", n)] if turn == "B" else [])
            leave = [Task(SEND, turn, n, b) for k, a, b in links if (k, a) == (turn, stage)]
            needed |= {task: [Task(CG, turn, n)] for task in leave}
    done = set[Task]()
    for task in tasks:
        if task not in needed or task in done:
            wrong = "has twice" if task in done else "has no task"
            raise AutoDDLError(
                f"schedule: stage {stage} {wrong} {task.text}; of {micro_batches} micro-batches it has "
                f"each of F0 … B{micro_batches - 1} and its messages once"
            )
        for before in needed[task]:
            if before not in done:
                raise AutoDDLError(
                    f"schedule: stage {stage} has {task.text} before {before.text}, which it needs; "
                    "move it behind"
                )
        done.add(task)
    missing = [task.text for task in needed if task not in done]
    if missing:
        raise AutoDDLError(
            f"schedule: stage {stage} lacks {missing[0]}; give every pass and message once"
        )


def _check_ends(orders: Sequence[Sequence[Task]]) -> None:
    """Raise AutoDDLError where stages wait for each other for ever."""
    place = [0] * len(orders)
    moving = set(range(len(orders)))
    while moving:
        stage = moving.pop()
        while place[stage] < len(orders[stage]):
            task = orders[stage][place[stage]]
            if task.kind != CG:
                other = task.other
                theirs = orders[other][place[other]]
                if theirs.kind == CG or theirs.message(other) != task.message(stage):
                    break
                place[other] += 1
                moving.add(other)
            place[stage] += 1
    stuck = [stage for stage, tasks in enumerate(orders) if place[stage] < len(tasks)]
    if not stuck:
        return
    circle = [stuck[0]]
    while circle[-1] not in circle[:-1]:
        last = circle[-1]
        circle.append(orders[last][place[last]].other)
    circle = circle[circle.index(circle[-1]) :]
    told = [
        f"stage {stage} waits at {orders[stage][place[stage]].text} (task {place[stage]}) for stage "
        f"{behind}"
        for stage, behind in pairwise(circle)
    ]
    more = f" and so on, {len(told)} in a circle" if len(told) > 2 else ""
    raise AutoDDLError(
        f"schedule: it would never end: {told[0]}, while {told[1]}{more}; put messages between two "
        "stages in the same order on both"
    )
