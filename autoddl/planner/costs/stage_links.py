"""What it takes to send tensors between the stages of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from autoddl.perfmodel.collectives import SEND_RECEIVE
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.topology import Crossing
from autoddl.sbp.boxing import ALL_GATHER
from autoddl.sbp.mesh import Cluster


@dataclass(frozen=True)
class Links:
    """The links between stages, which lie one behind the other on the devices of a cluster."""

    profile: Profile
    cluster: Cluster
    stage_size: int

    def seconds(self, source: int, target: int, size_bytes: int) -> float:
        """Return the seconds in which every device of a stage sends so many bytes to another stage."""
        if (source, target) not in self._ways:
            self._ways[source, target] = self._way(source, target)
        way = self._ways[source, target]
        if self._measured:
            return self.profile.collective_s(SEND_RECEIVE, way, size_bytes)
        return self.profile.collective_s(ALL_GATHER, way, 2 * size_bytes)

    @cached_property
    def _ways(self) -> dict[tuple[int, int], Crossing]:
        return {}

    @cached_property
    def _measured(self) -> bool:
        """Tell whether the profile knows send/receive; an all-gather of two sends as much else."""
        return any(link.collective == SEND_RECEIVE for link in self.profile.links)

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
