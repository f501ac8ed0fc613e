"""The queue of collectives: an example by hand, and a scheduler that is written as engines have it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoddl.perfmodel.resources import DEVICE
from autoddl.perfmodel.simulation.event_simulation import StepQueue, Works
from autoddl.perfmodel.simulation.launch_queue import Collectives, LaunchLimits
from autoddl.perfmodel.simulation.list_schedule import ordered
from tests.perfmodel.works import SimulatedWork, works_of

MB = 1 << 20
ALPHA_S, BETA_S = 20e-6, 10e-6 / MB
LIMITS = LaunchLimits(8 * MB, 64, 32, np.array([[ALPHA_S]]), np.array([[BETA_S]]))
ALONE = LIMITS._replace(fixed=np.array([[math.inf]]))


def queued(works: list[SimulatedWork], sizes: dict[int, int], limits: LaunchLimits) -> Works:
    """Return works of which those with a size are collectives, the others ops."""
    size = np.array([sizes.get(n, 0) for n in range(len(works))])
    kind = np.where(size > 0, 0, -1)
    return works_of(works).queued(StepQueue(Collectives(kind, size), kind < 0, limits))


def collective(name: str, size: int, waits: int = 1, level: str = "node") -> SimulatedWork:
    return SimulatedWork(name, ((level, ALPHA_S + size * BETA_S),), waits)


def gradients(*seconds: float) -> list[SimulatedWork]:
    """Return three ops, each with a collective of 4 MB behind it."""
    works = []
    for name, second in zip("abc", seconds, strict=True):
        works.append(SimulatedWork(name, ((DEVICE, second),), next=[len(works) + 1]))
        works.append(collective(name.upper(), 4 * MB))
    return works


def test_neighbours_go_together_once_all_are_ready() -> None:
    works = queued(gradients(100e-6, 50e-6, 10e-6), {1: 4 * MB, 3: 4 * MB, 5: 4 * MB}, LIMITS)
    spans = {span.name: (span.start_s, span.end_s) for span in works.spans()}
    assert set(spans) == {"a", "b", "c", "A", "C"}
    assert spans["A"] == pytest.approx((150e-6, 250e-6))  # 8 MB
    assert spans["C"] == pytest.approx((250e-6, 310e-6))
    critical = works.critical_s()
    assert critical == pytest.approx([100e-6, 50e-6, 50e-6, 50e-6, 0, 60e-6])
    assert critical.sum() == pytest.approx(works.end_s)


def test_what_is_ready_waits_for_what_comes_before_it() -> None:
    """A comes first, since its op does; that waits for a boxing over another level."""
    works = gradients(10e-6, 10e-6, 10e-6)
    works.insert(0, SimulatedWork("input", (("gpu", 500e-6),), next=[1]))
    for work in works[1:]:
        work.next = [later + 1 for later in work.next]
    works[1].waits = 1
    found = queued(works, {2: 4 * MB, 4: 4 * MB, 6: 4 * MB}, ALONE)
    starts = {span.name: span.start_s for span in found.spans()}
    assert starts["b"] == 0 and starts["B"] == pytest.approx(510e-6 + 60e-6)


def launches(works: Works) -> list[int]:
    assert works.launched is not None
    return works.launched.launch.tolist()


def test_one_that_waits_for_another_is_of_a_later_wave() -> None:
    """B waits for A, first itself, so that C comes before it, then with its op, behind which c runs."""
    sizes = {1: MB, 3: MB, 5: MB}
    works = gradients(10e-6, 10e-6, 10e-6)
    works[1].next, works[3].waits = [3], 2
    assert launches(queued(works, sizes, LIMITS)) == [0, 1, 2, 3, 4, 1]
    works = gradients(10e-6, 10e-6, 10e-6)
    works[1].next, works[2].waits = [2], 1
    assert launches(queued(works, sizes, LIMITS)) == [0, 1, 2, 3, 4, 3]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[SimulatedWork], dict[int, int]]:
    """Draw ops and collectives; each waits for some before it."""
    works, sizes = [], {}
    for number in range(draw(st.integers(1, 14))):
        before = [n for n in range(number) if draw(st.integers(0, 3)) == 0]
        for other in before:
            works[other].next.append(number)
        if draw(st.booleans()):
            sizes[number] = draw(st.sampled_from([1, MB, 5 * MB, 20 * MB]))
            level = draw(st.sampled_from(["node", "gpu"]))
            works.append(collective("", sizes[number], len(before), level))
        else:
            seconds = draw(st.sampled_from([10e-6, 35e-6, 90e-6]))
            works.append(SimulatedWork("", ((DEVICE, seconds),), len(before)))
    return works, sizes


def literally(
    works: list[SimulatedWork], sizes: dict[int, int], limits: LaunchLimits
) -> dict[int, float]:
    """Return when each work ends: groups that a scheduler launches in their order, a device as is ready.

    Waves and layers are those of longest ways, one by one.
    """
    before: dict[int, list[int]] = {n: [] for n in range(len(works))}
    for number, work in enumerate(works):
        for later in work.next:
            before[later].append(number)
    ways: dict[int, tuple[int, int]] = {}
    ops = [n for n in range(len(works)) if n not in sizes]
    for number in range(len(works)):
        chained = [n for n in ops if n < number][-1:] if number in ops else []
        since = [
            (ways[n][0] + 1, 0) if n in sizes else (ways[n][0], ways[n][1] + 1)
            for n in (*before[number], *chained)
        ]
        ways[number] = max(since, default=(0, 0))
    groups: list[list[int]] = []
    for number in sorted(sizes, key=lambda n: (ways[n], n)):
        total = sum(-(-sizes[n] // 32) * 32 for n in (*(groups[-1] if groups else ()), number))
        joint = groups and ways[groups[-1][0]][0] == ways[number][0] and total <= limits.threshold
        if joint and math.isfinite(limits.fixed[0, 0]):
            groups[-1].append(number)
        else:
            groups.append([number])
    ends: dict[int, float] = {}
    device_s = stream_s = 0.0
    while len(ends) < len(works):
        left = [n for n in range(len(works)) if n not in ends]
        can = [n for n in left if all(b in ends for b in before[n])]
        ready = {n: max((ends[b] for b in before[n]), default=0.0) for n in can}
        if groups and all(n in ready for n in groups[0]):
            group = groups.pop(0)
            whole = sum(sizes[n] for n in group)
            stream_s = max(stream_s, *(ready[n] for n in group)) + ALPHA_S + whole * BETA_S
            ends |= dict.fromkeys(group, stream_s)
            continue
        # an op can't be overtaken by one that is ready later, which may wait for a collective
        op = min(
            (n for n in ready if n in ops), key=lambda n: (max(ready[n], device_s), ready[n], n)
        )
        device_s = max(ready[op], device_s) + works[op].parts[0][1]
        ends[op] = device_s
    return ends


@given(graphs(), st.booleans())
def test_steps_end_when_a_literal_scheduler_ends_them(
    graph: tuple[list[SimulatedWork], dict[int, int]], joint: bool
) -> None:
    works, sizes = graph
    limits = LIMITS if joint else ALONE
    found = queued(works, sizes, limits)
    expected = literally(works, sizes, limits)
    assert found.plain.ended == pytest.approx([expected[n] for n in range(len(works))])
    assert found.critical_s().sum() == pytest.approx(found.end_s)
    better = ordered(found, np.array([n for n in range(len(works)) if n not in sizes], np.int64))
    assert better is None or better.end_s < found.end_s
