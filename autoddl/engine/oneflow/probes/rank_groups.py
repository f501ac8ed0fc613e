"""Which ranks take part in a case of fit-network, and how they lie on a mesh.

Ranks are numbered node by node: on two nodes of two, two pairs that send between the nodes at once are
0 → 2 and 1 → 3, one group across them is the mesh [[0, 1], [2, 3]].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoddl.calibrate.network.link_cases import INSIDE, CollectiveCase

Ranks = npt.NDArray[np.int_]


@dataclass(frozen=True)
class RankGrid:
    """The ranks of a cluster."""

    nodes: int
    ranks_per_node: int

    @property
    def ranks(self) -> Ranks:
        """Return all, shape [nodes, ranks of each]."""
        return np.arange(self.nodes * self.ranks_per_node).reshape(self.nodes, -1)

    def mesh(self, case: CollectiveCase) -> Ranks:
        """Return the ranks that take part in a collective, on one axis or two.

        It works along the `measured_axes`; the other axis counts groups.
        """
        if case.level == INSIDE:
            alone = case.works_alone(self.ranks_per_node)
            groups = self.ranks[0] if alone else self.ranks.ravel()
            rows = groups.reshape(-1, case.group_size)[: 1 if alone else None]
        else:
            rows = self.ranks[: case.group_size // case.inner, : max(case.inner, case.groups)]
        return rows.ravel() if 1 in rows.shape else rows

    def measured_axes(self, case: CollectiveCase) -> tuple[bool, ...]:
        """Tell for each axis of `mesh` whether the collective works along it."""
        if self.mesh(case).ndim == 1:
            return (True,)
        return (False, True) if case.level == INSIDE else (True, case.inner > 1)

    def pairs(self, case: CollectiveCase) -> tuple[Ranks, Ranks]:
        half = self.ranks_per_node // 2
        everywhere = case.level == INSIDE and case.groups == half
        senders = self.ranks[: None if everywhere else 1, : case.groups].ravel()
        return senders, senders + (half if case.level == INSIDE else self.ranks_per_node)

    def workers(self, case: CollectiveCase) -> tuple[int, ...]:
        """Return the ranks that compute at the same time: all members, or the senders of pairs."""
        ranks = self.pairs(case)[0] if case.paired else self.mesh(case)
        return tuple(ranks.ravel().tolist())

    def bystanders(self, case: CollectiveCase) -> tuple[int, ...]:
        """Return the other ranks; they have to call the programs all the same."""
        others = np.setdiff1d(self.ranks, self.workers(case))
        return tuple(others.tolist())
