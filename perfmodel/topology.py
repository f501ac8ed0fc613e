"""Which links the groups of a collective cross, and how many of them share each link.

On a mesh of 2 nodes × 4 devices groups along both axes have 8 members, 4 in each node, and one group at
a time uses the link of a node; those along the outer axis have 2 members, and 4 groups share each link.
"""

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
    touches; `groups` of them run at once over the link of each unit. In the innermost level, where a
    unit is one device, `groups` run at once among the devices of one unit of the level outside:
    whether they slow each other down (ranks on the cores of one machine do) is for the profile to say.
    """

    level: str
    group_size: int
    inner: int = 1
    groups: int = 1


def crossing(mesh: Mesh, axes: Sequence[int], innermost: str) -> Crossing:
    """Return how the groups that differ in `axes` cross the levels, all groups at work at once.

    `innermost` is the cluster's level of single devices, which the mesh may lack. Every device is in
    one group, so of the devices inside a unit there are as many groups as they fill. It does
    not matter whether `level` itself has several axes.
    """
    long = [i for i in axes if mesh.axes[i].size > 1] or list(axes)
    level = mesh.axes[min(long)].level
    same = [i for i, axis in enumerate(mesh.axes) if axis.level == level]
    group_size = math.prod(mesh.axes[i].size for i in long)
    inner = math.prod(mesh.axes[i].size for i in long if i > same[-1])
    if level == innermost:
        groups = math.prod(mesh.axes[i].size for i in same) // group_size
    else:
        groups = math.prod(mesh.shape[same[-1] + 1 :]) // inner
    return Crossing(level, group_size, inner, groups)
