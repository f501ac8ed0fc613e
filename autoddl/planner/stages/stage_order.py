"""In which order the stages of a plan do their tasks, where an engine keeps to one.

"1f1b" is the engine's own. "gpipe" runs all forward passes first, and keeps all micro-batches. "searched"
is the shortest step that branch and bound finds with as many in flight as the devices hold.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoddl.errors import InfeasibleError
from autoddl.perfmodel.pipeline.schedules import GPIPE, ONE_F_ONE_B
from autoddl.perfmodel.pipeline.searched_order import searched_order
from autoddl.perfmodel.pipeline.step_tasks import links_of, scheduled, tasks_of
from autoddl.planner.stages.staged_assignment import Staged

# Micro-batches in flight beyond those of 1F1B, where they fit. On uneven pipelines a second one still
# shortens steps by up to 2 % (experiments.rhino.order_study).
EXTRA = 2
SEARCHED = "searched"
SCHEDULES = (ONE_F_ONE_B, GPIPE, SEARCHED)


def in_order(staged: Staged, schedule: str, limits: Sequence[int | None]) -> Staged:
    """Return the stages with their tasks in the order of a schedule, within bytes of each one's devices.

    Raises:
        InfeasibleError: they do not fit so.
    """
    if staged.stages == 1 or schedule == ONE_F_ONE_B:
        return staged
    if schedule == SEARCHED:
        return _searched(staged, limits)
    step = staged.step
    tasks = scheduled(GPIPE, staged.stages, staged.micro_batches, links_of(step), rendezvous=True)
    found = staged.with_orders(tasks.written, tasks.in_flight)
    for stage, (memory, limit) in enumerate(zip(found.memory, limits, strict=True)):
        if limit is not None and memory.total > limit:
            raise InfeasibleError(
                f"schedule: {schedule!r} keeps {tasks.in_flight[stage]} micro-batches on stage {stage}, "
                f"{memory.total:,} B per device of {limit:,} B; allowed are {ONE_F_ONE_B!r} and "
                f"{SEARCHED!r}, which keep to the memory"
            )
    return found


def _searched(staged: Staged, limits: Sequence[int | None]) -> Staged:
    most = _most_in_flight(staged, limits)
    orders = searched_order(staged.step, most).orders
    tasks = tasks_of(orders, links_of(staged.step), staged.micro_batches)
    found = staged.with_orders(orders, tasks.in_flight)
    fits = all(
        limit is None or memory.total <= limit
        for memory, limit in zip(found.memory, limits, strict=True)
    )
    return found if fits and found.timeline.step_s < staged.timeline.step_s else staged


def _most_in_flight(staged: Staged, limits: Sequence[int | None]) -> list[int]:
    """Return by stage how many may be in flight: EXTRA more than 1F1B has, where they fit."""
    most = list(staged.in_flight)
    for extra in range(EXTRA, 0, -1):
        wanted = [min(staged.micro_batches, own + extra) for own in staged.in_flight]
        more = staged.with_in_flight(wanted).memory
        for stage, (memory, limit) in enumerate(zip(more, limits, strict=True)):
            if most[stage] == staged.in_flight[stage] and (limit is None or memory.total <= limit):
                most[stage] = wanted[stage]
    return most
