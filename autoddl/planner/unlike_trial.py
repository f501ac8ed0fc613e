"""Candidates whose stages are parts of any size, mesh and kind of devices.

For every class of parts (part_classes.py) one exact search finds the states of all tensors, under the
prices of a step on such devices; unlike_cuts.py finds the fastest cut into parts that the cluster has.
The same cut with the least that any states take bounds the step, in its closed form, of every cut between
modules, placement and state. Equal parts come first, which are the start for parts of any size: their
states are not searched again, and within the same budget more freedom gives no slower plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache

import numpy as np

from autoddl.budget import Span
from autoddl.errors import AutoDDLError
from autoddl.perfmodel.pipeline.part_graph import PlacedParts, part_graph
from autoddl.perfmodel.pipeline.placed_cut import NO_LIMIT, Chains, place
from autoddl.planner.candidate_plans import Candidate, counts, divisors
from autoddl.planner.costs.stage_links import Links
from autoddl.planner.part_classes import PartClass, Pools, part_classes
from autoddl.planner.race import Contender, Solution
from autoddl.planner.request import ANY, EQUAL, Request
from autoddl.planner.unlike_cuts import ClassCosts, UnlikeCuts, cut_places, sums
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.program.forward_positions import Positions, positions

KnownCosts = MutableMapping[tuple[Mesh, tuple[str, ...], int], ClassCosts]
"""Those of meshes of kinds for numbers of micro-batches, shared by the trials of a race."""


class UnlikeTrial(Contender):
    """A number of micro-batches, to be searched for pipelines on these `parts` of some classes."""

    share, least_s = 1 / 3, 0.5

    def __init__(
        self, request: Request, count: int, micro: Callable[[int], Program],
        places: Callable[[int], Positions], classes: Sequence[PartClass], parts: PlacedParts,
        stages: int, known: KnownCosts,
    ) -> None:  # fmt: skip
        """Plan so many micro-batches; `stages` is their number, 0 for any; costs go to `known`.

        `micro` and `places` give the program of one of so many micro-batches, and where its ops stand.
        """
        self.request, self.micro, self.places, self.known = request, micro, places, known
        self.classes, self.parts = classes, parts.keeping(count)
        mesh = classes[0].mesh if stages else request.whole_mesh
        self.candidate = Candidate(stages, count, mesh, request.ways_of(stages, count)[0])

    def turn(self) -> tuple[float, ...]:
        """Return its place: first nodes as parts, then those that wait least for the pipe to fill.

        On AMP's mixed cluster, and on 16 nodes of three kinds, the best plan has nodes as parts. Of parts
        of any size (0 stages), which come last, the largest number of micro-batches waits least. The
        least number comes next: where the best plan has few stages, it is among them.
        """
        stages, count = self.candidate.stages, self.candidate.micro_batches
        if stages == 0:
            return math.inf, 0 if count == counts(self.request, 0)[-1] else count
        cluster = self.request.cluster
        return stages != cluster.levels[0].size, (stages - 1) / count, stages

    def search(
        self, span: Span, *, rough: bool, below_s: float = math.inf
    ) -> Iterator[float | Solution]:
        """Bound all cuts, then search the states for each class of parts, and cut."""
        request, count = self.request, self.candidate.micro_batches
        classes, parts = self._problems(self.micro(count), self.places(count))
        bound_s = _bound_s(classes, parts, count)
        yield bound_s
        if len(classes) == 1 and self.candidate.stages:  # a mixture may send what one redistributes
            classes[0].search(span)
            bound_s = max(bound_s, classes[0].result.lower_bound_s)
            yield bound_s
        for each in classes:
            each.search(span.next(span.seconds / len(classes)))
        links = Links(request.profile, request.cluster)
        cuts = UnlikeCuts(classes, parts, Pools.of(request.cluster), links, count)
        staged = cuts.best(below_s)
        if staged is None:
            return
        self.needed_bytes = staged.memory_bytes
        if cuts.fits(staged):
            yield Solution(
                replace(self.candidate, stages=staged.stages, mesh=staged.assigned(0).problem.mesh),
                staged,
                replace(classes[0].result, lower_bound_s=bound_s),
                cost_s=max(staged.bounded_s, bound_s),
                judged_s=staged.timeline.step_s,
            )

    def _problems(self, program: Program, found: Positions) -> tuple[list[ClassCosts], PlacedParts]:
        """Return the classes that the program can be planned for, and the graph of these.

        Raises:
            AutoDDLError: what was wrong with one that can't be done without.
        """
        request, count = self.request, self.candidate.micro_batches
        known: dict[int, ClassCosts] = {}
        failure: AutoDDLError | None = None
        for number, one in enumerate(self.classes):
            equal = max(1, round(request.cluster.size / one.mesh.size))
            try:
                key = one.mesh, one.kinds, count
                if key not in self.known:
                    self.known[key] = ClassCosts(
                        request, one, found, program, equal, count, self.candidate.way
                    )
                known[number] = self.known[key]
            except AutoDDLError as error:
                failure = error
        if failure is None:
            return list(known.values()), self.parts
        parts = self.parts.only(list(known))
        if not parts.reached:
            raise failure
        return list(known.values()), parts


def unlike_trials(request: Request, micro: Callable[[int], Program]) -> Iterator[UnlikeTrial]:
    """Yield what may be tried: numbers of micro-batches, and of stages where these are equal, or any.

    Parts of any size are not tried where there are too many ways to place them, unless asked for.

    Raises:
        AutoDDLError: there are no such stages, or too many ways.
    """
    found = list(_graphs(request))
    if not found:
        raise AutoDDLError(
            f"pipeline: {request.cluster} can't be parted into {request.stages} stages; give another "
            "number, or 'auto'"
        )
    known: KnownCosts = {}
    places = cache(lambda count: positions(micro(count)))
    for stages, classes, parts in found:
        for count in counts(request, stages):
            yield UnlikeTrial(request, count, micro, places, classes, parts, stages, known)


def _graphs(request: Request) -> Iterator[tuple[int, Sequence[PartClass], PlacedParts]]:
    """Yield numbers of equal stages, or 0 for any, with the classes of their parts, and their graph."""
    pools = Pools.of(request.cluster)
    devices = request.cluster.size
    most = min(devices, len(cut_places(request.program)) - 1)
    known = list(part_classes(request.cluster, request.stage_axes))

    def graph_of(classes: Sequence[PartClass]) -> PlacedParts:
        sizes = [len(ranks) for ranks in pools.ranks]
        parts = part_graph([one.needs for one in classes], sizes, pools.per_node, most)
        return parts.of(request.stages) if isinstance(request.stages, int) else parts

    if request.parts != EQUAL:
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
        with suppress(AutoDDLError):  # too many ways for stages of so few devices
            parts = graph_of(classes)
            if parts.graph.whole.any():
                yield stages, classes, parts


def _bound_s(classes: Sequence[ClassCosts], parts: PlacedParts, micro_batches: int) -> float:
    """Return a bound on the step of every cut between modules, every placement and all states."""
    places = cut_places(classes[0].problem.program)
    least = sums([each.least_s for each in classes])[:, places]
    nothing = np.zeros(least.shape)
    limit = np.full(len(classes), NO_LIMIT)
    links = np.zeros((len(parts.pairs), nothing.shape[1]))
    integers = nothing.astype(np.int64)
    chains = Chains(least, least, nothing, integers, integers, limit, links)
    found = place(chains, parts.graph, micro_batches)
    return 0.0 if found is None else found.seconds
