"""The tasks of a step: all of them, in an order that ends; and orders that don't."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.pipeline.pipeline_step import COMPUTE, PipelineStep, StageWork, TransferWork
from autoddl.perfmodel.pipeline.pipeline_timeline import simulate
from autoddl.perfmodel.pipeline.schedules import strict_in_flight
from autoddl.perfmodel.pipeline.step_tasks import links_of, step_tasks, tasks_of
from tests.support.simulated import simulated_tasks


def step_of(stages: int, micro_batches: int, seed: int = 0, schedule: str = "1f1b") -> PipelineStep:
    """Return uneven stages with messages between neighbours, and between some others."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    pairs = {*pairwise(range(stages))}
    pairs |= {pair for pair in combinations(range(stages), 2) if rng.random() < 0.2}
    ends = [end for a, b in sorted(pairs) for end in ((a, b), (b, a))]
    works = [
        StageWork(*(((COMPUTE, float(x)),) for x in numbers.uniform(0.5, 2, 3)))
        for _ in range(stages)
    ]
    sent = [TransferWork(*end, float(numbers.uniform(0.01, 0.4)), "x") for end in ends]
    return PipelineStep(tuple(works), micro_batches, tuple(sent), schedule, rendezvous=True)


def test_two_stages_by_hand() -> None:
    tasks = step_tasks(step_of(2, 2))
    assert tasks.texts == (
        "F0 F0>1 F1 F1>1 B0<1 B0 LA0 B1<1 B1 LA1 AG",
        "F0<0 F0 F1<0 B0 LA0 B0>0 F1 B1 LA1 B1>0 AG",
    )
    assert tasks.in_flight == (2, 1)
    assert step_tasks(step_of(2, 1)).texts == ("F0 F0>1 B0<1 B0 AG", "F0<0 F0 B0 B0>0 AG")
    assert step_tasks(step_of(1, 2)).texts == ("F0 B0 LA0 F1 B1 LA1 AG",)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_the_simulation_does_the_tasks_in_their_order(schedule: str, seed: int) -> None:
    step = step_of(1 + seed % 5, 1 + seed % 4, seed, schedule)
    tasks = step_tasks(step)
    assert simulated_tasks(simulate(step)) == [
        [task for task in text.split() if not task.startswith("LA")] for text in tasks.texts
    ]
    micro_batches, stages = step.micro_batches, len(step.stages)
    kept = (
        strict_in_flight(stages, micro_batches) if schedule == "1f1b" else (micro_batches,) * stages
    )
    assert tasks.in_flight == simulate(step).in_flight == kept
    assert tasks_of(tasks.written, links_of(step), micro_batches) == tasks


@pytest.mark.parametrize("seed", range(6))
def test_both_ends_of_a_message_are_busy(seed: int) -> None:
    """Each stage does one thing at a time, each as early as its order and both ends let it."""
    step = step_of(3, 4, seed)
    timeline, tasks = simulate(step), step_tasks(step)
    free = [0.0] * 3
    left = [[t for t in mine if t.kind != "LA"] for mine in tasks.stages]
    seconds = {(t.source, t.target): t.seconds * sum(
        (s.source, s.target) == (t.source, t.target) for s in step.transfers
    ) for t in step.transfers}  # fmt: skip
    while any(left):
        for stage, mine in enumerate(left):
            if not mine:
                continue
            task, work = mine[0], step.stages[stage]
            if task.other < 0:
                parts = {"F": work.forward, "B": work.backward, "": work.once}[task.turn]
                free[stage] += sum(s for _, s in parts)
                mine.pop(0)
            elif left[task.other] and left[task.other][0].message(task.other) == task.message(
                stage
            ):
                ends = task.message(stage)[2:]
                free[stage] = free[task.other] = max(free[stage], free[task.other]) + seconds[ends]
                mine.pop(0)
                left[task.other].pop(0)
    assert timeline.step_s == pytest.approx(max(free))


def test_messages_that_block_take_no_less() -> None:
    for seed in range(8):
        step = step_of(4, 6, seed)
        assert simulate(step).step_s >= simulate(replace(step, rendezvous=False)).step_s


GOOD = ("F0 F0>1 F1 F1>1 B0<1 B0 B1<1 B1", "F0<0 F0 B0 F1<0 B0>0 F1 B1 B1>0")


@pytest.mark.parametrize(
    ("orders", "told"),
    [
        (("F0 F0>1 F1 F1>1 B0<1 B0 B1<1 B1", "F0<0 F0 B0 B0>0 F1<0 F1 B1 B1>0"),
         r"never end: stage 0 waits at F1>1 \(task 3\) for stage 1, while stage 1 waits at B0>0 "
         r"\(task 3\) for stage 0; put"),
        ((GOOD[0], GOOD[1] + " F0"), "stage 1 has twice F0; of 2 micro-batches"),
        ((GOOD[0], GOOD[1] + " F2"), "stage 1 has no task F2"),
        ((GOOD[0], GOOD[1] + " F1>0"), "stage 1 has no task F1>0"),
        ((GOOD[0][:-3], GOOD[1]), "stage 0 lacks B1; give every"),
        ((GOOD[0].replace("F0 F0>1", "F0>1 F0"), GOOD[1]), "stage 0 has F0>1 before F0, which it needs"),
        ((GOOD[0].replace("B0<1 B0", "B0 B0<1"), GOOD[1]), "stage 0 has B0 before B0<1"),
        ((GOOD[0].replace("F1 ", "[red]x "), GOOD[1]), r"stage 0 has '\[red\]x', which is no task"),
    ],
)  # fmt: skip
def test_one_line_for_an_order_that_is_none(orders: tuple[str, ...], told: str) -> None:
    step = replace(step_of(2, 2), transfers=(TransferWork(0, 1, 0.1),))
    assert simulate(replace(step, orders=GOOD)).step_s > 0
    with pytest.raises(AutoDDLError, match=told) as error:
        step_tasks(replace(step, orders=orders))
    assert "\n" not in str(error.value)


def test_a_circle_of_three_names_two_waits() -> None:
    ends = (0, 1), (1, 2), (0, 2)
    step = replace(step_of(3, 1), transfers=tuple(TransferWork(*end, 0.1) for end in ends))
    tasks = step_tasks(step)
    orders = list(tasks.written)
    assert "F0>1 F0>2" in orders[0]
    orders[0] = orders[0].replace("F0>1 F0>2", "F0>2 F0>1")
    orders[2] = orders[2].replace("F0<0 F0<1", "F0<1 F0<0")
    with pytest.raises(
        AutoDDLError, match=r"stage 0 waits at F0>2 .* for stage 2, while stage 2 waits"
    ):
        tasks_of(tuple(orders), links_of(step), 1)
