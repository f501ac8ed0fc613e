"""What is known of a cluster: links (α, β per collective, level and group size) and devices.

A profile is versioned JSON that `python -m autoddl.fit_network` writes; bundled ones lie in
`profiles/`. Every number is in seconds, bytes, flop/s or bytes/s.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from autoddl.errors import AutoDDLError
from autoddl.perfmodel import collectives
from autoddl.sbp.boxing import COLLECTIVES

FORMAT = "autoddl.profile"
FORMAT_VERSION = 1
BUNDLED = {"cpu": "cpu-loopback"}


@dataclass(frozen=True)
class Link:
    """α and β of one collective among `group_size` devices whose axis lies in `level`.

    Measured with all groups of that size at work at once. `mean_error` is the mean relative error of
    the fit on its own points (0.1 = 10 %), None where no points are known.
    """

    collective: str
    level: str
    group_size: int
    alpha_s: float
    beta_s_per_byte: float
    mean_error: float | None = None


@dataclass(frozen=True)
class Device:
    """One device while all its neighbours work as well.

    `peak_flops` by dtype in flop/s; `efficiency` is the fraction of it that an op family reaches;
    `op_overhead_s` is the cost of launching any op.
    """

    name: str
    memory_bytes: int
    peak_flops: Mapping[str, float]
    memory_bytes_per_s: float
    op_overhead_s: float
    efficiency: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Profile:
    """A cluster profile. `levels` are the cluster's levels, outermost first."""

    name: str
    source: str
    kind: str
    device_type: str
    levels: tuple[str, ...]
    links: tuple[Link, ...]
    device: Device

    def __post_init__(self) -> None:
        where = f"profile {self.name}"
        if self.kind not in ("measured", "data sheet"):
            raise AutoDDLError(f"{where}: kind {self.kind!r}; allowed: measured, data sheet")
        if not self.levels or not all(isinstance(level, str) for level in self.levels):
            raise AutoDDLError(
                f"{where}: levels {self.levels!r}; name at least one, as 'node', 'gpu'"
            )
        for link in self.links:
            _check_link(link, self.levels, where)
        device = self.device
        for key in ("peak_flops", "efficiency"):
            if not isinstance(getattr(device, key), Mapping):
                raise AutoDDLError(f"{where}: {key} is {getattr(device, key)!r}; give it by name")
        if "float32" not in device.peak_flops:
            raise AutoDDLError(
                f"{where}: peak_flops of {', '.join(device.peak_flops) or 'nothing'}; give at least "
                "float32, the rate of every dtype that is not listed"
            )
        for key in ("memory_bytes", "memory_bytes_per_s"):
            _check_number(getattr(device, key), f"{where}: {key}", least=1.0)
        _check_number(device.op_overhead_s, f"{where}: op_overhead_s", least=0.0)
        for dtype, flops in device.peak_flops.items():
            _check_number(flops, f"{where}: peak_flops[{dtype}]", least=1.0)
        for family, share in device.efficiency.items():
            _check_number(share, f"{where}: efficiency[{family}]", least=1e-6)

    @cached_property
    def _by_key(self) -> dict[tuple[str, str], dict[int, Link]]:
        table: dict[tuple[str, str], dict[int, Link]] = {}
        for link in self.links:
            table.setdefault((link.collective, link.level), {})[link.group_size] = link
        return table

    def link(self, collective: str, level: str, group_size: int) -> Link:
        """Return the link for a group size: the measured one, else the nearest size of that level.

        Nearest is by ratio; a level without measurements uses the outermost level that has some.

        Raises:
            AutoDDLError: the profile has no measurement of this collective at all.
        """
        for name in (level, *self.levels):
            sizes = self._by_key.get((collective, name))
            if sizes:
                best = min(sizes, key=lambda p: (abs(math.log(p / group_size)), p))
                return sizes[best]
        raise AutoDDLError(
            f"profile {self.name}: no measurement of {collective}; "
            "measure with `python -m autoddl.fit_network`"
        )

    def measured(self, collective: str, level: str, group_size: int) -> bool:
        """Tell whether the profile has this very collective, level and group size."""
        return group_size in self._by_key.get((collective, level), {})

    def collective_s(
        self, collective: str, level: str, group_size: int, size_bytes: float
    ) -> float:
        """Return the seconds of one collective; `size_bytes` as in collectives.coefficients."""
        if group_size == 1:
            return 0.0
        link = self.link(collective, level, group_size)
        return collectives.seconds(
            collective,
            group_size,
            size_bytes,
            alpha_s=link.alpha_s,
            beta_s_per_byte=link.beta_s_per_byte,
        )

    def save(self, path: str | Path) -> None:
        """Write the profile as versioned JSON."""
        Path(path).write_text(json.dumps(self.to_json(), indent=1) + "\n")

    def to_json(self) -> dict[str, Any]:
        """Return the versioned JSON form."""
        return {"format": FORMAT, "version": FORMAT_VERSION, **asdict(self)}


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
                f"profile: none is bundled for device {device_type!r}; "
                "measure one with `python -m autoddl.fit_network -o network.json` and pass it"
            )
        source = BUNDLED[device_type]
    if not isinstance(source, str | Path):
        raise AutoDDLError(
            f"profile: got {source!r}; allowed are a file, a bundled name "
            f"({', '.join(bundled())}) or a Profile"
        )
    text, where = _read(source)
    try:
        data = json.loads(text)
    except ValueError as error:
        raise AutoDDLError(
            f"{where}: not JSON ({error}), truncated perhaps; "
            "measure again with `python -m autoddl.fit_network`"
        ) from None
    return from_json(data, where)


def bundled() -> tuple[str, ...]:
    """Return the names of the bundled profiles."""
    folder = resources.files("autoddl.perfmodel") / "profiles"
    return tuple(sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".json")))


def _check_link(link: Link, levels: tuple[str, ...], where: str) -> None:
    """Raise AutoDDLError where a link can't be."""
    if link.collective not in COLLECTIVES:
        raise AutoDDLError(
            f"{where}: link of {link.collective!r}; collectives are {', '.join(COLLECTIVES)}"
        )
    size = link.group_size
    if not isinstance(size, int) or isinstance(size, bool) or size < 2:
        raise AutoDDLError(
            f"{where}: group_size of {link.collective} is {size!r}; allowed: whole numbers >= 2"
        )
    if link.level not in levels:
        raise AutoDDLError(f"{where}: link in level {link.level!r}; levels are {', '.join(levels)}")
    for key in ("alpha_s", "beta_s_per_byte"):
        _check_number(getattr(link, key), f"{where}: {key} of {link.collective}", least=0.0)


def _read(source: str | Path) -> tuple[str, str]:
    path = Path(source)
    if path.is_file():
        try:
            return path.read_text(), f"profile file {path}"
        except (OSError, UnicodeDecodeError) as error:
            raise AutoDDLError(f"profile file {path}: can't be read ({error})") from None
    if str(source) in bundled():
        folder = resources.files("autoddl.perfmodel") / "profiles"
        return (folder / f"{source}.json").read_text(), f"bundled profile {source}"
    raise AutoDDLError(
        f"profile {str(source)!r}: no such file and no bundled profile of that name; bundled: "
        f"{', '.join(bundled())}; measure one with `python -m autoddl.fit_network -o {source}`"
    )


def from_json(data: Any, where: str) -> Profile:
    """Build a profile from its JSON form; `where` names the source in errors."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise AutoDDLError(f"{where}: not a profile; measure one with autoddl.fit_network")
    if data.get("version") != FORMAT_VERSION:
        raise AutoDDLError(
            f"{where}: version {data.get('version')}, this autoddl reads {FORMAT_VERSION}; "
            "measure again with `python -m autoddl.fit_network`"
        )
    fields = {k: v for k, v in data.items() if k not in ("format", "version")}
    try:
        return Profile(
            **{
                **fields,
                "levels": _listed(fields["levels"]),
                "links": tuple(Link(**link) for link in _listed(fields["links"])),
                "device": Device(**fields["device"]),
            }
        )
    except (KeyError, TypeError) as error:
        raise AutoDDLError(
            f"{where}: damaged ({error}); measure again with `python -m autoddl.fit_network`"
        ) from None
    except AutoDDLError as error:
        raise AutoDDLError(f"{where}: {error}") from None


def _listed(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return tuple(value)


def _check_number(value: Any, what: str, *, least: float) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or value < least:
        raise AutoDDLError(
            f"{what} is {value!r}; allowed: a finite number >= {least:g}; "
            "measure again with `python -m autoddl.fit_network`"
        )
