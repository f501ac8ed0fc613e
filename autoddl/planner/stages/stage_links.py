"""What it takes to send tensors between the parts of a pipeline, on the links of a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from autoddl.perfmodel.collectives import SEND_RECEIVE
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.topology import Crossing
from autoddl.sbp.boxing import ALL_GATHER
from autoddl.sbp.mesh import Cluster

Floats = npt.NDArray[np.float64]
Ranks = tuple[int, ...]


class Links:
    """The links between groups of a cluster's devices, which it numbers node by node."""

    def __init__(self, profile: Profile, cluster: Cluster) -> None:
        self.profile, self.cluster = profile, cluster
        self._crossed = cache(self._ways)
        # An all-gather of two sends as much, where the profile does not know send/receive.
        measured = any(link.collective == SEND_RECEIVE for link in profile.links)
        self._collective, self._shares = (SEND_RECEIVE, 1) if measured else (ALL_GATHER, 2)

    def seconds(self, source: Ranks, target: Ranks, size_bytes: float) -> float:
        """Return the seconds in which every device of a group receives so many bytes from another one.

        All devices of the source send as much of it as each other; what takes longer counts.
        """
        return float(self.all_seconds(source, target, np.array([float(size_bytes)]))[0])

    def all_seconds(self, source: Ranks, target: Ranks, sizes: Floats) -> Floats:
        """Return the seconds for each of several sizes."""
        between, *ways = self._crossed(source, target)
        found = np.zeros(len(sizes))
        for way, received in zip(ways, (len(target) / len(source), 1.0), strict=True):
            fastest = np.full(len(sizes), np.inf)
            for link in between.lines(self._collective, way):
                line = [between.line_s(link, way, x * self._shares) for x in (0.0, 1e9)]
                per_byte = (line[1] - line[0]) / 1e9 * received
                fastest = np.minimum(fastest, line[0] + per_byte * sizes)
            found = np.maximum(found, fastest)
        return found

    def _ways(self, source: Ranks, target: Ranks) -> tuple[Profile, Crossing, Crossing]:
        """Return the profile of both groups' devices, and how what each sends and gets crosses levels.

        A transfer goes over the outermost level between two of its ends; the devices of a group in one
        unit of that level share the unit's link.
        """
        kinds = {self.cluster.kind(rank) for rank in (*source, *target)} - {""}
        for number, level in enumerate(self.cluster.levels):
            unit = {rank: self.cluster.unit(rank, number) for rank in (*source, *target)}
            if any(unit[a] != unit[b] for a, b in _ends(source, target)):
                shared = (max(Counter(unit[r] for r in g).values()) for g in (source, target))
                ways = [Crossing(level.name, 2, groups=groups) for groups in shared]
                return self.profile.part(kinds), ways[0], ways[1]
        raise AssertionError("parts on the same devices")


def _ends(source: Ranks, target: Ranks) -> Sequence[tuple[int, int]]:
    """Return pairs of ranks that send to each other: equal groups one to one."""
    if len(source) == len(target):
        return list(zip(source, target, strict=True))
    return [(source[0], r) for r in target] + [(r, target[0]) for r in source]
