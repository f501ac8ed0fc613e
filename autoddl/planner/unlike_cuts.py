"""Cut a program into stages on parts of several classes: the fastest cut and placement that fits.

What each unit of the model takes on each class, in the states found for it there, and what goes between
two classes makes a chain; perfmodel.pipeline.placed_cut finds its fastest cut. Steps of the best are
simulated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from autoddl.budget import Span
from autoddl.engine.model import StreamUse
from autoddl.perfmodel.pipeline.part_graph import PlacedParts
from autoddl.perfmodel.pipeline.placed_cut import NO_LIMIT, Chains, PlacedCut, place
from autoddl.planner.costs.assigned import Assigned
from autoddl.planner.costs.cut import ROUNDS
from autoddl.planner.costs.stage_links import Links, Ranks
from autoddl.planner.costs.stage_moves import StagePart
from autoddl.planner.costs.staged_assignment import Memories, Staged
from autoddl.planner.costs.unit_costs import UnitCosts, Units, crossing_s
from autoddl.planner.part_classes import PartClass, Pools
from autoddl.planner.request import Request
from autoddl.sbp.program import Program
from autoddl.sbp.program.blocks import submodule_path
from autoddl.sbp.program.forward_positions import Positions
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.pipeline_objective import repeated
from autoddl.search.result import SearchOptions, SearchResult
from autoddl.search.solvers.named import SOLVERS

Floats = npt.NDArray[np.float64]

# Of the searches for states; the cut decides by more. On AMP's mixed set-up steps of equal stages are
# 1.196, 1.184 and 1.212 s with 0.03, 0.05 and 0.1, of any 1.188, 1.184 and 1.188 s; with 0.01
# they are 1.196 and 1.192 s, and a plan takes 4 s longer.
ROUGH_GAP = 0.05
# Relative, of cuts by their closed form, from which simulated steps are off by far more. Half and twice
# find the same plans of AMP's mixed set-up.
CLOSE = 1e-3


class ClassCosts:
    """A class of parts: its problem, the states found for it, and what they take by unit.

    `parts` is how many of its size the cluster has: what one of so many equal stages does is what the
    search weighs (pipeline_objective.py). `count` are the micro-batches, whose boxings run that `way`.
    """

    def __init__(
        self,
        request: Request,
        one: PartClass,
        found: Positions,
        micro: Program,
        parts: int,
        count: int,
        way: StreamUse,
    ) -> None:
        self.request, self.one, self.found, self.micro_batches = request, one, found, count
        self.problem: CostNetwork = request.problem(one.mesh, micro, one.kinds, ways=(way,))
        self.parts = parts
        self.limit = request.limit_of(one.kinds)
        self._result: SearchResult | None = None

    @cached_property
    def least_s(self) -> Floats:
        """Return by unit the least seconds that ops take, in whatever states, forward and backward."""
        variables, program, found = self.problem.variables, self.problem.program, self.found
        least = np.array([domain.compute_s.min() for domain in variables.domains])[variables.domain]
        seconds = np.zeros(found.count)
        for op, own in zip(variables.op.tolist(), least.tolist(), strict=True):
            if op >= 0 and program.ops[op].phase != "optimizer":
                seconds[found.op[program.ops[op].name]] += own
        return seconds

    def search(self, span: Span) -> None:
        """Search the states of all tensors, if that has not been done."""
        if self._result is not None:
            return
        request = self.request
        weighted = repeated(self.problem, self.parts, self.micro_batches)
        self._result = SOLVERS[request.search](
            weighted,
            SearchOptions(
                budget=span.seconds, clock=span.clock, seed=request.seed,
                stop_gap=max(request.stop_gap, ROUGH_GAP),
            ),
        )  # fmt: skip

    @property
    def result(self) -> SearchResult:
        """Return what the search found."""
        assert self._result is not None, "search() comes first"
        return self._result

    @cached_property
    def assigned(self) -> Assigned:
        """Return the states that the search found."""
        return Assigned(self.problem, self.result.assignment)

    def costs(self, links: Links) -> UnitCosts:
        """Return what they take by unit."""
        whole = Staged.equal(self.assigned, self.found, (), self.micro_batches, links)
        return UnitCosts(whole, self.found)


class UnlikeCuts:
    """The cuts of a program into parts of some classes, each in the states found for it."""

    def __init__(
        self, classes: Sequence[ClassCosts], parts: PlacedParts, pools: Pools, links: Links,
        micro_batches: int,
    ) -> None:  # fmt: skip
        self.classes, self.parts, self.pools = classes, parts, pools
        self.links, self.micro_batches = links, micro_batches
        self.found = classes[0].found
        self.places = cut_places(classes[0].problem.program)
        self.costs = [each.costs(links) for each in classes]
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
        tried = list(self._tried(self.parts, again=False, below_s=below_s))
        if not tried and self._none_is_faster(below_s):
            return None
        # Then making forward results again is no help: that takes longer.
        slow = bool(tried) and all(self._least_s(staged) >= below_s for staged in tried)
        again = not slow and not any(map(self.fits, tried))
        if again:
            tried += self._tried(self.parts, again=True, below_s=below_s)
        fitting = [] if slow else [staged for staged in tried if self.fits(staged)]
        if not (fitting or slow):
            return min(tried, key=lambda staged: staged.memory_bytes, default=None)
        best = min(fitting, key=lambda staged: staged.timeline.step_s, default=None)
        least_s = below_s if best is None else min(below_s, best.timeline.step_s)
        seen = {staged.stages for staged in fitting or tried}
        for number in (each for each in self.parts.numbers if each not in seen):
            for staged in self._tried(self.parts.of(number), again=again, below_s=least_s):
                if staged.timeline.step_s < least_s and self.fits(staged):
                    best, least_s = staged, staged.timeline.step_s
        return best

    def _none_is_faster(self, below_s: float) -> bool:
        """Tell whether all cuts take as long as that by their closed form, whatever memory they need."""
        limits = [NO_LIMIT] * len(self.classes)
        return self._placed(self._units(False), limits, self.parts, below_s) is None

    def _least_s(self, staged: Staged) -> float:
        """Return the seconds of a cut's step, with as many micro-batches in flight as are of use."""
        return min(staged.timeline.step_s, self._flying(staged).timeline.step_s)

    def fits(self, staged: Staged) -> bool:
        """Tell whether each stage fits into its devices."""
        limits = {each.assigned: each.limit for each in self.classes}
        return all(
            limit is None or memory.total <= limit
            for part, memory in zip(staged.parts, staged.memory, strict=True)
            for limit in (limits[part.assigned],)
        )

    def _tried(
        self, parts: PlacedParts, *, again: bool, below_s: float = math.inf
    ) -> Iterator[Staged]:
        """Yield cuts until one fits, or none is faster; with `again` they make forward results again."""
        units = self._units(again)
        limits = [NO_LIMIT if each.limit is None else each.limit for each in self.classes]
        for _ in range(ROUNDS):
            cut = self._placed(units, limits, parts, below_s)
            if cut is None and below_s == math.inf:  # what all need without limits is told
                limits = [NO_LIMIT] * len(limits)
                cut = self._placed(units, limits, parts, below_s)
                assert cut is not None
                yield self._staged(cut, parts, again=again)
                return
            if cut is None:
                return
            staged = self._staged(cut, parts, again=again)
            yield staged
            if self._least_s(staged) >= below_s:
                return  # before its memory is planned, which takes a third of a cut's time
            if self.fits(staged):
                more = self._flying(staged)
                if more.timeline.step_s < staged.timeline.step_s and self.fits(more):
                    yield more
                return
            for number, memory in zip(cut.kinds, staged.memory, strict=True):
                own = self.classes[number].limit
                if own is not None and memory.total > own:
                    limits[number] = min(limits[number], int(limits[number] * own / memory.total))

    def _placed(
        self, units: Sequence[Units], limits: Sequence[int], parts: PlacedParts, below_s: float
    ) -> PlacedCut | None:
        chains = self._chains(units, limits)
        return place(chains, parts.graph, self.micro_batches, tolerance=CLOSE, below_s=below_s)

    def _chains(self, units: Sequence[Units], limits: Sequence[int]) -> Chains:
        seconds, once, waiting, held, active = (
            sums(rows)[:, self.places] for rows in zip(*units, strict=True)
        )
        return Chains(
            seconds + waiting, seconds, once, held, active, np.array(limits), self._transfers
        )

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

    def _staged(self, cut: PlacedCut, parts: PlacedParts, *, again: bool) -> Staged:
        stages = [
            StagePart(self.classes[kind].assigned, self._ranks(parts, edge))
            for kind, edge in zip(cut.kinds, cut.edges, strict=True)
        ]
        bounds = [self.places[n] for n in cut.bounds[1:-1]]
        return Staged(
            stages, self.found, bounds, self.micro_batches, self.links,
            recomputed=range(len(stages) - 1) if again else (), memories=self.memories,
        )  # fmt: skip


def sums(rows: Sequence[Any]) -> Any:
    """Return the sums over the first units, by class."""
    table = np.array(rows)
    nothing = np.zeros((len(table), 1), dtype=table.dtype)
    return np.concatenate([nothing, np.cumsum(table, axis=1)], axis=1)


def cut_places(program: Program) -> list[int]:
    """Return the positions at which a module of a layer begins, or one outside of layers; and both ends.

    Within such a module more goes from op to op than between them.
    """
    paths = [submodule_path(op.module) for op in program.ops if op.phase == "forward"]
    inner = [place for place, (a, b) in enumerate(pairwise(paths), 1) if a != b]
    return [0, *inner, len(paths)]
