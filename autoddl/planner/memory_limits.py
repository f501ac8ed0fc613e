"""How much memory devices have: what the user gives, for all or by kind, or what the profile knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from autoddl.errors import AutoDDLError, shown
from autoddl.perfmodel.profile import Profile
from autoddl.sbp.mesh import Cluster
from autoddl.units import BYTES, quantity

MOST = 1 << 60  # bytes; sums of them stay in 64 bits


def memory_limits(
    memory: Any, known: Profile, cluster: Cluster
) -> tuple[Mapping[str, int] | None, int]:
    """Return the memory of the devices by kind, if there are several, and the least of all.

    Raises:
        AutoDDLError: it is given for a kind that is not there, or is no size.
    """
    known.part(cluster.kinds)  # there are links between all of them
    kinds = dict.fromkeys(cluster.kinds)
    if not kinds and not isinstance(memory, Mapping):
        return None, known.memory_bytes if memory is None else parse_bytes(memory)
    given = memory if isinstance(memory, Mapping) else dict.fromkeys(kinds, memory)
    for kind in given:
        if kind not in kinds:
            there = ", ".join(kinds) or "none, all devices are alike"
            raise AutoDDLError(
                f"memory of kind {shown(kind, 100)}: not in the cluster {cluster}; kinds are {there}"
            )
    limits = {
        kind: known.part([kind]).memory_bytes
        if given.get(kind) is None
        else parse_bytes(given[kind])
        for kind in kinds
    }
    return limits, min(limits.values())


def with_memory(profile: Profile, limits: Mapping[str, int]) -> Profile:
    """Return the profile whose devices have so much memory, by kind."""
    devices = {
        kind: structs.replace(device, memory_bytes=limits.get(kind, device.memory_bytes))
        for kind, device in profile.devices.items()
    }
    return structs.replace(profile, devices=devices)


def parse_bytes(text: str | float) -> int:
    """Read "16GiB", "512 MB", "1e9" or a number of bytes; KiB is 1024, KB 1000.

    Raises:
        AutoDDLError: not a size.
    """
    size = quantity(text, BYTES)
    if not 1 <= size < MOST:
        raise AutoDDLError(
            f"memory: got {shown(text, 150)}; allowed are sizes > 0, up to 1 EiB, such as '16GiB', "
            "'500MB' or 16e9 (bytes)"
        )
    return int(size)
