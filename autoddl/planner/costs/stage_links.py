"""What it takes to send tensors between the stages of a pipeline."""

from __future__ import annotations

from functools import cache

from autoddl.perfmodel.collectives import SEND_RECEIVE
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.topology import Crossing
from autoddl.sbp.boxing import ALL_GATHER
from autoddl.sbp.mesh import Cluster


class Links:
    """The links between stages, which lie one behind the other on the devices of a cluster."""

    def __init__(self, profile: Profile, cluster: Cluster, stage_size: int) -> None:
        self.profile, self.cluster, self.stage_size = profile, cluster, stage_size
        self._crossed = cache(self._way)
        # An all-gather of two sends as much, where the profile does not know send/receive.
        measured = any(link.collective == SEND_RECEIVE for link in profile.links)
        self._collective, self._shares = (SEND_RECEIVE, 1) if measured else (ALL_GATHER, 2)

    def seconds(self, source: int, target: int, size_bytes: int) -> float:
        """Return the seconds in which every device of a stage sends so many bytes to another stage."""
        crossing = self._crossed(source, target)
        return self.profile.collective_s(self._collective, crossing, self._shares * size_bytes)

    def _way(self, source: int, target: int) -> Crossing:
        """Return how pairs of devices cross the outermost level between two stages."""
        unit = self.cluster.size
        for level in self.cluster.levels:
            unit //= level.size
            first, second = (stage * self.stage_size for stage in (source, target))
            devices = range(self.stage_size)
            if any((first + d) // unit != (second + d) // unit for d in devices):
                return Crossing(level.name, 2, groups=min(unit, self.stage_size))
        raise AssertionError("stages on the same devices")
