"""What is known of a cluster: links (α, β per collective, level and group) and devices.

A profile is versioned JSON that `python -m autoddl fit-network` writes; bundled ones lie in
`profiles/`. Every number is in seconds, bytes, flop/s or bytes/s.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from autoddl import json_files, store
from autoddl.errors import AutoDDLError, near, shown
from autoddl.json_files import FieldError, decode
from autoddl.perfmodel import collectives
from autoddl.perfmodel.collectives import BROADCAST, RING
from autoddl.perfmodel.mixed_kinds import links_of, unjoined
from autoddl.perfmodel.profile_entries import (
    MOST_S,
    Device,
    Link,
    check_count,
    check_label,
    check_number,
    envelope,
)
from autoddl.perfmodel.resources import DEVICE, ResourceParts
from autoddl.perfmodel.topology import Crossing
from autoddl.sbp.boxing import ALL_GATHER
from autoddl.sbp.cluster_kinds import is_kind
from autoddl.sbp.mesh import MOST_AXES, is_level
from autoddl.sbp.program.allowed import DEVICES, MOST_TEXT

FORMAT = "autoddl.profile"
FORMAT_VERSION = 3
BUNDLED = {"cpu": "cpu-loopback"}
KINDS = ("measured", "data sheet")
MODES = ("", "graph", "eager")
MOST_LINKS, MOST_KINDS = 10_000, 100
AGAIN = "measure again with `python -m autoddl fit-network`"
ALIKE = ""  # the kind of devices that are all alike

_BY_LEVEL = {"sharing": 1.0, "overlap": 1.0, "interference": MOST_S, "overhead": MOST_S}


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """A cluster profile. `levels` are the cluster's levels, outermost first.

    `devices` are those of each kind, or one without a name (ALIKE) where all are alike. Of several
    kinds `part` gives the profile of a group; in that an op takes as long as on the slowest of them.

    `sharing` says by level, from 0 to 1, how much concurrent groups slow each other down on one link:
    g of them take 1 + sharing·(g − 1) times the β of one. 1 is one NIC for each node, 0 a link for each
    device. Without an entry it is 1 for outer levels and 0 for the innermost. `overlap` says by level,
    from 0 to 1, which share of a boxing leaves the device free for ops (perfmodel.timeline). Without
    an entry it is assumed: 1, and 0 for the innermost level of CPU ranks, who copy the bytes themselves.
    `interference` says by level how much longer ops take beside that share (0.14: 14 %), `overhead` for
    how many seconds each message of a boxing keeps the device, however long it is (LogP's o); both are 0
    without an entry. `mode` says what was timed: "graph" (boxing in nn.Graph), "eager" or "" where
    neither was.
    """

    name: str
    source: str
    kind: str
    device_type: str
    levels: tuple[str, ...]
    links: tuple[Link, ...]
    devices: Mapping[str, Device]
    licence: str = ""
    sharing: Mapping[str, float] = {}
    overlap: Mapping[str, float] = {}
    interference: Mapping[str, float] = {}
    overhead: Mapping[str, float] = {}
    mode: str = ""

    def __post_init__(self) -> None:
        for field, allowed in (("kind", KINDS), ("device_type", DEVICES), ("mode", MODES)):
            if getattr(self, field) not in allowed:
                given = shown(getattr(self, field))
                raise FieldError(f"{field} {given}; allowed: {', '.join(allowed)}")
        check_label(self.name, "name")
        check_label(self.source, "source", MOST_TEXT)
        check_label(self.licence, "licence", MOST_TEXT)
        self._check_levels()
        self._check_kinds()
        self._check_links()

    def _check_levels(self) -> None:
        """Raise FieldError where levels are no names of some, or are not there but have numbers."""
        if not self.levels:
            raise FieldError("no levels; name at least one, as 'node', 'gpu'")
        check_count(self.levels, "levels", MOST_AXES)
        for level in self.levels:
            if not is_level(level) or self.levels.count(level) > 1:
                raise FieldError(f"level {shown(level)}; allowed: names as node and gpu, each once")
        for what, most in _BY_LEVEL.items():
            for level, value in getattr(self, what).items():
                if level not in self.levels:
                    raise FieldError(f"{what} of {level!r}; levels are {', '.join(self.levels)}")
                check_number(value, f"{what}[{level}]", 0.0, most)

    def _check_kinds(self) -> None:
        """Raise FieldError where devices are not of kinds, or all alike."""
        if not self.devices or (ALIKE in self.devices and len(self.devices) > 1):
            raise FieldError("devices without a kind, or none; name the kind of each")
        check_count(self.devices, "devices", MOST_KINDS)
        for kind in self.kinds:
            if not is_kind(kind):
                raise FieldError(f"kind {shown(kind)}; allowed: names as v100 or t4")

    def _check_links(self) -> None:
        """Raise FieldError where links are of no level or kind of these, or never the fastest."""
        check_count(self.links, "links", MOST_LINKS)
        known: dict[tuple[object, ...], list[Link]] = {}
        for link in self.links:
            if link.level not in self.levels:
                raise FieldError(
                    f"link in level {link.level!r}; levels are {', '.join(self.levels)}"
                )
            for kind in set(link.kinds).difference(self.devices):
                raise FieldError(f"link of kind {kind!r}; kinds are {', '.join(self.devices)}")
            known.setdefault((link.key, link.algorithm), []).append(link)
        for lines in known.values():
            if len(envelope(lines)) < len(lines):
                link = lines[-1]
                raise FieldError(
                    f"two links of {link.collective} in level {link.level} for groups of "
                    f"{link.group_size} ({link.inner} in each unit, {link.groups} at once), one of "
                    "which has both the longer α and the longer β; leave the other"
                )

    @property
    def device(self) -> Device:
        """Return the one device.

        Raises:
            AutoDDLError: there are several kinds.
        """
        self.check_alike()
        return next(iter(self.devices.values()))

    def check_alike(self) -> None:
        """Raise AutoDDLError where there are several kinds of devices."""
        if len(self.devices) > 1:
            raise AutoDDLError(
                f"profile {self.name}: devices of kinds {', '.join(self.devices)}; say which node is "
                f"what, cluster='2*{next(iter(self.devices))}x4 + …'"
            )

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the names of the kinds of devices; none where all are alike."""
        return tuple(kind for kind in self.devices if kind != ALIKE)

    @property
    def memory_bytes(self) -> int:
        """Return the memory of the device that has least."""
        return min(device.memory_bytes for device in self.devices.values())

    @property
    def op_overhead_s(self) -> float:
        """Return what the launch of an op costs, on the slowest of the devices."""
        return max(device.op_overhead_s for device in self.devices.values())

    def part(self, kinds: Collection[str]) -> Profile:
        """Return the profile of a group of devices of these kinds; without kinds of all alike.

        Devices that are all alike are of any one kind, which the profile does not name.

        Raises:
            AutoDDLError: a kind is not known, or no link between two of them; or which kinds they are
                has to be said.
        """
        wanted = tuple(sorted(set(kinds)))
        if not wanted:
            self.check_alike()
        if not wanted or (len(wanted) == 1 and ALIKE in self.devices):
            return self
        if wanted not in self._parts:
            self._parts[wanted] = self._part(wanted)
        return self._parts[wanted]

    @cached_property
    def _parts(self) -> dict[tuple[str, ...], Profile]:
        return {}

    def _part(self, kinds: tuple[str, ...]) -> Profile:
        for kind in kinds:
            if kind not in self.devices:
                known = (
                    ", ".join(self.devices) if ALIKE not in self.devices else "none, all are alike"
                )
                raise AutoDDLError(
                    f"profile {self.name}: no kind {kind!r}; its kinds are {known}; {AGAIN}"
                )
        outermost = self.levels[0]
        for pair in unjoined(self.links, kinds, outermost):
            raise AutoDDLError(
                f"profile {self.name}: no link between {' and '.join(pair)}; {AGAIN} on nodes of both"
            )
        devices = {kind: self.devices[kind] for kind in kinds}
        return structs.replace(self, devices=devices, links=links_of(self.links, kinds, outermost))

    @cached_property
    def _by_level(self) -> dict[tuple[str, str], list[Link]]:
        table: dict[tuple[str, str], list[Link]] = {}
        for link in self.links:
            table.setdefault((link.collective, link.level), []).append(link)
        return table

    @cached_property
    def _found(self) -> dict[tuple[str, Crossing], tuple[Link, ...]]:
        return {}

    def lines(self, collective: str, way: Crossing) -> tuple[Link, ...]:
        """Return the lines of a kind of group: the measured ones, else of the nearest of that level.

        Nearest is by ratio: of the members inside each unit first, then of the group size, then of the
        concurrent groups. A level without measurements uses the outermost level that has some. Broadcasts
        are those of the level of all-gathers, and where it has none chains over the same links, with
        that α and β: if an all-gather of 8 MB among 4 takes 3·α + 6 MB·β, one takes 3·α + 8 MB·β.

        Raises:
            AutoDDLError: the profile has no measurement of this collective at all.
        """
        if (collective, way) not in self._found:
            links = self._of_level(collective, way)
            nearest = min(links, key=lambda link: _distance(link, way)).key
            self._found[collective, way] = tuple(link for link in links if link.key == nearest)
        return self._found[collective, way]

    def _of_level(self, collective: str, way: Crossing) -> list[Link]:
        """Return the lines in the level of a kind of group, or else in the outermost that has some."""
        if collective == BROADCAST:
            links = self._of_level(ALL_GATHER, way)
            chains = [structs.replace(x, collective=BROADCAST, algorithm=RING) for x in links]
            return self._by_level.get((BROADCAST, links[0].level), chains)
        levels = (self._by_level.get((collective, level)) for level in (way.level, *self.levels))
        found = next(filter(None, levels), None)
        if found is None:
            raise AutoDDLError(
                f"profile {self.name}: no measurement of {collective}; "
                "measure with `python -m autoddl fit-network`"
            )
        return found

    def link(self, collective: str, way: Crossing, size_bytes: float = 0.0) -> Link:
        """Return the line that is the fastest for a size; raises as `lines`."""
        return min(self.lines(collective, way), key=lambda link: self.line_s(link, way, size_bytes))

    def spans(self, collective: str, way: Crossing) -> bool:
        """Tell whether the profile has this collective of groups with so many members in each unit."""
        links = self._by_level.get((collective, way.level), ())
        return any(link.inner == way.inner for link in links)

    def shared(self, level: str) -> float:
        """Return how much concurrent groups slow each other down on a link of `level`, 0 to 1."""
        return self.sharing.get(level, 0.0 if level == self.levels[-1] else 1.0)

    def overlapped(self, level: str) -> float:
        """Return which share of a boxing over links of `level` leaves the device free, 0 to 1."""
        copies = self.device_type == "cpu" and level == self.levels[-1]
        return self.overlap.get(level, 0.0 if copies else 1.0)

    @property
    def assumed_overlap(self) -> tuple[str, ...]:
        """Return the levels whose overlap is assumed."""
        return tuple(level for level in self.levels if level not in self.overlap)

    def slowed(self, level: str) -> float:
        """Return how much longer ops take beside a boxing over links of `level`, 0 for not at all."""
        return self.interference.get(level, 0.0)

    def parts(self, level: str | None, seconds: float, messages: float = 0.0) -> ResourceParts:
        """Return on which resources a boxing of so many messages over links of `level` runs for how long.

        None is local. Of 10 ms in two messages of 1 ms overhead each, where the overlap is 0.75, the
        device is busy for 2 ms and a quarter of the other 8.
        """
        if level is None or math.isinf(seconds):
            return ((level or DEVICE, seconds),)
        held_s = min(seconds, messages * self.overhead.get(level, 0.0))
        free_s = self.overlapped(level) * (seconds - held_s)
        parts = ((DEVICE, seconds - free_s), (level, free_s))
        return tuple([part for part in parts if part[1] > 0])

    def collective_s(self, collective: str, way: Crossing, size_bytes: float) -> float:
        """Return the seconds of one collective of groups of a kind, all of them at work at once.

        `size_bytes` as in collectives.coefficients.
        """
        if way.group_size == 1:
            return 0.0
        return min([self.line_s(link, way, size_bytes) for link in self.lines(collective, way)])

    def line_s(self, link: Link, way: Crossing, size_bytes: float) -> float:
        """Return the seconds that a line has for a collective, as `collective_s`.

        Where the link's kind of group is another one, messages are those of the algorithm in this one.
        Where that many groups were not measured, β is scaled by how much groups share; α is not, since
        messages of different groups overlap. It takes no less than its messages keep the device: an idle
        link passes a burst at once, so that short ones may make α come out as 0.
        """
        share = self.shared(link.level)
        beta = link.beta_s_per_byte * (
            (1 + share * (way.groups - 1)) / (1 + share * (link.groups - 1))
        )
        messages, volume = collectives.coefficients(
            link.collective, way.group_size, size_bytes, algorithm=link.algorithm, inner=way.inner
        )
        seconds = messages * link.alpha_s + volume * beta
        return max(seconds, messages * self.overhead.get(link.level, 0.0))

    def save(self, path: str | Path) -> None:
        """Write the profile as versioned JSON."""
        store.write(path, self.encoded())

    def encoded(self) -> bytes:
        """Return the text of its file."""
        return json_files.signed(msgspec.json.encode(self.to_json()), indent=1)

    def to_json(self) -> dict[str, Any]:
        """Return the versioned JSON form."""
        return {"format": FORMAT, "version": FORMAT_VERSION, **msgspec.to_builtins(self)}


def _distance(link: Link, way: Crossing) -> tuple[float, ...]:
    """Return how far a link is from a kind of group, by ratio; equally far: the smaller."""
    has, wanted = ((of.inner, of.group_size, of.groups) for of in (link, way))
    off = (abs(math.log(a / b)) for a, b in zip(has, wanted, strict=True))
    return tuple(x for pair in zip(off, has, strict=True) for x in pair)


def load(source: str | Path | Profile | None, *, device_type: str = "cpu") -> Profile:
    """Return a profile: a file, the name of a bundled one, a Profile as it is, None for the default.

    Raises:
        AutoDDLError: missing, truncated, another version, or numbers that can't be (negative α).
    """
    if isinstance(source, Profile):
        return source
    if source is None:
        if device_type not in BUNDLED:
            raise AutoDDLError(
                f"profile: no default for device {device_type!r}; name one of {', '.join(bundled())}, or "
                "measure one with `python -m autoddl fit-network -o network.json` and pass it"
            )
        source = BUNDLED[device_type]
    if not isinstance(source, str | Path):
        raise AutoDDLError(
            f"profile: got {shown(source)}; allowed are a file, a bundled name "
            f"({', '.join(bundled())}) or a Profile"
        )
    return _read(source)


def bundled() -> tuple[str, ...]:
    """Return the names of the bundled profiles."""
    folder = resources.files("autoddl.perfmodel") / "profiles"
    return tuple(sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".json")))


def _read(source: str | Path) -> Profile:
    if str(source) in bundled() and not store.exists(source):
        folder = resources.files("autoddl.perfmodel") / "profiles"
        text, where = (folder / f"{source}.json").read_bytes(), f"bundled profile {source}"
        return json_files.verified(text, from_json, where=where, remedy=AGAIN)
    if not store.exists(source):
        raise AutoDDLError(
            f"profile {shown(str(source), 150)}: no such file and no bundled profile of that name; "
            f"bundled: {', '.join(bundled())}; measure one with `python -m autoddl fit-network -o FILE`"
            f"{near(str(source), bundled())}"
        )
    return json_files.read(source, from_json, what="profile file", remedy=AGAIN)


def from_json(text: bytes | str, where: str) -> Profile:
    """Return the profile that a file holds; `where` names the source in errors.

    Raises:
        AutoDDLError: the file is damaged, or of another format or version.
    """
    return decode(text, Profile, form=(FORMAT, FORMAT_VERSION), where=where, remedy=AGAIN)
