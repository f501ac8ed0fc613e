"""What single boxings take, and on which resources: a collective over the links that it crosses.

On 2x4 an all-gather along the second axis crosses the links within nodes, one along the first the
network, which the four groups share that do it at once.
"""

from __future__ import annotations

import math
from functools import cache, partial

from autoddl.perfmodel import collectives
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.profile_entries import Link
from autoddl.perfmodel.resources import ResourceParts
from autoddl.perfmodel.roofline import OpWork, op_s
from autoddl.perfmodel.topology import crossing
from autoddl.sbp.boxing import ALL_GATHER, LOCAL, PAD, Boxing
from autoddl.sbp.mesh import Mesh


class BoxingPrices:
    """Price boxings on one mesh under one profile."""

    def __init__(self, mesh: Mesh, profile: Profile) -> None:
        self.mesh, self.profile = mesh, profile
        self._way = cache(partial(crossing, mesh, innermost=profile.levels[-1]))

    def step_s(self, step: Boxing, item_bytes: int) -> float:
        """Return the seconds of one boxing, its launch included; inf where the profile has no price.

        All groups of the mesh do it at once, so those that cross the same link share it. S→P is priced as
        a gather, since no collective pads and engines take the way of one.
        """
        size = step.elements * item_bytes
        if step.primitive == LOCAL:
            return op_s(self.profile, OpWork("boxing", "memory", "", 0.0, 2 * size))
        link = self.link(step, size)
        if link is None:
            return math.inf
        return self.profile.op_overhead_s + self.profile.line_s(link, self._way(step.axes), size)

    def link(self, step: Boxing, size_bytes: float) -> Link | None:
        """Return the line that prices a boxing; None for a local one and where there is no price.

        Groups that span levels are priced only by links that were measured just so.
        """
        if step.primitive == LOCAL:
            return None
        collective, way = _collective(step), self._way(step.axes)
        if way.inner > 1 and not self.profile.measured(collective, way):
            return None
        return self.profile.link(collective, way, size_bytes)


def boxing_parts(
    step: Boxing | None, seconds: float, mesh: Mesh, profile: Profile
) -> ResourceParts:
    """Return on which resources a boxing of so many seconds runs for how long; None is local."""
    if step is None or step.primitive == LOCAL:
        return profile.parts(None, seconds)
    size = math.prod(mesh.shape[axis] for axis in step.axes)
    messages, _ = collectives.coefficients(_collective(step), size, 0.0)
    return profile.parts(mesh.axes[step.axes[0]].level, seconds, messages)


def _collective(step: Boxing) -> str:
    return ALL_GATHER if step.primitive == PAD else step.primitive
