"""What single boxings take, and on which resources: a collective over the links that it crosses.

On 2x4 an all-gather along the second axis crosses the links within nodes, one along the first the
network, which the four groups share that do it at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial

from autoddl.engine.model import CollectiveQueue
from autoddl.perfmodel import collectives
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.profile_entries import Link
from autoddl.perfmodel.resources import QUEUE, SHARED, ResourceParts
from autoddl.perfmodel.roofline import OpWork, op_s
from autoddl.perfmodel.topology import crossing
from autoddl.sbp.boxing import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, LOCAL, PAD, Boxing
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.shares import Shares, most, places, units


class BoxingPrices:
    """Price boxings on one mesh under one profile, where collectives share a `queue` if there is one."""

    def __init__(self, mesh: Mesh, profile: Profile, queue: CollectiveQueue | None = None) -> None:
        self.mesh, self.profile, self.queue = mesh, profile, queue
        self._lines: dict[tuple[str, tuple[int, ...]], Sequence[tuple[float, float]]] = {}
        self._way = cache(partial(crossing, mesh, innermost=profile.levels[-1]))

    def step_s(self, step: Boxing, item_bytes: int) -> float:
        """Return the seconds of one boxing, its launch included; inf where the profile has no price.

        All groups of the mesh do it at once, so those that cross the same link share it. S→P is priced as
        a gather, since no collective pads and engines take the way of one.
        """
        size = self.size_bytes(step, item_bytes)
        if step.primitive == LOCAL:
            return op_s(self.profile, OpWork("boxing", "memory", "", 0.0, 2 * size))
        link = self.link(step, size)
        if link is None:
            return math.inf
        return self.profile.op_overhead_s + self.profile.line_s(link, self._way(step.axes), size)

    def size_bytes(self, step: Boxing, item_bytes: int) -> int:
        """Return the bytes n of a boxing, of which its cost formula tells what goes over links.

        Over shares that is what an even cut would have to move as much: all members of a gather send as
        much as the largest (they pad), and so for a scatter; to all others goes what they are to hold.
        """
        size, (axis, *_) = step.elements * item_bytes, step.axes
        cut = self.mesh.cuts[axis]
        if not isinstance(cut, Shares) or step.primitive in (LOCAL, ALL_REDUCE):
            return size
        members, largest = places(cut), most(cut) / units(cut)
        if step.primitive != ALL_TO_ALL:
            return math.ceil(size * members * largest)
        sent = max(share / units(cut) * (1 - share / units(cut)) for share in cut.units)
        return math.ceil(size / largest * sent * members / (members - 1))

    def link(self, step: Boxing, size_bytes: float) -> Link | None:
        """Return the line that prices a boxing; None for a local one and where there is no price.

        Groups that span levels are priced only by links of groups with as many members in each unit.
        """
        if step.primitive == LOCAL:
            return None
        collective, way = _collective(step), self._way(step.axes)
        if way.inner > 1 and not self.profile.spans(collective, way):
            return None
        return self.profile.link(collective, way, size_bytes)

    def lines(self, step: Boxing) -> Sequence[tuple[float, float]]:
        """Return what a collective like this one takes by each line: seconds, and more for each byte."""
        key = step.primitive, step.axes
        if key not in self._lines:
            collective, way, much = _collective(step), self._way(step.axes), 1e9
            found = []
            for link in self.profile.lines(collective, way):
                fixed, one = (self.profile.line_s(link, way, n) for n in (0.0, much))
                found.append((self.profile.op_overhead_s + fixed, (one - fixed) / much))
            self._lines[key] = found
        return self._lines[key]

    def parts(self, step: Boxing | None, seconds: float) -> ResourceParts:
        """Return on which resources a boxing of so many seconds runs for how long; None is local."""
        if step is None or step.primitive == LOCAL:
            return self.profile.parts(None, seconds)
        size = math.prod(self.mesh.shape[axis] for axis in step.axes)
        messages, _ = collectives.coefficients(_collective(step), size, 0.0)
        if (
            self.queue is not None
        ):  # what a launch takes does not depend on how many messages it sends
            messages = 0.0
        return self.profile.parts(self.mesh.axes[step.axes[0]].level, seconds, messages)

    def least_parts(self, step: Boxing | None, seconds: float, size_bytes: int) -> ResourceParts:
        """Return the seconds of its resources that a boxing takes at least, whatever goes with it.

        In a queue all levels are one resource, and a collective that may share a launch takes no less
        than its share, by bytes, in the largest one. With 16 MB that is a quarter of a launch for 4 MB.
        """
        parts, queue = self.parts(step, seconds), self.queue
        if queue is None or step is None or step.primitive == LOCAL:
            return parts
        least_s = seconds
        if step.primitive in queue.fused and size_bytes < queue.threshold_bytes:
            most = queue.threshold_bytes
            least_s = size_bytes * min(fixed / most + slope for fixed, slope in self.lines(step))
        share = min(least_s / seconds, 1.0) if seconds else 1.0
        names = {level: QUEUE for level in self.profile.levels}
        busy = [(names.get(resource, resource), share * part_s) for resource, part_s in parts]
        return (*busy, (SHARED, seconds - share * seconds))


def _collective(step: Boxing) -> str:
    return ALL_GATHER if step.primitive == PAD else step.primitive
