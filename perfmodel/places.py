"""Places of a mesh with unlike devices or unlike portions of a cut: a step waits for all of them.

Of a fast and a slow device with the shares 3/1 an op takes the longer of what the fast one needs for
three units and the slow one for one. Where nothing has shares all places have the same portion, and
an op takes as long as on the slowest device. Memory is that of the place which has least to spare:
48 GB of 80 GB count as 19.2 GB of 32 GB, where that is the memory of the smallest device.

Source: HAP (seed 001), max_j comp_j(B_j); here op by op, which is no less than its maximum of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.profile_entries import Device
from autoddl.perfmodel.roofline import OpWork, device_s
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.shares import Cut


@dataclass(frozen=True)
class MeshPlace:
    """What devices have the same portion of what each axis cuts, one of each kind.

    They have `room` times as much memory as the smallest device of the mesh.
    """

    cuts: tuple[Cut, ...]
    devices: tuple[Device, ...]
    room: float = 1.0


def places_of(mesh: Mesh, profile: Profile, kinds: Sequence[str] = ()) -> tuple[MeshPlace, ...]:
    """Return the distinct places of a mesh; one where it has no shares, with all devices of the profile.

    `kinds` are those of its devices by rank; where they are not told every place has all of the profile.
    """
    if mesh.cuts == mesh.shape:
        return (MeshPlace(mesh.cuts, tuple(profile.devices.values())),)
    found: dict[tuple[Cut, ...], dict[str, Device]] = {}
    for rank in range(mesh.size):
        told = [kinds[rank]] if kinds and kinds[rank] in profile.devices else profile.devices
        found.setdefault(mesh.portion(rank), {}).update({k: profile.devices[k] for k in told})
    memory = [min(d.memory_bytes for d in devices.values()) for devices in found.values()]
    return tuple(
        MeshPlace(cuts, tuple(devices.values()), most / min(memory))
        for (cuts, devices), most in zip(found.items(), memory, strict=True)
    )


def slowest(
    places: Sequence[MeshPlace], work_at: Callable[[tuple[Cut, ...]], OpWork]
) -> tuple[float, OpWork, Device]:
    """Return the most seconds that an op takes at any place, with its work there, on which device."""
    works = [(work_at(place.cuts), place.devices) for place in places]
    found = [(device_s(device, work), work, device) for work, some in works for device in some]
    return max(found, key=lambda each: each[0])
