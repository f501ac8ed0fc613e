"""What single boxings take, and on which resources: collectives over the links that they cross.

On 2x4 an all-gather along the second axis crosses the links within nodes, one along the first the
network, which the four groups share that do it at once.

A gather over shares goes one of two ways. *Padded* it is one all-gather, in which all m members send as
much as the largest; *grouped* each member in turn broadcasts just what it has:

    padded    (m − 1)·α + (m − 1)·max B·n·β        grouped    m·(m − 1)·α + n·β

Over the shares 3/1/1/1 padded moves 3 · ½ n, grouped n in four times as many messages. Its price is that
of the way that is cheaper. A reduce-scatter pads always.

Source: HAP (seed 001), its section on collectives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

from autoddl.engine.model import CollectiveQueue
from autoddl.json_files import Bytes
from autoddl.perfmodel import collectives
from autoddl.perfmodel.collectives import BROADCAST
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.profile_entries import Link
from autoddl.perfmodel.resources import QUEUE, SHARED, ResourceParts
from autoddl.perfmodel.roofline import OpWork, op_s
from autoddl.perfmodel.topology import crossing
from autoddl.sbp.boxing import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, LOCAL, PAD, Boxing
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.shares import Cut, Shares, most


class Way(NamedTuple):
    """How a boxing is done: by one collective after the other over some axes, of so many bytes each.

    `sizes` are the n of their cost formulas (perfmodel.collectives).
    """

    collective: str
    axes: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all."""
        return sum(self.sizes)

    @property
    def grouped(self) -> bool:
        """Tell whether it is a gather by broadcasts."""
        return self.collective == BROADCAST


@dataclass(frozen=True, order=True)
class GroupedGather:
    """A gather over an axis by shares, of so many bytes put together, that goes grouped."""

    axis: int
    size_bytes: Bytes

    @classmethod
    def of(cls, step: Boxing, item_bytes: int) -> GroupedGather:
        """Return a gather over one axis as grouped, whether that is cheaper or not."""
        return cls(step.axes[0], step.elements * item_bytes)


class BoxingPrices:
    """Price boxings on one mesh under one profile, where collectives share a `queue` if there is one."""

    def __init__(self, mesh: Mesh, profile: Profile, queue: CollectiveQueue | None = None) -> None:
        self.mesh, self.profile, self.queue = mesh, profile, queue
        self._lines: dict[tuple[str, tuple[int, ...]], Sequence[tuple[float, float]]] = {}
        self._crossing = cache(partial(crossing, mesh, innermost=profile.levels[-1]))

    def step_s(self, step: Boxing, item_bytes: int) -> float:
        """Return the seconds of one boxing, its launch included; inf where the profile has no price."""
        way = self.way(step, item_bytes)
        if way is None:
            size = step.elements * item_bytes
            return op_s(self.profile, OpWork("boxing", "memory", "", 0.0, 2 * size))
        return self.way_s(way)

    def way(self, step: Boxing, item_bytes: int) -> Way | None:
        """Return the cheapest way of a boxing, the first of equal ones; None for a local one."""
        if step.primitive == LOCAL:
            return None
        ways = ways_of(step, item_bytes, self.mesh.cuts[step.axes[0]])
        return ways[0] if len(ways) == 1 else min(ways, key=self.way_s)

    def way_s(self, way: Way) -> float:
        """Return the seconds of collectives one after the other; inf where one has no price.

        All groups of the mesh do it at once, so those that cross the same link share it.
        """
        seconds, crossed = 0.0, self._crossing(way.axes)
        for size in way.sizes:
            link = self._link(way, size)
            if link is None:
                return math.inf
            seconds += self.profile.op_overhead_s + self.profile.line_s(link, crossed, size)
        return seconds

    def link(self, way: Way) -> Link | None:
        """Return the line that prices the largest of its collectives; None where there is no price."""
        return self._link(way, max(way.sizes))

    def _link(self, way: Way, size_bytes: int) -> Link | None:
        """Return the line that prices one collective.

        Groups that span levels are priced only by links of groups with as many members in each unit.
        """
        crossed = self._crossing(way.axes)
        if crossed.inner > 1 and not self.profile.spans(way.collective, crossed):
            return None
        return self.profile.link(way.collective, crossed, size_bytes)

    def lines(self, way: Way) -> Sequence[tuple[float, float]]:
        """Return what a collective like these takes by each line: seconds, and more for each byte."""
        key = way.collective, way.axes
        if key not in self._lines:
            crossed, much = self._crossing(way.axes), 1e9
            found = []
            for link in self.profile.lines(way.collective, crossed):
                fixed, one = (self.profile.line_s(link, crossed, n) for n in (0.0, much))
                found.append((self.profile.op_overhead_s + fixed, (one - fixed) / much))
            self._lines[key] = found
        return self._lines[key]

    def parts(self, way: Way | None, seconds: float) -> ResourceParts:
        """Return on which resources a boxing of so many seconds runs for how long; None is local."""
        if way is None:
            return self.profile.parts(None, seconds)
        size = math.prod(self.mesh.shape[axis] for axis in way.axes)
        messages, _ = collectives.coefficients(way.collective, size, 0.0)
        if (
            self.queue is not None
        ):  # what a launch takes does not depend on how many messages it sends
            messages = 0.0
        level = self.mesh.axes[way.axes[0]].level
        return self.profile.parts(level, seconds, len(way.sizes) * messages)

    def least_parts(self, way: Way | None, seconds: float) -> ResourceParts:
        """Return the seconds of its resources that a boxing takes at least, whatever goes with it.

        In a queue all levels are one resource, and a collective that may share a launch takes no less
        than its share, by bytes, in the largest one. With 16 MB that is a quarter of a launch for 4 MB.
        """
        parts, queue = self.parts(way, seconds), self.queue
        if queue is None or way is None:
            return parts
        least_s = seconds
        if way.collective in queue.fused and way.size_bytes < queue.threshold_bytes:
            most = queue.threshold_bytes
            least_s = way.size_bytes * min(fixed / most + slope for fixed, slope in self.lines(way))
        share = min(least_s / seconds, 1.0) if seconds else 1.0
        names = {level: QUEUE for level in self.profile.levels}
        busy = [(names.get(resource, resource), share * part_s) for resource, part_s in parts]
        return (*busy, (SHARED, seconds - share * seconds))


def ways_of(step: Boxing, item_bytes: int, cut: Cut) -> tuple[Way, ...]:
    """Return the ways of a boxing that is not local over an axis that cuts so, or over even ones.

    Over shares the size is what an even cut would have to move as much: all members of a padded gather
    or scatter send as much as the largest; to all others of an all-to-all goes what they are to hold.
    S→P counts as a gather, since no collective pads and engines take the way of one.
    """
    collective = ALL_GATHER if step.primitive == PAD else step.primitive
    size = step.elements * item_bytes
    if not isinstance(cut, Shares) or collective == ALL_REDUCE:
        return (Way(collective, step.axes, (size,)),)
    members, largest = len(cut.units), most(cut) / cut.total
    if collective == ALL_TO_ALL:
        sent = max(share / cut.total * (1 - share / cut.total) for share in cut.units)
        n = math.ceil(size / largest * sent * members / (members - 1))
        return (Way(collective, step.axes, (n,)),)
    padded = Way(collective, step.axes, (math.ceil(size * members * largest),))
    if step.primitive != ALL_GATHER:
        return (padded,)
    each = tuple([size * share // cut.total for share in cut.units])
    return padded, Way(BROADCAST, step.axes, each)
