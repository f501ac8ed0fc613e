"""Cut a program into stages on parts of some classes: the fastest cut and placement that fits.

What each unit of the model takes on each class, in the states found for it there, and what goes between
two classes makes a chain; perfmodel.pipeline.placed_cut finds its fastest cut. Steps of the best are
simulated. Stages of equal devices are the case of one class.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from autoddl.perfmodel.pipeline.part_graph import PlacedParts, part_graph
from autoddl.perfmodel.pipeline.placed_cut import NO_LIMIT, Chains, PartGraph, PlacedCut, place
from autoddl.planner.stages.part_classes import Pools
from autoddl.planner.stages.stage_links import Links, Ranks
from autoddl.planner.stages.stage_moves import StagePart
from autoddl.planner.stages.stage_pins import StagePins
from autoddl.planner.stages.staged_assignment import Memories, Staged
from autoddl.planner.stages.unit_costs import UnitCosts, Units, crossing_s
from autoddl.planner.whole.assigned import Assigned
from autoddl.planner.within_memory import until_it_fits
from autoddl.sbp.program import Program
from autoddl.sbp.program.blocks import submodule_path
from autoddl.sbp.program.forward_positions import Positions, positions

Floats = npt.NDArray[np.float64]

ROUNDS = 4  # cuts until the whole memory fits
# Relative: how far the closed form of a cut may be above the least. Where one op takes longer than any
# other stage has to, many cuts are alike by it, and 12 % apart when they are simulated (GPT in 8 stages):
# two of them are. Half and twice the first find the same plans of AMP's mixed set-up.
CLOSE = (1e-3, 0.0)


@dataclass(frozen=True)
class ClassStates:
    """The states of all tensors on parts of one class, whose devices have `limit` bytes."""

    assigned: Assigned
    limit: int | None = None


def equal_cut(
    assigned: Assigned, stages: int, micro_batches: int, links: Links, limit: int | None = None
) -> Staged:
    """Return the fastest cut into equal stages, one behind the other; where none fits the least.

    `assigned` are the states of one micro-batch on the mesh of a stage.

    Raises:
        AutoDDLError: the cluster of the links has not so many parts.
    """
    pools = Pools.of(links.cluster)
    needs = [(assigned.problem.mesh.size,)]
    parts = part_graph(needs, [links.cluster.size], pools.per_node, stages).of(stages)
    states = [ClassStates(assigned, limit)]
    found = Cuts(
        states, parts.keeping(micro_batches), pools, links, micro_batches,
        positions(assigned.problem.program),
    ).best()  # fmt: skip
    assert found is not None, "without a limit of seconds there is a cut"
    return found


class Cuts:
    """The cuts of a program into parts of some classes, each in the states found for it."""

    def __init__(
        self, classes: Sequence[ClassStates], parts: PlacedParts, pools: Pools, links: Links,
        micro_batches: int, found: Positions, pins: StagePins | None = None,
    ) -> None:  # fmt: skip
        self.classes, self.parts, self.pools = classes, parts, pools
        self.links, self.micro_batches, self.found = links, micro_batches, found
        self.places = cut_places(classes[0].assigned.problem.program, len(classes))
        self.numbers, self.pins = parts.numbers, pins
        self.graphs = [parts]
        if pins:  # which stage a part is follows from the number of all
            self.numbers = pins.check(parts.numbers, self.places)
            self.graphs = [parts.of(number) for number in self.numbers]
        whole = [Staged.equal(c.assigned, found, (), micro_batches, links) for c in classes]
        self.costs = [UnitCosts(each, found) for each in whole]
        self.memories: Memories = {}
        self._units = cache(self._all_units)
        self._flying = cache(self._more_in_flight)

    def _all_units(self, again: bool) -> list[Units]:
        return [costs.units(again=again) for costs in self.costs]

    def best(self, below_s: float = math.inf) -> Staged | None:
        """Return the fastest cut that fits into memory; where none does, that which needs least.

        None where all take `below_s` or more, by their closed form or simulated.

        The fastest by its closed form comes first, then the fastest of each number of parts: in the
        simulated step, where micro-batches wait for each other, that order may be another.
        """
        tried = [
            staged
            for close in CLOSE
            for parts in self.graphs
            for staged in self._tried(parts, again=False, below_s=below_s, close=close)
        ]
        if not tried and self._none_is_faster(below_s):
            return None
        # Then making forward results again is no help: that takes longer.
        slow = bool(tried) and all(self._least_s(staged) >= below_s for staged in tried)
        again = not slow and not any(map(self.fits, tried))
        # A cut with a few such stages may fit, and all of them in another cut be faster.
        if again or not (slow or self.fits(tried[0])):
            for parts in self.graphs:
                tried += self._tried(parts, again=True, below_s=below_s)
        fitting = [] if slow else [staged for staged in tried if self.fits(staged)]
        if not (fitting or slow):
            return min(tried, key=lambda staged: staged.memory_bytes, default=None)
        best = min(fitting, key=lambda staged: staged.timeline.step_s, default=None)
        least_s = below_s if best is None else min(below_s, best.timeline.step_s)
        seen = {staged.stages for staged in fitting or tried}
        for number in (each for each in self.numbers if each not in seen):
            for staged in self._tried(self.parts.of(number), again=again, below_s=least_s):
                if staged.timeline.step_s < least_s and self.fits(staged):
                    best, least_s = staged, staged.timeline.step_s
        return best

    def _none_is_faster(self, below_s: float) -> bool:
        """Tell whether all cuts take as long as that by their closed form, whatever memory they need."""
        limits = [NO_LIMIT] * len(self.classes)
        units = self._units(False)
        return all(self._placed(units, limits, each, below_s) is None for each in self.graphs)

    def _least_s(self, staged: Staged) -> float:
        """Return the seconds of a cut's step, with as many micro-batches in flight as are of use."""
        return min(staged.timeline.step_s, self._flying(staged).timeline.step_s)

    def fits(self, staged: Staged) -> bool:
        """Tell whether each stage fits into its devices."""
        return min(self._room(staged)) >= 0

    def _room(self, staged: Staged) -> list[float]:
        """Return by stage the bytes of its devices that are left."""
        limits = {each.assigned: each.limit for each in self.classes}
        held = zip(staged.parts, staged.memory, strict=True)
        return [
            math.inf if limit is None else limit - memory.total
            for part, memory in held
            for limit in (limits[part.assigned],)
        ]

    def _tried(
        self, parts: PlacedParts, *, again: bool, below_s: float = math.inf, close: float = CLOSE[0]
    ) -> Iterator[Staged]:
        """Yield cuts until one fits, or none is faster; with `again` they make forward results again.

        All stages but the last do, since others' micro-batches come between its passes only there.
        """
        units = self._units(again)
        chosen: list[PlacedCut] = []

        def find(limits: tuple[int, ...] | None) -> Staged | None:
            cut = self._placed(units, limits, parts, below_s, close)
            if cut is None:
                return None
            chosen.append(cut)
            return self._staged(cut, parts, range(len(cut.kinds) - 1) if again else ())

        def tighter(limits: tuple[int, ...] | None, staged: Staged) -> tuple[int, ...] | None:
            if limits is None or self._least_s(staged) >= below_s:
                return None  # before its memory is planned, which takes a third of a cut's time
            less = list(limits)
            for number, memory in zip(chosen[-1].kinds, staged.memory, strict=True):
                own = self.classes[number].limit
                if own is not None and memory.total > own:
                    less[number] = min(less[number], int(less[number] * own / memory.total))
            return None if less == list(limits) else tuple(less)

        limits = [NO_LIMIT if each.limit is None else each.limit for each in self.classes]
        for staged in until_it_fits(tuple(limits), find, tighter, ROUNDS):
            yield staged
            if self._least_s(staged) >= below_s:
                return
            if self.fits(staged):
                more = self._flying(staged)
                if more.timeline.step_s < staged.timeline.step_s and self.fits(more):
                    yield more
            elif not again:
                short = [s for s, room in enumerate(self._room(staged)) if room < 0]
                several = [s for s in short if staged.in_flight[s] > 1]
                if several:
                    yield self._staged(chosen[-1], parts, several)
        if below_s == math.inf and not chosen:
            even = find(None)  # the cut whose stages need about the same memory
            assert even is not None
            yield even

    def _placed(
        self, units: Sequence[Units], limits: Sequence[int] | None, parts: PlacedParts,
        below_s: float, close: float = CLOSE[0],
    ) -> PlacedCut | None:  # fmt: skip
        """Return the fastest cut within limits of bytes by class; without limits the most even one."""
        seconds, once, waiting, held, active = (
            sums(rows)[:, self.places] for rows in zip(*units, strict=True)
        )
        other, last = seconds + waiting, seconds
        if limits is None:
            other = last = held + parts.graph.in_flight.mean() * active
            limits = [NO_LIMIT] * len(units)
        graph, transfers = self._pinned(parts) if self.pins else (parts.graph, self._transfers)
        chains = Chains(other, last, once, held, active, np.array(limits), transfers)
        return place(chains, graph, self.micro_batches, tolerance=close, below_s=below_s)

    def _pinned(self, parts: PlacedParts) -> tuple[PartGraph, Floats]:
        """Return a graph of one number of parts with rows of transfers for each stage.

        They are infinite at the places where the stage behind may not begin.
        """
        assert self.pins is not None
        graph, (number,) = parts.graph, parts.numbers
        allowed = self.pins.begins(number, self.places)
        assert allowed is not None, "other numbers are left out"
        pairs = list(
            zip(graph.link.tolist(), (number - parts.parts[graph.head]).tolist(), strict=True)
        )
        rows = {pair: row for row, pair in enumerate(p for p in dict.fromkeys(pairs) if p[0] >= 0)}
        transfers = [
            np.where(allowed[stage + 1], self._transfers[link], np.inf) for link, stage in rows
        ]
        links = np.array([rows.get(pair, -1) for pair in pairs])
        return graph._replace(link=links), np.array(transfers or self._transfers)

    @cached_property
    def _transfers(self) -> Floats:
        """Return by pair of classes and place the seconds of what goes between them.

        Pairs that no pipeline here has stay at infinity.
        """
        rows = np.full((len(self.parts.pairs), self.found.count + 1), np.inf)
        spans = self.costs[0].spans  # the same of all: they part the same program
        for number, ends in dict(self._ends()).items():
            pair = self.parts.pairs[number]
            before, behind = self.costs[pair.before], self.costs[pair.behind]
            rows[number, 1:-1] = crossing_s(spans, before, behind, self.links, ends)
        return rows[:, self.places]

    def _ends(self) -> Iterator[tuple[int, tuple[Ranks, Ranks]]]:
        """Yield for every pair of classes ranks of two parts that follow each other so."""
        graph = self.parts.graph
        made = {int(head): edge for edge, head in enumerate(graph.head.tolist())}
        for edge, link in enumerate(graph.link.tolist()):
            if link >= 0:
                behind = made[int(graph.tail[edge])]
                yield link, (self._ranks(self.parts, edge), self._ranks(self.parts, behind))

    def _ranks(self, parts: PlacedParts, edge: int) -> Ranks:
        return self.pools.taken(parts.begin[edge], parts.end[edge])

    def _more_in_flight(self, staged: Staged) -> Staged:
        """Return the cut with as many micro-batches in flight as slow links want."""
        if staged.flying == staged.in_flight:
            return staged
        return staged.with_in_flight(staged.flying)

    def _staged(self, cut: PlacedCut, parts: PlacedParts, recomputed: Sequence[int]) -> Staged:
        stages = [
            StagePart(self.classes[kind].assigned, self._ranks(parts, edge))
            for kind, edge in zip(cut.kinds, cut.edges, strict=True)
        ]
        bounds = [self.places[n] for n in cut.bounds[1:-1]]
        return Staged(
            stages, self.found, bounds, self.micro_batches, self.links,
            recomputed=recomputed, memories=self.memories,
        )  # fmt: skip


def sums(rows: Sequence[Any]) -> Any:
    """Return the sums over the first units, by class."""
    table = np.array(rows)
    nothing = np.zeros((len(table), 1), dtype=table.dtype)
    return np.concatenate([nothing, np.cumsum(table, axis=1)], axis=1)


def cut_places(program: Program, classes: int = 1) -> list[int]:
    """Return the positions where cuts into parts of so many classes may be: both ends, and all between.

    For several classes, which have many placements, those at which a module of a layer begins, or one
    outside of layers; within such a module more goes from op to op than between them.
    """
    paths = [submodule_path(op.module) for op in program.ops if op.phase == "forward"]
    inner = [place for place, (a, b) in enumerate(pairwise(paths), 1) if classes == 1 or a != b]
    return [0, *inner, len(paths)]
