"""What one training step under a planned layout takes, op by op and boxing by boxing, and how sure.

The same prices as those of the search (search.network.builder), for layouts that are given: an
old plan on a new cluster, a plan to be held against the clock.

What a price is sure of is the mean error of the kernel or link that it comes from. All prices from one
source err alike, so their errors add up; different sources err independently: two matmuls of 3 ms and
1 ms ± 10 % and a boxing of 5 ms ± 6 % take 9 ms ± 0.5 ms, the root of 0.4² + 0.3².
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from autoddl.engine.model import CollectiveQueue
from autoddl.errors import AutoDDLError
from autoddl.perfmodel.boxing_prices import BoxingPrices, GroupedGather, Way
from autoddl.perfmodel.places import places_of, slowest
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.profile_entries import Kernel, Link
from autoddl.perfmodel.resources import DEVICE, ResourceParts
from autoddl.perfmodel.roofline import OpWork
from autoddl.perfmodel.simulation.launch_queue import Collectives, LaunchLimits
from autoddl.perfmodel.simulation.step_graph import BoxingParts
from autoddl.ragged import Ragged, distinct
from autoddl.sbp.boxing import Boxing, boxing, gathers
from autoddl.sbp.layout import NONE, Layout, Path
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Op, Program, Tensor
from autoddl.sbp.program.columns import Ints
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.state import NdSbp

UNKNOWN_ERROR = 0.3  # relative, of a price that no measurement stands behind


class Price(NamedTuple):
    """The seconds of one op or boxing, what they were computed from, and its mean relative error."""

    seconds: float
    source: str
    error: float
    boxing: Boxing | None = None
    way: Way | None = None


class Totals(NamedTuple):
    """The seconds of a step, and by how much they may be off."""

    compute_s: float
    communication_s: float
    uncertainty_s: float

    @property
    def step_s(self) -> float:
        """Return compute plus communication."""
        return self.compute_s + self.communication_s


class Priced(NamedTuple):
    """Ops or boxings by number: the n-th has the price `prices[which[n]]`."""

    prices: Sequence[Price]
    which: Ints

    def rows(self) -> list[Price]:
        """Return the prices one by one."""
        return list(map(self.prices.__getitem__, self.which.tolist()))


class StepCost(NamedTuple):
    """The prices of a step: of every op in the program's order, and of every boxing."""

    ops: Priced
    boxings: Priced

    @property
    def totals(self) -> Totals:
        """Return the sums; errors of one source add up, and so do the squares of the sources'."""
        sums = [
            sum(np.array([p.seconds for p in prices], dtype=np.float64)[which].tolist())
            for prices, which in self
        ]
        return Totals(sums[0], sums[1], math.hypot(*self.off_s.values()))

    @property
    def off_s(self) -> dict[str, float]:
        """Return by how many seconds what comes from each source may be off."""
        sources: dict[str, int] = {}
        numbers, errors = [], []
        for prices, which in self:  # one by one, so that it is no matter which have one price
            columns = [
                (p.seconds * p.error, sources.setdefault(p.source, len(sources))) for p in prices
            ]
            error, source = np.array(columns, dtype=np.float64).reshape(-1, 2)[which].T
            numbers.append(source)
            errors.append(error)
        off = np.bincount(np.concatenate(numbers).astype(np.int64), np.concatenate(errors))
        return dict(zip(sources, off.tolist(), strict=False))


class StepPrices:
    """Price the ops and boxings of one program on one mesh, equal ones once.

    Keep it where several layouts of one program are priced. Ops take what they do at the slowest of the
    mesh's places, whose devices are of these `kinds` by rank. Boxings of different kinds take what they
    do alone; collectives of a `queue` may go together (simulation.launch_queue).
    """

    def __init__(
        self, program: Program, mesh: Mesh, profile: Profile, queue: CollectiveQueue | None = None,
        kinds: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.program, self.mesh, self.profile = program, mesh, profile
        self.places = places_of(mesh, profile, kinds)
        self.boxings = BoxingPrices(mesh, profile, queue)
        self._ops: dict[tuple[int, tuple[NdSbp, ...]], Price] = {}
        self._paths: dict[object, tuple[Price, ...]] = {}

    def step(self, layout: Layout) -> StepCost:
        """Return what a step costs under a layout.

        Raises:
            AutoDDLError: a tensor or op has no state, or no boxing leads from one state to the next.
        """
        return StepCost(self.ops(layout), self._boxings(layout))

    def ops(self, layout: Layout) -> Priced:
        """Return the price of every op under a layout, in the order of the program.

        Raises:
            AutoDDLError: an op has no signature.
        """
        first, which = self._alike(layout)
        ops, kinds = self.program.ops, self.program.columns.kind
        prices = []
        for number in first.tolist():
            op, signature = ops[number], layout.signatures[ops[number].name]
            key = int(kinds[number]), tuple([signature[operand] for operand, _ in op.operands])
            if key not in self._ops:
                self._ops[key] = self._op(op, signature)
            prices.append(self._ops[key])
        return Priced(prices, which)

    def _alike(self, layout: Layout) -> tuple[Ints, Ints]:
        """Return ops of distinct kinds and signatures, and for every op which of these it is like."""
        try:
            return distinct(layout.signatures.complete(), self.program.columns.kind)
        except KeyError as error:
            raise AutoDDLError(
                f"step: op {error.args[0]} has no signature; plan this program with autoddl.optimize"
            ) from None

    def _boxings(self, layout: Layout) -> Priced:
        """Return the price of every boxing under a layout, in the order of its redistributions.

        Results of ops that are alike are priced once for each path.
        """
        columns, moves = self.program.columns, layout.moves
        maker, made = columns.maker[moves.tensor], columns.output[moves.tensor]
        stored = np.flatnonzero(maker < 0)
        kept, (alike, which) = moves.tensor[stored], self._alike(layout)
        source, made[stored] = which[maker], columns.form[kept]
        source[stored] = len(alike) + 1 + _stored(layout, kept)
        first, number = distinct(source, made, moves.path)
        paths = [moves.paths[path] for path in moves.path[first].tolist()]
        names = [self.program.tensors[tensor].name for tensor in moves.tensor[first].tolist()]
        states = map(layout.state, moves.tensor[first].tolist())
        known = list(map(self.path, names, states, paths))
        start = np.cumsum([0, *map(len, known)])
        rows = Ragged(start, np.arange(start[-1])).take(number)
        return Priced(list(chain.from_iterable(known)), rows.items)

    def path(self, name: str, start: NdSbp | None, path: Path) -> Sequence[Price]:
        """Return the price of every boxing of a tensor on a path, which begins behind `start`.

        Raises:
            AutoDDLError: the tensor has no state, or no boxing leads from one state to the next.
        """
        if start is None:
            raise AutoDDLError(f"step: tensor {name} has no state; the plan is for another program")
        tensor = self.program.tensor[name]
        key = tensor.shape, tensor.dtype, start, path
        if key not in self._paths:
            self._paths[key] = tuple(
                [self._boxing(tensor, *states) for states in pairwise((start, *path))]
            )
        return self._paths[key]

    def _op(self, op: Op, signature: NdSignature) -> Price:
        seconds, work, device = slowest(
            self.places, lambda cuts: OpWork.of(self.program, op, signature, cuts)
        )
        source, kernel = work.kernel(device)
        return Price(seconds, source, _error(kernel))

    def _boxing(self, tensor: Tensor, before: NdSbp, after: NdSbp) -> Price:
        step = boxing(before, after, tensor.shape, self.mesh.cuts, uneven=True)
        if step is None:
            raise AutoDDLError(
                f"step: no boxing leads from {before} to {after} for shape {tensor.shape} on mesh "
                f"{self.mesh}"
            )
        way = self.boxings.way(step, tensor.item_bytes)
        link = None if way is None else self.boxings.link(way)
        source = "local" if link is None else f"{link.collective} {link.level} {link.group_size}"
        seconds = self.boxings.step_s(step, tensor.item_bytes)
        return Price(seconds, source, _error(link), step, way)

    def grouped(self, paths: Iterable[tuple[Tensor, Path]]) -> tuple[GroupedGather, ...]:
        """Return the gathers that go grouped, with those that bring gradients back.

        `paths` have a tensor and its states, the one in which it is made or arrives first.
        """
        found: set[GroupedGather] = set()
        if self.mesh.cuts == self.mesh.shape:
            return ()
        for tensor, path in paths:
            for states in pairwise(path):
                for step in gathers(*states, tensor.shape, self.mesh.cuts):
                    way = self.boxings.way(step, tensor.item_bytes)
                    if way is not None and way.grouped:
                        found.add(GroupedGather.of(step, tensor.item_bytes))
        return tuple(sorted(found))

    def boxing_parts(self, kinds: Sequence[Price]) -> BoxingParts:
        """Return what boxings of some kinds run on, and how they share a queue, if there is one."""
        parts, queue = BoxingParts.of(list(map(self.parts, kinds))), self.boxings.queue
        if queue is None:
            return parts
        numbers: dict[tuple[str, tuple[int, ...]], int] = {}
        kind, lines = list[int](), list[Sequence[tuple[float, float]]]()
        for price in kinds:
            way = price.way
            if way is None:
                kind.append(NONE)
                continue
            kind.append(numbers.setdefault((way.collective, way.axes), len(numbers)))
            if kind[-1] == len(lines):
                joint = way.collective in queue.fused
                lines.append(self.boxings.lines(way) if joint else ())
        size = np.array([0 if p.way is None else p.way.size_bytes for p in kinds], dtype=np.int64)
        return parts._replace(
            collectives=Collectives(np.array(kind, dtype=np.int64), size),
            limits=LaunchLimits.of(queue, lines),
        )

    def parts(self, price: Price) -> ResourceParts:
        """Return on which resources a boxing runs for how long."""
        return self.boxings.parts(price.way, price.seconds)

    def least_parts(self, price: Price) -> ResourceParts:
        """Return the seconds of its resources that a boxing takes at least, whatever goes with it."""
        return self.boxings.least_parts(price.way, price.seconds)

    def hidden(self, price: Price) -> float:
        """Return which share of a boxing hides behind ops: what leaves the device free, less what that
        costs them."""
        free = (part for part in self.parts(price) if part[0] != DEVICE)
        hidden_s = sum(s / (1 + self.profile.slowed(level)) for level, s in free)
        return hidden_s / (price.seconds or 1.0)


def _stored(layout: Layout, tensors: Ints) -> Ints:
    """Return equal numbers for tensors that are kept in one state, NONE for those that are not."""
    first, second = layout.inputs.column[tensors], layout.variables.column[tensors]
    second = np.where(second == NONE, NONE, len(layout.inputs.distinct) + second)
    return np.where(first == NONE, second, first)


def _error(source: Kernel | Link | None) -> float:
    known = None if source is None else source.mean_error
    return UNKNOWN_ERROR if known is None else known
