"""What it takes to send tensors between the stages of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from autoddl.perfmodel.collectives import SEND_RECEIVE
from autoddl.perfmodel.profile import Profile
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
        if (source, target) not in self._levels:
            self._levels[source, target] = self._level(source, target)
        level, groups = self._levels[source, target]
        if self._measured:
            return self.profile.collective_s(SEND_RECEIVE, level, 2, size_bytes, groups=groups)
        return self.profile.collective_s(ALL_GATHER, level, 2, 2 * size_bytes, groups=groups)

    @cached_property
    def _levels(self) -> dict[tuple[int, int], tuple[str, int]]:
        return {}

    @cached_property
    def _measured(self) -> bool:
        """Tell whether the profile knows send/receive; an all-gather of two sends as much else."""
        return any(link.collective == SEND_RECEIVE for link in self.profile.links)

    def _level(self, source: int, target: int) -> tuple[str, int]:
        """Return the outermost level that is crossed, and how many devices of a unit cross it."""
        unit = self.cluster.size
        for level in self.cluster.levels:
            unit //= level.size
            first, second = (stage * self.stage_size for stage in (source, target))
            devices = range(self.stage_size)
            if any((first + d) // unit != (second + d) // unit for d in devices):
                return level.name, min(unit, self.stage_size)
        raise AssertionError("stages on the same devices")
