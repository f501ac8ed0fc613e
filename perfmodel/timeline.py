"""How the ops and boxings of a step overlap: a simulation of what a device and its links do when.

All devices do the same at the same time, so one stands for all. It runs its ops one after another in
the order in which their inputs arrive, as OneFlow's actors do; boxings that cross a level of the
cluster go one after another over its links. An op and a boxing, or boxings of two levels, run at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.step import Price, StepCost, StepPrices, step_cost
from autoddl.perfmodel.tasks import Layout
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program

DEVICE = "device"  # the resource that runs ops; the others are levels of the cluster
# Relative. With it 7 of 10 plans took what was predicted ± uncertainty on testbeds of four ranks
# (experiments.fidelity).
MODEL_ERROR = 0.07

Parts = tuple[tuple[str, float], ...]


@dataclass(slots=True)
class Work:
    """One op or boxing: its parts in turn, as (resource, seconds), and what waits for it."""

    name: str
    parts: Parts
    waits: int = 0
    next: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Span:
    """A part of some work on a resource, in seconds after the step has begun."""

    name: str
    resource: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Prediction:
    """What a step costs op by op, and its seconds when ops and boxings overlap."""

    cost: StepCost
    step_s: float

    @property
    def overlap_s(self) -> float:
        """Return the seconds in which ops and boxings go on at once."""
        seconds = self.cost.step_s - self.step_s
        return seconds if seconds > 1e-9 * self.step_s else 0.0  # else it is rounding

    @property
    def uncertainty_s(self) -> float:
        """Return by how much `step_s` may be off: what the fits miss and what the model does."""
        return math.hypot(self.cost.uncertainty_s, MODEL_ERROR * self.step_s)


def predict(
    program: Program,
    mesh: Mesh,
    profile: Profile,
    layout: Layout,
    *,
    prices: StepPrices | None = None,
    compute_stream: bool = False,
) -> Prediction:
    """Return what a step takes in which ops and boxings overlap as Profile.overlap says.

    Nothing does where boxings are ops of the compute stream. `prices` are those of another layout of
    the program, if there was one.

    Raises:
        AutoDDLError: as step.step_cost.
    """
    cost = step_cost(program, mesh, profile, layout, prices=prices)
    if compute_stream:
        return Prediction(cost, cost.step_s)
    found = runs(works(program, mesh, profile, layout, cost))
    return Prediction(cost, max((end_s for _, _, _, end_s in found), default=0.0))


def works(
    program: Program, mesh: Mesh, profile: Profile, layout: Layout, cost: StepCost,
    *, compute_stream: bool = False,
) -> list[Work]:  # fmt: skip
    """Return the work of a step in the order of the program."""
    maker = _Maker(program, mesh, profile, layout, cost)
    maker.compute_stream = compute_stream
    return maker.make()


class _Maker:
    """Collect works; a tensor's redistributions start when it has been made."""

    def __init__(
        self, program: Program, mesh: Mesh, profile: Profile, layout: Layout, cost: StepCost
    ) -> None:
        self.program, self.mesh, self.profile, self.cost = program, mesh, profile, cost
        self.compute_stream = False
        self.found: list[Work] = []
        self.made: dict[str, int] = {}
        self.arrived: dict[tuple[str, tuple[str, str]], int] = {}
        self.boxings: dict[str, list[tuple[Sequence[tuple[str, str]], list[Price]]]] = {}
        prices = iter(cost.boxings)
        for item in layout.redistributions:
            path = [next(prices) for _ in item.path]
            self.boxings.setdefault(item.tensor, []).append((item.readers, path))

    def make(self) -> list[Work]:
        produced = {name for op in self.program.ops for _, name in op.outputs}
        for tensor in self.boxings:  # in their order, so that every run gives the same step
            if tensor not in produced:
                self._redistribute(tensor)
        for op, price in zip(self.program.ops, self.cost.ops, strict=True):
            sources = [
                self.made.get(name)
                if name not in self.boxings
                else self.arrived.get((name, (op.name, operand)), self.made.get(name))
                for operand, name in op.inputs
            ]
            parts = ((DEVICE, price.seconds),) if price.seconds > 0 else ()
            number = self._add(op.name, parts, sources)
            for _, name in op.outputs:
                self.made[name] = number
                if name in self.boxings:
                    self._redistribute(name)
        return self.found

    def _redistribute(self, tensor: str) -> None:
        for readers, path in self.boxings.get(tensor, ()):
            before = self.made.get(tensor)
            for price in path:
                before = self._add(tensor, self._parts(price), [before])
            if before is not None:
                self.arrived.update({(tensor, reader): before for reader in readers})

    def _parts(self, price: Price) -> Parts:
        assert price.boxing is not None
        axes = price.boxing.axes
        level = self.mesh.axes[axes[0]].level if axes else DEVICE
        free = self.profile.overlapped(level) if axes and not self.compute_stream else 0.0
        parts = ((DEVICE, (1 - free) * price.seconds), (level, free * price.seconds))
        return tuple([part for part in parts if part[1] > 0])

    def _add(self, name: str, parts: Parts, after: Sequence[int | None]) -> int:
        number = len(self.found)
        sources = {source for source in after if source is not None}
        self.found.append(Work(name, parts, len(sources)))
        for source in sources:
            self.found[source].next.append(number)
        return number


def simulate(found: Sequence[Work]) -> list[Span]:
    """Return when each part of the works runs: on each resource, what was ready first goes first.

    Ties go by the position in `found`, which must have every work after those that it waits for.
    """
    return [
        Span(found[index].name, found[index].parts[part][0], start_s, end_s)
        for index, part, start_s, end_s in runs(found)
    ]


def runs(found: Sequence[Work]) -> list[tuple[int, int, float, float]]:
    """Return (work, part, start, end) of all parts; see simulate."""
    waits = [work.waits for work in found]
    queues: dict[str, list[tuple[float, int, int]]] = {}
    busy: set[str] = set()
    changed: dict[str, None] = {}  # resources whose queue or state changed just now
    # A work has `part` parts behind it. In ascending order this is a heap.
    events = [(0.0, index, 0) for index, count in enumerate(waits) if count == 0]
    done: list[tuple[int, int, float, float]] = []
    while events:
        now, index, part = heappop(events)
        work = found[index]
        if part > 0:
            busy.discard(work.parts[part - 1][0])
            changed[work.parts[part - 1][0]] = None
        if part < len(work.parts):
            heappush(queues.setdefault(work.parts[part][0], []), (now, index, part))
            changed[work.parts[part][0]] = None
        else:
            for later in work.next:
                waits[later] -= 1
                if waits[later] == 0:
                    heappush(events, (now, later, 0))
        if events and events[0][0] <= now:
            continue
        for resource in changed:
            if queues.get(resource) and resource not in busy:
                _, index, part = heappop(queues[resource])
                end = now + found[index].parts[part][1]
                busy.add(resource)
                done.append((index, part, now, end))
                heappush(events, (end, index, part + 1))
        changed.clear()
    return done
