"""Where everything of a chart lies; templates write it as SVG.

Along x all is in percent of the width, or in thousandths of it inside of what is stretched (`WIDE`), so
that letters keep their size on every screen; along y in pixels. A bar of 10 of 40 ms has a width of 25.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from autoddl.engine.model import MemoryCourse
from autoddl.explain.sensitivity import GRID, PLAN, Flip
from autoddl.explain.time_and_memory import ParetoPoint
from autoddl.explain.waits import Waits
from autoddl.perfmodel.pipeline.pipeline_step import BOXING, COMPUTE
from autoddl.perfmodel.pipeline.pipeline_timeline import Span, Timeline
from autoddl.plan.parts import Estimate
from autoddl.plan.value import PlanValue
from autoddl.report.perfetto import CATEGORIES
from autoddl.units import bytes_text, seconds_text

WIDE = 1000  # units of what is stretched to the width
JOINED = 0.5  # of these units: shorter pauses are not seen
LANE = 20  # height of a lane
_STAGE = {
    COMPUTE: (0, 13),
    BOXING: (14, 6),
}  # rows of a stage's lane: where they begin, and heights
COLUMNS = 500  # of the course of memory, the most of each
MEMORY_HEIGHT, PARETO_HEIGHT = 220, 320
COMMUNICATION, UPDATE = "communication", "update"
MOST_POINTS = 40
LABEL_UP, LABEL_X, LABEL_Y = (
    7.0,
    5.0,
    16.0,
)  # of the number of a point: pixels above it, and what it takes


@dataclass(frozen=True)
class Bar:
    """A bar from the left, and the whisker of its error, in percent of the width."""

    width: float
    low: float
    high: float


@dataclass(frozen=True)
class Segment:
    """A part of a bar, in percent of the width: what it is, and how it is drawn."""

    name: str
    kind: str
    x: float
    width: float
    value: str


@dataclass(frozen=True)
class Lane:
    """What runs on one resource, as a path for each kind, and the share of the step that it is busy."""

    name: str
    paths: tuple[tuple[str, str], ...]
    busy: float


@dataclass(frozen=True)
class Area:
    """Areas on top of each other, as a path for each part, and heights in pixels that are marked."""

    paths: tuple[tuple[str, str], ...]
    marks: tuple[tuple[str, float], ...]
    backward: float
    top_bytes: float
    peak_bytes: int


@dataclass(frozen=True)
class Dot:
    """A point of the chart of time and memory; its number stands at `label_y`, to its left or right."""

    number: int
    point: ParetoPoint
    x: float
    y: float
    label_y: float
    left: bool


@dataclass(frozen=True)
class Scatter:
    """Points, the path of their front, and what the axes begin and end with."""

    dots: tuple[Dot, ...]
    front: str
    memory: tuple[str, str]
    step: tuple[str, str]
    left_out: int


def ticks(end: float, count: int = 4) -> list[tuple[float, str]]:
    """Return where an axis of seconds is marked, in percent, and with what."""
    return [(100 * n / count, seconds_text(end * n / count)) for n in range(count + 1)]


def bars(rows: Sequence[Estimate]) -> list[Bar]:
    """Return the steps of plans beside each other, with by how much each may be off."""
    most = max((row.step_s + row.uncertainty_s for row in rows), default=0.0) or 1.0
    found = []
    for row in rows:
        ends = max(0.0, row.step_s - row.uncertainty_s), row.step_s + row.uncertainty_s
        found.append(Bar(*(100 * s / most for s in (row.step_s, *ends))))
    return found


def waits_bar(waits: Waits) -> list[Segment]:
    """Return what a step waits for as parts of one bar."""
    total, x, found = waits.step_s or 1.0, 0.0, list[Segment]()
    for number, (name, seconds) in enumerate(waits.links):
        width = 100 * seconds / total
        kind = COMPUTE if name == COMPUTE else f"wait-{number % 4}"
        if seconds > 0:
            found.append(Segment(name, kind, x, width, f"{seconds_text(seconds)}, {width:.1f}%"))
        x += width
    return found


def lanes(plan: PlanValue, timeline: Timeline) -> list[Lane]:
    """Return a lane for the compute of a device and each link, with stages one for each stage first."""
    phases = {} if plan.pipelined else {op.name: op.phase for op in plan.program.ops}
    by_lane = defaultdict[tuple[int, str], list[Span]](list)
    for span in timeline.spans:
        own = not plan.pipelined or span.stream not in (COMPUTE, BOXING)
        name = span.stream if own else f"stage {span.stage}"
        transfer = plan.pipelined and own
        by_lane[len(plan.parts) if transfer else span.stage, name].append(span)
    order = sorted(by_lane, key=lambda key: (key[0], key[1] != COMPUTE, key[1]))
    return [_lane(_lane_name(name), by_lane[n, name], timeline.step_s, phases) for n, name in order]


def _lane_name(name: str) -> str:
    if "→" in name:
        return f"transfers of stage {name}"
    return name if name == COMPUTE or name.startswith("stage") else f"links: {name}"


def _lane(name: str, spans: Sequence[Span], step_s: float, phases: Mapping[str, str]) -> Lane:
    by_kind = defaultdict[tuple[str, tuple[int, int]], list[tuple[float, float]]](list)
    for span in spans:
        rows = (0, LANE) if phases or span.stream not in (COMPUTE, BOXING) else _STAGE[span.stream]
        by_kind[_kind(span, phases), rows].append((span.start_s, span.end_s))
    scale = WIDE / (step_s or 1.0)
    paths = []
    for (kind, (top, height)), times in by_kind.items():
        runs = _runs((a * scale, b * scale) for a, b in times)
        paths.append((kind, "".join(_box(a, b, top, height) for a, b in runs)))
    busy_s = sum(b - a for a, b in _runs(((s.start_s, s.end_s) for s in spans), 0.0))
    return Lane(name, tuple(paths), busy_s / (step_s or 1.0))


def _kind(span: Span, phases: Mapping[str, str]) -> str:
    """Return the kind of a span: a phase, or communication."""
    if span.stream == COMPUTE and phases:
        found = phases.get(span.name, COMMUNICATION)
        return found if found in ("forward", "backward", COMMUNICATION) else UPDATE
    if span.stream != COMPUTE:
        return COMMUNICATION
    return CATEGORIES.get(span.name[:1], UPDATE)


def _runs(
    times: Iterable[tuple[float, float]], joined: float = JOINED
) -> list[tuple[float, float]]:
    """Return intervals in order, those as one between which there is little or nothing."""
    found: list[tuple[float, float]] = []
    for begin, end in sorted(times):
        if found and begin - found[-1][1] <= joined:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def _box(begin: float, end: float, top: int, height: int) -> str:
    width = max(end - begin, 0.3)
    return f"M{begin:.1f} {top}h{width:.1f}v{height}h-{width:.1f}z"


def memory_area(course: MemoryCourse, allocated: int, limit: int | None) -> Area:
    """Return the course of memory, its parts on top of each other, with the most of each column."""
    total = course.total
    groups = _columns(len(total))
    peaks = [max(group, key=total.__getitem__) for group in groups]
    top = max(allocated, *total) * 1.05
    if limit is not None and limit < 2 * top:
        top = max(top, limit * 1.05)
    base = [0] * len(peaks)
    paths = []
    for part, values in course.parts.items():
        upper = [low + values[at] for low, at in zip(base, peaks, strict=True)]
        if any(values):
            paths.append((part, _area(base, upper, top)))
        base = upper
    marks = [("allocated", allocated), *([("limit", limit)] if limit is not None else [])]
    shown = tuple((name, MEMORY_HEIGHT * (1 - size / top)) for name, size in marks if size <= top)
    return Area(tuple(paths), shown, 100 * course.backward / len(total), top, max(total))


def _columns(count: int) -> list[range]:
    """Return so many numbers in at most COLUMNS groups."""
    columns = min(count, COLUMNS)
    ends = [count * n // columns for n in range(columns + 1)]
    return [range(a, b) for a, b in pairwise(ends)]


def _area(lower: Sequence[int], upper: Sequence[int], top: float) -> str:
    """Return the path of an area with a step for each column."""

    def edge(values: Sequence[int]) -> list[str]:
        ys = [MEMORY_HEIGHT * (1 - value / top) for value in values]
        return [
            f"{WIDE * (n + end) / len(ys):.1f} {y:.1f}" for n, y in enumerate(ys) for end in (0, 1)
        ]

    return f"M{'L'.join(edge(upper))}L{'L'.join(reversed(edge(lower)))}z"


def scatter(points: Sequence[ParetoPoint]) -> Scatter:
    """Return plans by memory (to the right) and step (upwards), from zero on."""
    told = sorted(enumerate(points), key=lambda item: (item[0] > 0, not item[1].front, item[0]))
    chosen = [points[n] for n, _ in sorted(told[:MOST_POINTS])]
    most_bytes = max(p.memory_bytes for p in chosen) * 1.08 or 1.0
    most_s = max(p.step_s for p in chosen) * 1.08 or 1.0

    def place(point: ParetoPoint) -> tuple[float, float]:
        return (
            100 * point.memory_bytes / most_bytes, PARETO_HEIGHT * (1 - point.step_s / most_s)
        )  # fmt: skip

    dots: list[Dot] = []
    for number, point in enumerate(chosen, 1):
        x, y = place(point)
        label, left = y - LABEL_UP, x > (LABEL_X if number == 1 else 100 - 2 * LABEL_X)
        beside = [d for d in dots if d.left == left and abs(d.x - x) < LABEL_X]
        while any(abs(d.label_y - label) < LABEL_Y for d in beside):
            label -= LABEL_Y
        dots.append(Dot(number, point, x, y, label if label > LABEL_Y else y, left))
    front = sorted(place(p) for p in chosen if p.front)
    corners = [f"{10 * front[0][0]:.1f} 0"] if front else []
    for (x, y), after in zip(front, [*front[1:], (100.0, 0.0)], strict=True):
        corners += [f"{10 * x:.1f} {y:.1f}", f"{10 * after[0]:.1f} {y:.1f}"]
    return Scatter(
        tuple(dots), f"M{'L'.join(corners)}" if corners else "",
        ("0", bytes_text(most_bytes)), ("0", seconds_text(most_s)), len(points) - len(chosen),
    )  # fmt: skip


def strip(slower: Flip | None, faster: Flip | None) -> list[Segment]:
    """Return which known plan is the best by factor, on a logarithmic scale."""
    least, most = 1 / GRID[-1], GRID[-1]
    ends = slower.factor if slower else least, faster.factor if faster else most
    parts = [
        (slower.best if slower else None, "other", least, ends[0]), (PLAN, PLAN, *ends),
        (faster.best if faster else None, "other", ends[1], most),
    ]  # fmt: skip
    return [
        Segment(name, kind, x := _log(begin), _log(end) - x, name)
        for name, kind, begin, end in parts
        if name is not None
    ]


def factors() -> list[tuple[float, str]]:
    """Return the marks of that scale."""
    marks = [1 / f for f in reversed(GRID)] + [1.0, *GRID]
    return [(_log(f), f"×{f:g}" if f >= 1 else f"÷{1 / f:g}") for f in marks]


def _log(factor: float) -> float:
    return 50 + 50 * math.log(factor) / math.log(GRID[-1])
