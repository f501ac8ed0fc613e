"""How the ops and boxings of a step overlap: a simulation of what a device and its links do when.

All devices do the same at the same time, so one stands for all. It runs its ops one after another in
the order in which their inputs arrive, as OneFlow's actors do; boxings that cross a level of the
cluster go one after another over its links. An op and a boxing, or boxings of two levels, run at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.rank import Rows
from autoddl.perfmodel.simulation import Floats, Graph, Ints, run
from autoddl.perfmodel.step import Price, StepCost, StepPrices, Totals, step_cost
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
    """What a step costs, and its seconds when ops and boxings overlap."""

    cost: Totals
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
    totals = cost.totals
    if compute_stream:
        return Prediction(totals, totals.step_s)
    found = works_of_step(program, mesh, profile, layout, cost)
    return Prediction(totals, found.end_s)


def works(
    program: Program, mesh: Mesh, profile: Profile, layout: Layout, cost: StepCost,
    *, compute_stream: bool = False,
) -> list[Work]:  # fmt: skip
    """Return the work of a step in the order of the program."""
    parts_of = PartsOf(mesh, profile, overlaps=not compute_stream)
    return _Maker(program, parts_of, layout, cost).make().rows()


@dataclass(frozen=True, eq=False)
class Works:
    """The same as many `Work`s, column by column; the graph has the numbers of `resources`."""

    names: Sequence[str]
    resources: Sequence[str]
    graph: Graph

    @classmethod
    def of(
        cls, names: Sequence[str], parts: Sequence[Parts], waits: Sequence[int],
        following: Sequence[Sequence[int]], turn: Sequence[float],
    ) -> Works:  # fmt: skip
        """Return works given one by one; `turn` decides between what is ready at one time."""
        resources: dict[str, int] = {}
        rows = [[resources.setdefault(r, len(resources)) for r, _ in mine] for mine in parts]
        resource, later = Rows.of(rows), Rows.of(following)
        seconds = np.array([s for mine in parts for _, s in mine], dtype=np.float64)
        graph = Graph(
            resource.start, resource.items, seconds, np.array(waits, dtype=np.int64),
            later.start, later.items, turns(np.array(turn, dtype=np.float64)),
        )  # fmt: skip
        return cls(names, tuple(resources), graph)

    def rows(self) -> list[Work]:
        """Return the works by their turn."""
        graph, place = self.graph, self.graph.turn.tolist()
        names = [self.resources[r] for r in graph.resource.tolist()]
        each = list(zip(names, graph.seconds.tolist(), strict=True))
        parts = [tuple(each[a:b]) for a, b in pairwise(graph.begin.tolist())]
        waits, later = graph.waits.tolist(), Rows(graph.first, graph.later).lists()
        return [
            Work(self.names[n], parts[n], waits[n], [place[m] for m in later[n]])
            for n in np.argsort(graph.turn).tolist()
        ]

    def runs(self) -> list[tuple[int, int, float, float]]:
        """Return (work, part, start, end) of all parts; see simulate."""
        who, when = run(self.graph, len(self.resources))
        return [(*w, *t) for w, t in zip(who.tolist(), when.tolist(), strict=True)]

    @property
    def end_s(self) -> float:
        """Return when all has run."""
        return float(run(self.graph, len(self.resources))[1].max(initial=0.0))


def turns(turn: Floats) -> Ints:
    """Return the place of each work in an order by `turn`, of equal ones the first before."""
    place = np.empty(len(turn), dtype=np.int64)
    place[np.argsort(turn, kind="stable")] = np.arange(len(turn))
    return place


def works_of_step(
    program: Program, mesh: Mesh, profile: Profile, layout: Layout, cost: StepCost
) -> Works:
    """Return the work of a step: the ops in their order, then the boxings.

    Ops that no boxing stands before are the same for all layouts (Program.order). A tensor's boxings
    start when it has been made.
    """
    return _Maker(program, PartsOf(mesh, profile), layout, cost).make()


class _Maker:
    """Begin with the ops alone and put boxings between them."""

    def __init__(self, program: Program, parts_of: PartsOf, layout: Layout, cost: StepCost) -> None:
        self.program, self.parts_of = program, parts_of
        self.order = program.order
        self.ops = len(program.ops)
        self.names = list(self.order.number)
        self.parts: list[Parts] = [
            ((DEVICE, p.seconds),) if p.seconds > 0 else () for p in cost.ops.rows()
        ]
        self.waits = list(map(len, self.order.before))
        self.next: list[Sequence[int]] = list(self.order.after)
        self.turn: list[float] = list(range(self.ops))
        self.apart = 1 / (len(cost.boxings.which) + 1)  # between the turns of the boxings of an op
        self.arrived: dict[int, dict[str, int]] = {}  # by op and operand: the last boxing before
        self.boxings: dict[str, list[tuple[Sequence[tuple[str, str]], list[Price]]]] = {}
        prices = iter(cost.boxings.rows())
        for item in layout.redistributions:
            path = [next(prices) for _ in item.path]
            self.boxings.setdefault(item.tensor, []).append((item.readers, path))

    def make(self) -> Works:
        made = self.order.made
        tensors = sorted(self.boxings, key=lambda tensor: made.get(tensor, (-1, 0)))
        for tensor in tensors:
            for readers, path in self.boxings[tensor]:
                self._redistribute(tensor, readers, path)
        self._rewire()
        return Works.of(self.names, self.parts, self.waits, self.next, self.turn)

    def _redistribute(
        self, tensor: str, readers: Sequence[tuple[str, str]], path: Sequence[Price]
    ) -> None:
        maker = self.order.made.get(tensor, (-1, 0))[0]
        before = maker
        for price in path:
            number = len(self.names)
            self.names.append(tensor)
            self.parts.append(self.parts_of(price))
            self.waits.append(int(before >= 0))
            self.turn.append(maker + (number - self.ops + 1) * self.apart)
            self.next.append(())
            if before >= 0:
                self.next[before] = (*self.next[before], number)
            before = number
        for name, operand in readers:
            op = self.order.number.get(name)
            if op is not None and before >= 0:
                self.arrived.setdefault(op, {})[operand] = before

    def _rewire(self) -> None:
        """Let the readers of boxings wait for these, and for makers of which they get other tensors."""
        gone: dict[int, set[int]] = {}
        added: dict[int, list[int]] = {}
        for op, arrived in self.arrived.items():
            direct = {
                self.order.made[tensor][0]
                for operand, tensor in self.program.ops[op].inputs
                if operand not in arrived and tensor in self.order.made
            }
            boxings = set(arrived.values())
            self.waits[op] = len(direct) + len(boxings)
            for maker in self.order.before[op]:
                if maker not in direct:
                    gone.setdefault(maker, set()).add(op)
            for boxing in boxings:
                added.setdefault(boxing, []).append(op)
        for maker, lost in gone.items():
            self.next[maker] = [number for number in self.next[maker] if number not in lost]
        for boxing, ops in added.items():
            self.next[boxing] = [*self.next[boxing], *ops]


class PartsOf:
    """On which resources a boxing runs for how long; equal ones get the same object.

    Where nothing `overlaps`, all of it is the device's.
    """

    def __init__(self, mesh: Mesh, profile: Profile, *, overlaps: bool = True) -> None:
        self.mesh, self.profile, self.overlaps = mesh, profile, overlaps
        self.known: dict[tuple[int, float], Parts] = {}

    def __call__(self, price: Price) -> Parts:
        assert price.boxing is not None
        axes = price.boxing.axes
        key = axes[0] if axes else -1, price.seconds
        if key not in self.known:
            level = self.mesh.axes[axes[0]].level if axes else DEVICE
            free = self.profile.overlapped(level) if axes and self.overlaps else 0.0
            parts = ((DEVICE, (1 - free) * price.seconds), (level, free * price.seconds))
            self.known[key] = tuple([part for part in parts if part[1] > 0])
        return self.known[key]


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
    return Works.of(
        [work.name for work in found],
        [work.parts for work in found],
        [work.waits for work in found],
        [work.next for work in found],
        range(len(found)),
    ).runs()
