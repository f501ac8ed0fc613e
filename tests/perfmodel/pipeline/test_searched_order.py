"""The shortest order of a step: against all orders of small ones, and within its bound for large ones."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import pytest

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.pipeline.pipeline_step import (
    BOXING,
    COMPUTE,
    PipelineStep,
    StageWork,
    TransferWork,
)
from autoddl.perfmodel.pipeline.pipeline_timeline import simulate
from autoddl.perfmodel.pipeline.schedules import strict_in_flight
from autoddl.perfmodel.pipeline.searched_order import NODES, SearchedOrder, searched_order
from autoddl.perfmodel.pipeline.step_tasks import links_of, step_tasks, tasks_of
from autoddl.perfmodel.resources import ResourceParts
from tests.support.pipelines import once_s

SIZES = ((1, 3), (2, 1), (2, 2), (2, 3), (2, 4), (3, 2), (3, 2), (3, 3))  # stages, micro-batches
CLOSE = 1e-9


def random_step(rng: random.Random, stages: int, micro_batches: int) -> PipelineStep:
    """Return a step with links that skip stages, some of one way only; tasks may take no time, or tie."""

    def seconds(most: int = 4) -> float:
        return rng.choice((0.0, rng.randint(1, most), rng.uniform(0, most), rng.uniform(0, most)))

    works = tuple(
        StageWork(
            ((COMPUTE, seconds()), (BOXING, seconds(1))), ((COMPUTE, seconds()),),
            ((COMPUTE, seconds()),) * rng.randint(0, 1),
        )
        for _ in range(stages)
    )  # fmt: skip
    pairs = [pair for pair in combinations(range(stages), 2) if rng.random() < 0.4]
    pairs += [*pairwise(range(stages))] if rng.random() < 0.6 else []
    ends = [end for a, b in pairs for end in ((a, b), (b, a)) if rng.random() < 0.9]
    transfers = tuple(TransferWork(*end, seconds(2), str(n)) for n, end in enumerate(ends))
    return PipelineStep(works, micro_batches, transfers, rendezvous=True)


def durations(step: PipelineStep) -> dict[tuple[str, tuple[int, ...]], float]:
    """Return the seconds of all tasks of a micro-batch, by the pass they are of and their stages."""

    def total(parts: ResourceParts) -> float:
        return sum(each for _, each in parts)

    found = {("F", (s,)): total(work.forward) for s, work in enumerate(step.stages)}
    found |= {("B", (s,)): total(work.backward) for s, work in enumerate(step.stages)}
    for turn, a, b in links_of(step):
        sent = [t.seconds for t in step.transfers if (t.source, t.target) == (a, b)]
        found[turn, (a, b)] = sum(sent)
    return found


def shortest_s(step: PipelineStep, most: Sequence[int], *, by_number: bool = True) -> float:
    """Return the shortest step of all orders: for every set of tasks done, when stages may be free.

    Of these times go those that are no earlier than others in any stage.
    """
    micro_batches, links = range(step.micro_batches), links_of(step)
    tasks = {
        (turn, n, ends): took
        for (turn, ends), took in durations(step).items()
        for n in micro_batches
    }

    def needed(turn: str, n: int, ends: tuple[int, ...]) -> Iterator[tuple]:
        if len(ends) == 2:
            yield turn, n, ends[:1]
        else:
            yield from ((turn, n, (a, b)) for k, a, b in links if (k, b) == (turn, *ends))
            yield from [("F", n, ends)] * (turn == "B")
        if by_number and n:
            yield turn, n - 1, ends

    before = {task: [*needed(*task)] for task in tasks}
    layer: dict[frozenset, list[tuple[float, ...]]] = {frozenset(): [(0.0,) * len(step.stages)]}
    for _ in tasks:
        further: dict[frozenset, list[tuple[float, ...]]] = {}
        for done, times in layer.items():
            for task, took in tasks.items():
                ends = task[2]
                begun, ended = (sum((k, e) == (t, ends) for k, _, e in done) for t in "FB")
                full = task[::2] == ("F", ends[:1]) and begun - ended == most[ends[0]]
                if task in done or full or not done.issuperset(before[task]):
                    continue
                kept = further.setdefault(done | {task}, [])
                for free in times:
                    end = max(free[s] for s in ends) + took
                    new = tuple(end if s in ends else at for s, at in enumerate(free))
                    if not any(no_later(old, new) for old in kept):
                        kept[:] = [old for old in kept if not no_later(new, old)] + [new]
        layer = further
    (times,) = layer.values()
    return min(ended_s(step, free) for free in times)


def no_later(first: Sequence[float], second: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(first, second, strict=True))


def ended_s(step: PipelineStep, free: Sequence[float]) -> float:
    return max(at + once_s(work) for at, work in zip(free, step.stages, strict=True))


def longest_path_s(step: PipelineStep, orders: Sequence[str]) -> float:
    """Return the step of orders: begins of tasks move on until none is before what it waits for."""
    took, lines = durations(step), []
    for stage, line in enumerate(orders):
        told = [re.split(r"(?<=[FB])(\d+)", text) for text in line.split()]
        lines.append([
            (turn, n, (stage,) if not end else
             (stage, int(end[1:])) if end[0] == ">" else (int(end[1:]), stage))
            for turn, n, end in told
        ])  # fmt: skip
    begin = {task: 0.0 for line in lines for task in line}
    moved = True
    while moved:
        moved = False
        for line in lines:
            for first, then in pairwise(line):
                end = begin[first] + took[first[0], first[2]]
                if begin[then] < end:
                    begin[then], moved = end, True
    return ended_s(step, [begin[line[-1]] + took[line[-1][0], line[-1][2]] for line in lines])


def checked(step: PipelineStep, most: Sequence[int], nodes: int = NODES) -> SearchedOrder:
    """Return an order that was found, after what holds of each."""
    found = searched_order(step, most, nodes=nodes)
    tasks = tasks_of(found.orders, links_of(step), step.micro_batches)
    assert no_later(tasks.in_flight, most)
    assert longest_path_s(step, found.orders) == pytest.approx(found.step_s, rel=CLOSE)
    simulated = simulate(replace(step, orders=found.orders))
    assert simulated.step_s == pytest.approx(found.step_s, rel=CLOSE)
    assert found.bound_s <= found.step_s
    for schedule in ("1f1b", "gpipe"):
        other = replace(step, schedule=schedule)
        if no_later(step_tasks(other).in_flight, most):
            assert found.step_s <= simulate(other).step_s * (1 + CLOSE)
    return found


@pytest.mark.parametrize("seed", range(100))
def test_no_order_is_shorter(seed: int) -> None:
    rng = random.Random(seed)
    step = random_step(rng, *SIZES[seed % len(SIZES)])
    most = [rng.randint(1, step.micro_batches) for _ in step.stages]
    shortest = shortest_s(step, most)
    found = checked(step, most)
    assert found.step_s == pytest.approx(shortest, rel=CLOSE)
    assert found.gap == 0
    quick = checked(step, most, nodes=1)
    assert quick.bound_s <= shortest * (1 + CLOSE) and quick.nodes < 200


@pytest.mark.parametrize("seed", range(12))
def test_micro_batches_in_another_order_are_no_faster(seed: int) -> None:
    rng = random.Random(seed)
    step = random_step(rng, *((2, 2), (2, 3), (3, 2))[seed % 3])
    most = [rng.randint(1, step.micro_batches) for _ in step.stages]
    assert shortest_s(step, most, by_number=False) == shortest_s(step, most)


def uneven(stages: int, micro_batches: int, seed: int) -> PipelineStep:
    """Return a chain of stages of which some are four times as long as others."""
    rng = random.Random(seed)
    forward_s = [2 ** rng.uniform(-1, 1) for _ in range(stages)]
    works = tuple(StageWork(((COMPUTE, s),), ((COMPUTE, 2 * s),)) for s in forward_s)
    ends = [end for a, b in pairwise(range(stages)) for end in ((a, b), (b, a))]
    transfers = tuple(TransferWork(*end, rng.uniform(0, 0.3)) for end in ends)
    return PipelineStep(works, micro_batches, transfers, rendezvous=True)


def test_large_pipelines_end_within_their_nodes() -> None:
    step, nodes = uneven(8, 32, seed=1), 100_000
    kept = strict_in_flight(8, 32)
    same, more = (checked(step, [each + extra for each in kept], nodes) for extra in (0, 1))
    for found in (same, more):
        assert found.nodes < nodes
        assert 0 <= found.gap < 0.05
    assert more.step_s < same.step_s < simulate(step).step_s
    assert searched_order(step, kept, nodes=nodes) == same


def test_by_hand() -> None:
    (f0, b0), (f1, b1) = (
        (((COMPUTE, f),) for f in (3.0, 1.0)),
        (((COMPUTE, f),) for f in (1.0, 2.0)),
    )
    transfers = (TransferWork(0, 1, 0.0), TransferWork(1, 0, 0.0))
    step = PipelineStep((StageWork(f0, b0), StageWork(f1, b1)), 2, transfers, rendezvous=True)
    found = checked(step, (2, 1))
    assert simulate(step).step_s == 12
    assert (found.step_s, found.bound_s) == (10, 10)
    assert found.orders[1] == "F0<0 F0 B0 F1<0 B0>0 F1 B1 B1>0"
    assert checked(replace(step, transfers=()), (2, 1)).step_s == 8  # each for itself
    assert checked(step, (1, 1)).step_s == 14  # one after the other


def test_errors_are_one_line() -> None:
    for most in ((1,), (1, 2, 1), (2, 0)):
        with pytest.raises(AutoDDLError, match=r"in flight is .*give 2 numbers from 1 on") as error:
            searched_order(uneven(2, 2, seed=0), most)
        assert "\n" not in str(error.value)
