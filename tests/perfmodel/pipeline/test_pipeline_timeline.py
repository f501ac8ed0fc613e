"""The simulated pipeline: closed forms, critical paths found otherwise, what must hold of any step."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.pipeline.pipeline_step import (
    BOXING,
    COMPUTE,
    PipelineStep,
    StageWork,
    TransferWork,
)
from autoddl.perfmodel.pipeline.pipeline_timeline import Span, Timeline, closed_form_s, simulate
from tests.support.pipelines import once_s, pass_s

RANDOM = 100


def stage(forward_s: float, backward_s: float, once_s: float = 0.0) -> StageWork:
    once = ((COMPUTE, once_s),) if once_s else ()
    return StageWork(((COMPUTE, forward_s),), ((COMPUTE, backward_s),), once)


def random_step(seed: int, schedule: str, **kw: Any) -> PipelineStep:
    """Return uneven stages with boxings, and transfers between neighbours and across stages."""
    rng = np.random.default_rng(seed)
    count, micro_batches = int(rng.integers(1, 6)), int(rng.integers(1, 12))

    def parts(most: int) -> tuple[tuple[str, float], ...]:
        streams = rng.choice([COMPUTE, BOXING], int(rng.integers(1, most + 1)), p=[0.7, 0.3])
        return tuple((str(s), float(rng.random())) for s in streams)

    stages = tuple(StageWork(parts(4), parts(4), parts(2)) for _ in range(count))
    transfers = []
    for source, target in itertools.permutations(range(count), 2):
        near = abs(source - target) == 1
        for _ in range(int(rng.integers(1, 3)) if near else int(rng.random() < 0.2)):
            name = f"x{len(transfers)}"
            transfers.append(TransferWork(source, target, 0.5 * float(rng.random()), name))
    if schedule == "credits":
        kw = {"credits": tuple(rng.integers(1, 5, count).tolist()), **kw}
    return PipelineStep(stages, micro_batches, tuple(transfers), schedule, **kw)


CASES = [("gpipe", {}), ("1f1b", {}), ("credits", {})]


def passes(timeline: Timeline) -> dict[tuple[int, str], tuple[float, float]]:
    """Return when each pass ran, by stage and name."""
    found: dict[tuple[int, str], tuple[float, float]] = {}
    for span in timeline.spans:
        if span.stream in (COMPUTE, BOXING):
            start, end = found.get((span.stage, span.name), (math.inf, 0.0))
            found[span.stage, span.name] = min(start, span.start_s), max(end, span.end_s)
    return found


def no_overlap(spans: list[Span]) -> bool:
    ordered = sorted(spans, key=lambda s: (s.start_s, s.end_s))
    return all(a.end_s <= b.start_s + 1e-12 for a, b in itertools.pairwise(ordered))


@pytest.mark.parametrize(("schedule", "options"), CASES)
@pytest.mark.parametrize("seed", range(0, RANDOM, 4))
def test_any_step(schedule: str, options: dict[str, Any], seed: int) -> None:
    step = random_step(seed, schedule, **options)
    timeline = simulate(step)
    ran = passes(timeline)
    moved = {(s.name, s.stream): s for s in timeline.spans if "→" in s.stream}
    lanes = defaultdict(list)
    for span in timeline.spans:
        lanes[span.stage, span.stream].append(span)
    assert all(no_overlap(spans) for spans in lanes.values())
    for s, work in enumerate(step.stages):
        last_s = max(ran[s, f"B{i}"][1] for i in range(step.micro_batches))
        assert not work.once or ran[s, "once"][0] >= last_s
        for i in range(step.micro_batches):
            assert ran[s, f"F{i}"][1] <= ran[s, f"B{i}"][0]
    for transfer in step.transfers:
        kind = "F" if transfer.source < transfer.target else "B"
        stream = f"{transfer.source}→{transfer.target}"
        for i in range(step.micro_batches):
            span = moved[f"{kind}{i} {transfer.tensor}", stream]
            assert ran[transfer.source, f"{kind}{i}"][1] <= span.start_s
            assert span.end_s <= ran[transfer.target, f"{kind}{i}"][0]
    seconds = sum(s.end_s - s.start_s for s in timeline.spans)
    each = sum(pass_s(w) for w in step.stages) + sum(t.seconds for t in step.transfers)
    assert seconds == pytest.approx(step.micro_batches * each + sum(once_s(w) for w in step.stages))
    assert timeline.step_s == max(s.end_s for s in timeline.spans)
    assert timeline.in_flight == tuple(
        in_flight(ran, s, step.micro_batches) for s in range(len(step.stages))
    )
    assert timeline.idle == pytest.approx(tuple(idle(timeline, r) for r in range(len(step.stages))))


def idle(timeline: Timeline, rank: int) -> float:
    """Add up the pieces between neighbouring times in which nothing runs."""
    spans = [
        (s.start_s, s.end_s) for s in timeline.spans if s.stage == rank and "→" not in s.stream
    ]
    times = sorted({0.0, timeline.step_s, *itertools.chain.from_iterable(spans)})
    pieces = [
        after - before
        for before, after in itertools.pairwise(times)
        if not any(start <= before < end for start, end in spans)
    ]
    return sum(pieces) / timeline.step_s


def in_flight(ran: dict[tuple[int, str], tuple[float, float]], s: int, micro_batches: int) -> int:
    spans = [(ran[s, f"F{i}"][0], ran[s, f"B{i}"][1]) for i in range(micro_batches)]
    return max(sum(begin <= at < end for begin, end in spans) for at, _ in spans)


@pytest.mark.parametrize("seed", range(RANDOM))
def test_fixed_orders_and_what_is_in_flight(seed: int) -> None:
    step = random_step(seed, "1f1b")
    timeline = simulate(step)
    ran = passes(timeline)
    count = len(step.stages)
    for s in range(count):
        names = [n for _, n in sorted((ran[s, n], n) for t, n in ran if t == s and n != "once")]
        assert names == one_by_one(step.micro_batches, count - s)
    limit = tuple(min(step.micro_batches, count - s) for s in range(count))
    assert timeline.in_flight == limit
    step = replace(step, schedule="gpipe")
    assert simulate(step).in_flight == (step.micro_batches,) * count


def one_by_one(micro_batches: int, most: int) -> list[str]:
    """Return 1F1B's order from its definition: forward if another one may be in flight."""
    forward = backward = 0
    names = []
    while backward < micro_batches:
        if forward < micro_batches and forward - backward < most:
            names.append(f"F{forward}")
            forward += 1
        else:
            names.append(f"B{backward}")
            backward += 1
    return names


@pytest.mark.parametrize("seed", range(RANDOM))
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_equals_the_longest_path(seed: int, schedule: str) -> None:
    step = random_step(seed, schedule)
    assert simulate(step).step_s == pytest.approx(longest_path(step), rel=1e-9)


def longest_path(step: PipelineStep) -> float:
    """Relax start times until nothing changes; transfers of one pair go in the order of the passes."""
    count, micro_batches = len(step.stages), step.micro_batches
    edges: list[tuple[Any, Any]] = []
    seconds: dict[Any, float] = {}
    for s, work in enumerate(step.stages):
        names = one_by_one(micro_batches, count - s)
        if step.schedule == "gpipe":
            names = [f"F{i}" for i in range(micro_batches)]
            names += [f"B{i}" for i in reversed(range(micro_batches))]
        for kind, parts in (("F", work.forward), ("B", work.backward)):
            for i in range(micro_batches):
                seconds[s, f"{kind}{i}"] = sum(cost for _, cost in parts)
        edges += itertools.pairwise((s, name) for name in names)
    for pair, ours in itertools.groupby(
        sorted(enumerate(step.transfers), key=lambda t: (t[1].source, t[1].target)),
        key=lambda t: (t[1].source, t[1].target),
    ):
        group = list(ours)
        backward = pair[0] > pair[1]
        turns = list(range(micro_batches))
        if backward and step.schedule == "gpipe":
            turns.reverse()
        lane = [(index, i) for i in turns for index, _ in group]
        edges += itertools.pairwise(("move", *move) for move in lane)
        for index, transfer in group:
            for i in range(micro_batches):
                name = f"{'B' if backward else 'F'}{i}"
                seconds["move", index, i] = transfer.seconds
                edges.append(((pair[0], name), ("move", index, i)))
                edges.append((("move", index, i), (pair[1], name)))
    start = dict.fromkeys(seconds, 0.0)
    changed = True
    while changed:
        changed = False
        for before, after in edges:
            if start[before] + seconds[before] > start[after]:
                start[after] = start[before] + seconds[before]
                changed = True
    ends = [max(start[s, f"B{i}"] + seconds[s, f"B{i}"] for i in range(micro_batches))
            + once_s(w) for s, w in enumerate(step.stages)]  # fmt: skip
    return max(ends)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(
    ("stages", "micro_batches"), [(1, 1), (1, 5), (2, 1), (4, 3), (4, 16), (16, 64)]
)
def test_equal_stages_have_the_closed_form(schedule: str, stages: int, micro_batches: int) -> None:
    step = PipelineStep((stage(1.0, 2.5, 0.75),) * stages, micro_batches, schedule=schedule)
    timeline = simulate(step)
    form_s = closed_form_s([3.5] * stages, micro_batches, once_s=[0.75] * stages)
    assert form_s == 3.5 * (micro_batches - 1 + stages) + 0.75
    assert timeline.step_s == pytest.approx(form_s, rel=1e-12)
    idle = 1 - (micro_batches * 3.5 + 0.75) / form_s
    assert timeline.idle == pytest.approx((idle,) * stages)


def test_closed_form_with_transfers() -> None:
    works = (stage(1.0, 2.0, 3.0), stage(1.5, 3.0), stage(0.5, 1.0, 2.0))
    forward = TransferWork(0, 1, 0.5), TransferWork(1, 2, 0.25)
    transfers = (*forward, TransferWork(2, 1, 0.0), TransferWork(1, 0, 1.0))
    kw = {"transfer_s": [1.75], "once_s": [3.0, 0.0, 2.0]}
    seconds = [pass_s(w) for w in works]
    for micro_batches in (1, 2, 9):
        step = PipelineStep(works, micro_batches, transfers, "gpipe")
        assert simulate(step).step_s == pytest.approx(closed_form_s(seconds, micro_batches, **kw))
    assert simulate(PipelineStep(works, 1, transfers)).step_s == closed_form_s(seconds, 1, **kw)


@pytest.mark.parametrize("seed", range(RANDOM))
def test_uneven_gpipe_has_the_closed_form(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, micro_batches = int(rng.integers(1, 7)), int(rng.integers(1, 20))
    works = [stage(s, 2 * s) for s in (0.5 + rng.random(count)).tolist()]
    works[0] = stage(pass_s(works[0]) / 3, 2 * pass_s(works[0]) / 3, 0.7)
    transfers = tuple(
        TransferWork(a, b, 0.5 * float(rng.random()))
        for a, b in itertools.permutations(range(count), 2)
        if abs(a - b) == 1
    )
    form_s = closed_form_s(
        [pass_s(w) for w in works],
        micro_batches,
        transfer_s=[t.seconds for t in transfers],
        once_s=[0.7],
    )
    step = PipelineStep(tuple(works), micro_batches, transfers, "gpipe")
    assert simulate(step).step_s == pytest.approx(form_s)


@pytest.mark.parametrize("seed", range(RANDOM))
def test_uneven_1f1b_without_transfers_is_within_the_closed_form(seed: int) -> None:
    step = replace(random_step(seed, "1f1b"), transfers=())
    works = step.stages
    form_s = closed_form_s(
        [pass_s(w) for w in works], step.micro_batches, once_s=[once_s(w) for w in works]
    )
    first_and_last = sum(pass_s(w) for w in works)
    busiest = max(step.micro_batches * pass_s(w) for w in works)
    assert max(first_and_last, busiest) - 1e-9 <= simulate(step).step_s <= form_s + 1e-9


def test_credits_hold_micro_batches_back() -> None:
    works = (stage(1.0, 2.0),) * 4
    step = PipelineStep(works, 12, schedule="credits")
    assert simulate(replace(step, credits=(1,) * 4)).step_s == 12 * 4 * 3.0
    for credit in (1, 2, 5, 12):
        found = simulate(replace(step, credits=(credit,) * 4)).in_flight
        assert max(found) <= credit and found[0] == credit
    assert simulate(step).in_flight[0] == 8  # 2 · stages


def test_ranks_on_one_device_take_turns() -> None:
    works = (stage(1.0, 2.0, 0.5), stage(2.0, 3.0, 0.25))
    for schedule in ("1f1b", "gpipe", "credits"):
        timeline = simulate(PipelineStep(works, 5, schedule=schedule, device_of=(0, 0)))
        assert timeline.step_s == 5 * 8.0 + 0.75  # never idle, never at once
        assert no_overlap([s for s in timeline.spans if s.stream == COMPUTE])


def test_a_skip_and_a_boxing_by_hand() -> None:
    works = (
        StageWork(((COMPUTE, 1.0), (BOXING, 2.0)), ((COMPUTE, 1.0),)),
        stage(1.0, 1.0),
        stage(1.0, 1.0),
    )
    transfers = (TransferWork(0, 1, 0.5), TransferWork(1, 2, 0.5), TransferWork(0, 2, 5.0, "skip"))
    timeline = simulate(PipelineStep(works, 1, transfers))
    assert Span("F0 skip", 0, "0→2", 3.0, 8.0) in timeline.spans
    assert Span("F0", 2, COMPUTE, 8.0, 9.0) in timeline.spans
    assert timeline.step_s == 12.0
    assert timeline.idle == pytest.approx((1 - 4 / 12, 1 - 2 / 12, 1 - 2 / 12))


def test_stages_without_a_tensor_between_them_run_at_once() -> None:
    ends = (0, 2), (1, 2), (2, 0), (2, 1)
    transfers = tuple(TransferWork(*end, 0.5) for end in ends)
    timeline = simulate(PipelineStep((stage(1.0, 1.0),) * 3, 1, transfers))
    assert Span("F0", 1, COMPUTE, 0.0, 1.0) in timeline.spans
    assert timeline.step_s == 1 + 0.5 + 2 + 0.5 + 1


def test_one_line_for_bad_input() -> None:
    works = (stage(1.0, 1.0),) * 4
    for message, kw in (
        ("schedule 'zero'; allowed: gpipe, 1f1b", {"schedule": "zero"}),
        ("0 micro-batches", {"micro_batches": 0}),
        (r"credits is \(1,\); give 4 numbers", {"credits": (1,)}),
        ("credits is", {"credits": (0, 1, 1, 1)}),
        (r"device_of is \(0,\); give 4", {"device_of": (0,)}),
        ("TransferWork", {"transfers": (TransferWork(0, 4, 1.0),)}),
        ("TransferWork", {"transfers": (TransferWork(1, 1, 1.0),)}),
        ("stage 1 has nan s", {"stages": (works[0], stage(math.nan, 1.0))}),
        ("stage 0 lacks", {"stages": (StageWork((), ((COMPUTE, 1.0),)),)}),
    ):
        with pytest.raises(AutoDDLError, match=message):
            PipelineStep(**dict[str, Any]({"stages": works, "micro_batches": 2} | kw))
