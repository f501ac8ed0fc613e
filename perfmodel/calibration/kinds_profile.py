"""Put a profile of unlike nodes together, of measurements on nodes of one kind and of two.

Each is a profile of its own, measured as if all nodes were alike. What was measured on nodes of one kind
tells of that kind's devices, of links inside such nodes and between them; what was measured on nodes of
two kinds tells of links between these. Of 3 V100 nodes and 2 of T4, three measurements make a whole:

    v100       device, links inside and between V100 nodes
    t4         device, links inside and between T4 nodes
    t4, v100   links between nodes of both

What a profile says by level for all kinds (sharing, overlap, interference, overhead) is the worst that
was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import structs

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.profile import ALIKE, Profile
from autoddl.perfmodel.profile_entries import Device


def check(base: Profile, kinds: Sequence[str]) -> None:
    """Raise AutoDDLError where links of these kinds can't be put into a profile."""
    if ALIKE in base.devices:
        raise AutoDDLError(
            f"profile {base.name}: its devices are all alike; measure those of each kind first, with "
            "`fit-network --kinds NAME` or `fit-device --kind NAME`"
        )
    for kind in kinds if len(kinds) > 1 else ():
        if kind not in base.devices:
            raise AutoDDLError(
                f"profile {base.name}: no kind {kind!r}; its kinds are {', '.join(base.devices)}; "
                f"measure nodes of {kind} first"
            )


def of_kind(measured: Profile, kind: str) -> Profile:
    """Return what was measured on nodes of one kind as a profile of it."""
    links = tuple(structs.replace(link, kinds=(kind,)) for link in measured.links)
    return structs.replace(measured, links=links, devices={kind: measured.device})


def joined(base: Profile, measured: Profile, kinds: tuple[str, ...]) -> Profile:
    """Return a profile with what was measured on nodes of one kind or of two, in their order.

    It takes the place of an earlier measurement of these kinds.

    Raises:
        AutoDDLError: `check`; or something else was measured: other levels, boxings of another mode.
    """
    check(base, kinds)
    if base.links and base.mode != measured.mode:
        raise AutoDDLError(
            f"profile {base.name}: measured in mode {base.mode or 'unknown'}, this in mode "
            f"{measured.mode or 'unknown'}; measure all kinds in one mode"
        )
    links, devices = measured.links, dict(base.devices)
    if len(kinds) == 1:
        devices[kinds[0]] = measured.device
    else:
        links = tuple(link for link in links if link.level == measured.levels[0])
    return structs.replace(
        base,
        source=f"{base.source}; {', '.join(kinds)}: {measured.source}",
        levels=_longer(base, measured),
        links=(
            *(link for link in base.links if link.kinds != kinds),
            *(structs.replace(link, kinds=kinds) for link in links),
        ),
        devices=devices,
        sharing=_worst(base.sharing, measured.sharing, max),
        overlap=_worst(base.overlap, measured.overlap, min),
        interference=_worst(base.interference, measured.interference, max),
        overhead=_worst(base.overhead, measured.overhead, max),
        mode=measured.mode,
    )


def with_device(base: Profile, kind: str, device: Device, source: str) -> Profile:
    """Return a profile with a device of a kind, in the place of those that were all alike, or of its own.

    Links that name no kinds are the same for all.
    """
    others = {name: known for name, known in base.devices.items() if name != ALIKE}
    return structs.replace(
        base, devices={**others, kind: device}, source=f"{base.source}; {kind}: {source}"
    )


def _longer(base: Profile, new: Profile) -> tuple[str, ...]:
    """Return the levels of both, of which one may have but the inner ones: it was a single node."""
    short, long = sorted((base.levels, new.levels), key=len)
    if long[len(long) - len(short) :] != short:
        raise AutoDDLError(
            f"profile {base.name}: levels {', '.join(base.levels)}, this has {', '.join(new.levels)}; "
            "measure nodes of the same levels"
        )
    return long


def _worst(
    one: Mapping[str, float], other: Mapping[str, float], worse: Callable[[float, float], float]
) -> dict[str, float]:
    both = {level: worse(one[level], other[level]) for level in one.keys() & other.keys()}
    return {**one, **other, **both}
