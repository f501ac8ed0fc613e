"""Which links the groups of a collective cross, and how many of them share each link."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autoddl.sbp.mesh import Mesh


@dataclass(frozen=True)
class Crossing:
    """How groups that differ in some mesh axes lie on the levels of the cluster.

    `level` is the outermost level that they cross: its units (nodes, say) are joined by the links
    that the messages take. Of its `group_size` members a group has `inner` in each unit that it
    touches; `groups` of them run at once over the link of each unit.
    """

    level: str
    group_size: int
    inner: int
    groups: int


def crossing(mesh: Mesh, axes: Sequence[int]) -> Crossing:
    """Return how the groups that differ in `axes` cross the levels, all groups at work at once.

    A unit's devices are the product of all axes in levels inside `level`; every one of them is in one
    group, so `groups` is that product over `inner`. It does not matter whether `level` itself has
    several axes. In the innermost level a unit is one device, which has its link to itself.
    """
    long = [i for i in axes if mesh.axes[i].size > 1] or list(axes)
    level = mesh.axes[min(long)].level
    last = max(i for i, axis in enumerate(mesh.axes) if axis.level == level)
    inner = math.prod(mesh.axes[i].size for i in long if i > last)
    return Crossing(
        level=level,
        group_size=math.prod(mesh.axes[i].size for i in long),
        inner=inner,
        groups=math.prod(mesh.shape[last + 1 :]) // inner,
    )
