"""Candidates with stages, on parts of any size, mesh and kind of devices.

For every class of parts (part_classes.py) one search finds the states of all tensors, under the prices
of a step on such devices; cuts.py finds the fastest cut into parts that the cluster has. The same cut
with the least that any states take bounds the step, in its closed form, of every cut between modules,
placement and state. Equal parts come first, which are the start for parts of any size: their states are
not searched again, and within the same budget more freedom gives no slower plan. Where free stages are
asked for, those that need not be cuts (free_cut.py) are found for the same states.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.pipeline.part_graph import PlacedParts, part_graph
from autoddl.perfmodel.pipeline.placed_cut import NO_LIMIT, Chains, place
from autoddl.planner.candidate_plans import Candidate, counts, divisors
from autoddl.planner.plan_options import ANY, EQUAL, FREE
from autoddl.planner.race import Contender, Solution
from autoddl.planner.request import Request
from autoddl.planner.stages.cuts import ClassStates, Cuts, cut_places, sums
from autoddl.planner.stages.free_cut import free_cut
from autoddl.planner.stages.part_classes import PartClass, Pools, part_classes
from autoddl.planner.stages.stage_links import Links
from autoddl.planner.stages.stage_pins import StagePins
from autoddl.planner.stages.staged_assignment import Staged
from autoddl.planner.uneven.share_vectors import share_classes, share_meshes
from autoddl.planner.whole.assigned import Assigned
from autoddl.planner.within_memory import until_it_fits
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.program.forward_positions import Positions, positions
from autoddl.search.budget import Allowance
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.pipeline_objective import repeated
from autoddl.search.result import SearchOptions, SearchResult
from autoddl.search.solvers.named import SOLVERS

Floats = npt.NDArray[np.float64]

# Of searches among several candidates, and for states of less memory.
ROUGH_GAP = 0.01
# Of those for several classes; the cut decides by more. On AMP's mixed set-up steps of equal stages are
# 1.196, 1.184 and 1.212 s with 0.03, 0.05 and 0.1, of any 1.188, 1.184 and 1.188 s; with 0.01
# they are 1.196 and 1.192 s, and a plan takes 4 s longer.
CLASSES_GAP = 0.05
# Until the whole memory fits: for any, for less three times, for the least. With one for less GPT-2 on
# 2x4 in 6.25 GiB takes 1,065 ms, not 494.
SEARCHES = 5
MORE = 3.0  # times a trial's seconds: what all these searches may take, each as long as the first


class ClassSearch:
    """A class of parts: its problem for one micro-batch, and the states found for it.

    `parts` is how many of its size the cluster has: what one of so many equal stages does is what the
    search weighs. Where memory is short `memory_bytes` bounds the part of it that can be summed up, and
    `tightened` counts how often it was made less.
    """

    memory_bytes: int | None = None
    tightened = 0
    result: SearchResult
    _gap = math.inf

    def __init__(
        self, request: Request, one: PartClass, micro: Program, candidate: Candidate
    ) -> None:
        self.request, self.limit = request, request.limit_of(one.kinds)
        self.problem: CostNetwork = request.problem(
            one.mesh, micro, one.kinds, ways=(candidate.way,)
        )
        parts = max(1, round(request.cluster.size / one.mesh.size))
        self.weighted = repeated(self.problem, parts, candidate.micro_batches)

    def least_s(self, found: Positions) -> Floats:
        """Return by unit the least seconds that ops take, in whatever states, forward and backward."""
        variables, program = self.problem.variables, self.problem.program
        least = np.array([domain.compute_s.min() for domain in variables.domains])[variables.domain]
        seconds = np.zeros(found.count)
        for op, own in zip(variables.op.tolist(), least.tolist(), strict=True):
            if op >= 0 and program.ops[op].phase != "optimizer":
                seconds[found.op[program.ops[op].name]] += own
        return seconds

    def search(self, allowance: Allowance, gap: float) -> None:
        """Search the states of all tensors, unless that has been done to such a gap."""
        if self._gap <= gap:
            return
        request, self._gap = self.request, gap
        options = SearchOptions(
            budget=allowance.seconds, clock=allowance.clock, seed=request.seed,
            stop_gap=max(request.stop_gap, gap), memory_bytes=self.memory_bytes,
        )  # fmt: skip
        self.result = SOLVERS[request.search](self.weighted, options)
        self.__dict__.pop("states", None)

    @cached_property
    def states(self) -> ClassStates:
        """Return what the search found."""
        return ClassStates(Assigned(self.problem, self.result.assignment), self.limit)

    def with_less(self, needed: int) -> ClassSearch:
        """Return the same class for states of less memory: those that were found need so many bytes.

        Less by the share that they need too much, then by twice and four times that, since what can't be
        summed up shrinks less; at last the least. The class itself where they fit, or there is no less.
        """
        if self.limit is None or needed <= self.limit:
            return self
        least, held = self.weighted.least_memory_bytes, self.result.memory_bytes
        less = 2**self.tightened * (1 - self.limit / needed)
        last = self.tightened == SEARCHES - 2
        bound = least if last else max(least, int(held * (1 - less)))
        if bound == self.memory_bytes:
            return self
        other = copy.copy(self)
        other.memory_bytes, other.tightened, other._gap = bound, self.tightened + 1, math.inf
        return other


KnownClasses = MutableMapping[tuple[Mesh, tuple[str, ...], int], ClassSearch]
"""Those of meshes of kinds for numbers of micro-batches, shared by the trials of a race."""


class StagedTrial(Contender):
    """A number of micro-batches, to be searched for pipelines on these `parts` of some classes."""

    share, least_s = 1 / 3, 0.5

    def __init__(
        self, request: Request, count: int, micro: Callable[[int], Program],
        places: Callable[[int], Positions], classes: Sequence[PartClass], parts: PlacedParts,
        stages: int, known: KnownClasses, least: int, *, in_parts: bool = False,
    ) -> None:  # fmt: skip
        """Plan so many micro-batches; `stages` is their number, 0 for any.

        `micro` and `places` give the program of one of so many micro-batches, and where its ops stand.
        With less than `least` stages devices would hold too much: such trials come last.
        """
        self.request, self.micro, self.places, self.known = request, micro, places, known
        self.classes, self.parts, self.least = classes, parts.keeping(count), least
        by_shares = classes[0].mesh.cuts != classes[0].mesh.shape
        mesh = classes[0].mesh if stages or by_shares else request.whole_mesh
        way = request.ways_of(stages, count)[0]
        self.candidate = Candidate(stages, count, mesh, way, in_parts=in_parts)

    def turn(self) -> tuple[float, ...]:
        """Return its place: first nodes as parts, then those that wait least for the pipe to fill.

        On AMP's mixed cluster, and on 16 nodes of three kinds, the best plan has nodes as parts. Of parts
        of any size (0 stages), which come last, the largest number of micro-batches waits least. The
        least number comes next: where the best plan has few stages, it is among them. Shares come last.
        """
        stages, count, mesh = self.candidate.place
        if mesh.cuts != mesh.shape:
            return math.inf, math.inf, count
        if stages == 0:
            return math.inf, 0 if count == counts(self.request, 0)[-1] else count
        cluster = self.request.cluster
        nodes = cluster.levels[0].size if cluster.kinds or cluster.sizes else stages
        return stages < self.least, stages != nodes, (stages - 1) / count, stages

    def search(
        self, allowance: Allowance, *, rough: bool, below_s: float = math.inf
    ) -> Iterator[float | Solution]:
        """Bound all cuts, then search the states for each class of parts, and cut.

        Where these don't fit, search for states of less memory, and at last for those of the least.
        """
        request, count = self.request, self.candidate.micro_batches
        found = self.places(count)
        program = self.micro(count)
        classes, parts = self._problems(program)
        # What one class redistributes a mixture of several may send instead.
        alone = len(classes) == 1 and self.candidate.stages > 0
        free = alone and request.parts == FREE and self.candidate.stages > 1
        pins = StagePins(program, request.pin or {}, free=free)
        places = cut_places(program, len(classes))
        can = [n for n in parts.numbers if not pins or pins.begins(n, places) is not None]
        if not can:
            pins.check(parts.numbers, places, free=free)
        bound_s = 0.0 if free else _bound_s(classes, parts, count, found)  # that of cuts
        if alone:
            bound_s = max(bound_s, classes[0].weighted.lower_bound_s())
        yield bound_s
        gap = (ROUGH_GAP if rough else 0.0) if alone else CLASSES_GAP
        links, pools = Links(request.profile, request.cluster), Pools.of(request.cluster)

        def find(some: Sequence[ClassSearch]) -> Staged | None:
            most_s = allowance.seconds
            left_s = max(MORE * most_s - allowance.spent_s(), most_s / SEARCHES)
            for each in some:
                each.search(allowance.next(min(most_s, left_s) / len(some)), gap)
            states = [each.states for each in some]
            cut = None
            if can:
                cut = Cuts(states, parts, pools, links, count, found, pins).best(below_s)
            return self._freed(cut, states[0], links, allowance.next(most_s), pins) if free else cut

        def tighter(some: Sequence[ClassSearch], staged: Staged) -> Sequence[ClassSearch] | None:
            held = zip(staged.parts, staged.memory, strict=True)
            needed: dict[Assigned, int] = {}
            for part, memory in held:
                needed[part.assigned] = max(memory.total, needed.get(part.assigned, 0))
            less = {one: one.with_less(needed.get(one.states.assigned, 0)) for one in some}
            fewer = [less[one] for one in some]
            return None if fewer == list(some) else fewer

        for each in classes:
            each.search(allowance.next(allowance.seconds / len(classes)), gap)
        result = classes[0].result
        if alone:
            bound_s = max(bound_s, result.lower_bound_s)
            yield bound_s
        for staged in until_it_fits(classes, find, tighter, SEARCHES):
            self.needed_bytes = min(self.needed_bytes or staged.memory_bytes, staged.memory_bytes)
            if _fits(staged, request):
                yield Solution(
                    replace(
                        self.candidate, stages=staged.stages, mesh=staged.assigned(0).problem.mesh
                    ),
                    staged,
                    replace(result, lower_bound_s=bound_s),
                    cost_s=max(staged.bounded_s, bound_s),
                    judged_s=staged.timeline.step_s,
                    slack=result.gap if alone and rough else 0.0,
                )

    def _freed(
        self, cut: Staged | None, states: ClassStates, links: Links, allowance: Allowance,
        pins: StagePins,
    ) -> Staged | None:  # fmt: skip
        """Return the faster of a cut and of stages that need not be one."""
        stages, count = self.candidate.stages, self.candidate.micro_batches
        free = free_cut(states.assigned, stages, count, links, states.limit, allowance, pins)
        if free is None:
            return cut
        known = [free] if cut is None or not _fits(cut, self.request) else [cut, free]
        return min(known, key=lambda staged: staged.timeline.step_s)

    def _problems(self, program: Program) -> tuple[Sequence[ClassSearch], PlacedParts]:
        """Return the classes that the program can be planned for, and the graph of these.

        Raises:
            AutoDDLError: what was wrong with one that can't be done without.
        """
        count, known = self.candidate.micro_batches, dict[int, ClassSearch]()
        failure: AutoDDLError | None = None
        for number, one in enumerate(self.classes):
            try:
                key = one.mesh, one.kinds, count
                if key not in self.known:
                    self.known[key] = ClassSearch(self.request, one, program, self.candidate)
                known[number] = self.known[key]
            except AutoDDLError as error:
                failure = error
        if failure is None:
            return list(known.values()), self.parts
        parts = self.parts.only(list(known))
        if not parts.reached:
            raise failure
        return list(known.values()), parts


def staged_trials(
    request: Request, micro: Callable[[int], Program], least: int = 1, *, in_parts: bool = False
) -> Iterator[StagedTrial]:
    """Yield what may be tried: numbers of micro-batches, and of stages where these are equal, or any.

    Parts of any size are not tried where there are too many ways to place them, unless asked for.

    Raises:
        AutoDDLError: there are too many ways.
    """
    known: KnownClasses = {}
    places = cache(lambda count: positions(micro(count)))
    for stages, classes, parts in _graphs(request):
        for count in counts(request, stages):
            yield StagedTrial(
                request,
                count,
                micro,
                places,
                classes,
                parts,
                stages,
                known,
                least,
                in_parts=in_parts,
            )


def _graphs(request: Request) -> Iterator[tuple[int, Sequence[PartClass], PlacedParts]]:
    """Yield numbers of equal stages, or 0 for any, with the classes of their parts, and their graph.

    Equal stages of devices that are alike have one mesh, so that its states can be bounded alone. Meshes
    with shares come last: those of all devices, one stage in micro-batches, then those of parts.
    """
    cluster, devices = request.cluster, request.cluster.size
    pools = Pools.of(cluster)
    most = _most_stages(request)
    if request.mesh is not None:
        known = [PartClass(request.mesh, (request.mesh.size,), ())]
    else:
        known = list(part_classes(cluster, request.stage_axes))

    def graph_of(classes: Sequence[PartClass]) -> PlacedParts:
        sizes = [len(ranks) for ranks in pools.ranks]
        parts = part_graph([one.needs for one in classes], sizes, pools.per_node, most)
        return parts.of(request.pipeline) if isinstance(request.pipeline, int) else parts

    if request.parts not in (EQUAL, FREE):
        try:
            parts = graph_of(known)
        except AutoDDLError:
            if request.parts == ANY:
                raise
        else:
            if not parts.graph.whole.any():
                return
            yield 0, known, parts
    for stages in divisors(devices):
        classes = [one for one in known if one.mesh.size * stages == devices]
        for group in [classes] if len(pools.ranks) > 1 else [[one] for one in classes]:
            with suppress(AutoDDLError):  # too many ways for stages of so few devices
                parts = graph_of(group)
                if parts.graph.whole.any():
                    yield stages, group, parts
    if request.mesh is None:
        yield from _share_graphs(request, known, graph_of)


def _share_graphs(
    request: Request, known: Sequence[PartClass],
    graph_of: Callable[[Sequence[PartClass]], PlacedParts],
) -> Iterator[tuple[int, Sequence[PartClass], PlacedParts]]:  # fmt: skip
    """Yield one stage of all devices with shares, and any number of stages some of which have shares."""
    cluster, pools = request.cluster, Pools.of(request.cluster)
    of_all = tuple(map(len, pools.ranks)), tuple(map(cluster.kind, range(cluster.size)))
    for mesh in share_meshes(request):
        one = PartClass(mesh, *of_all)
        parts = graph_of([one])
        if parts.graph.whole.any():
            yield 1, [one], parts
    by_shares = list(share_classes(request, known)) if request.parts != EQUAL else []
    if by_shares:
        with suppress(AutoDDLError):
            yield 0, [*by_shares, *known], graph_of([*by_shares, *known])


def _most_stages(request: Request) -> int:
    """Return the most stages that pipelines can have.

    Raises:
        AutoDDLError: that is one for what the engine clips, and more were asked for.
    """
    engine, asked = request.engine, request.pipeline
    if engine.limits.clips_stages or not any(group.clip for group in request.program.groups):
        return min(request.cluster.size, len(cut_places(request.program)) - 1)
    if isinstance(asked, int) and asked > 1:
        raise AutoDDLError(
            f"pipeline: got {asked}, but gradients are clipped by their norm, which {engine.title} does "
            "without stages only; allowed is 1, or plan without clipping"
        )
    return 1


def _bound_s(
    classes: Sequence[ClassSearch], parts: PlacedParts, micro_batches: int, found: Positions
) -> float:
    """Return a bound on the step of every cut between modules, every placement and all states."""
    places = cut_places(classes[0].problem.program, len(classes))
    least = sums([each.least_s(found) for each in classes])[:, places]
    nothing = np.zeros(least.shape)
    limit = np.full(len(classes), NO_LIMIT)
    links = np.zeros((len(parts.pairs), nothing.shape[1]))
    integers = nothing.astype(np.int64)
    chains = Chains(least, least, nothing, integers, integers, limit, links)
    best = place(chains, parts.graph, micro_batches)
    return 0.0 if best is None else best.seconds


def _fits(staged: Staged, request: Request) -> bool:
    """Tell whether each stage fits into its devices."""
    kinds = (part.assigned.problem.profile.kinds for part in staged.parts)
    limits = map(request.limit_of, kinds)
    held = zip(staged.memory, limits, strict=True)
    return all(limit is None or memory.total <= limit for memory, limit in held)
