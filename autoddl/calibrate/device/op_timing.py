"""The campaign of fit-device, the ops of small training steps on all ranks, and its device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from msgspec import structs

from autoddl.calibrate.campaign import Campaign
from autoddl.calibrate.probe_launches import one_of, probe_job
from autoddl.engine.interface import Engine
from autoddl.launch.job import LaunchJob
from autoddl.perfmodel.calibration.kernel_fits import Timed, device_of
from autoddl.perfmodel.calibration.kinds_profile import with_device
from autoddl.perfmodel.profile import ALIKE, Profile
from autoddl.perfmodel.profile_entries import Device

_LIMIT_S = {True: 240.0, False: 900.0}  # quick or not


@dataclass(frozen=True)
class OpSource:
    """A small training graph whose ops are timed: a kind of model that the engine makes, in one size."""

    kind: str
    sizes: tuple[int, ...]
    optimizer: str
    quick: bool = False
    """Whether quick runs time it."""

    weight: ClassVar[float] = 1.0
    memory_bytes: ClassVar[int] = 0
    needed: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Return the kind and the sizes."""
        return f"{self.kind} {'x'.join(map(str, self.sizes))}"

    @property
    def label(self) -> str:
        """Return what the progress says."""
        return f"timed {self.name}"


SOURCES = (
    # batch, length, width, heads, vocabulary
    OpSource("dense", (2, 32, 64, 2, 256), "sgd"),
    OpSource("dense", (4, 64, 128, 4, 512), "sgd", quick=True),
    OpSource("dense", (8, 128, 256, 4, 1024), "sgd", quick=True),
    OpSource("mixed", (2, 32, 64, 2, 256), "adam"),
    OpSource("mixed", (4, 64, 128, 4, 512), "adam", quick=True),
    OpSource("mixed", (8, 128, 256, 4, 512), "adam"),
    # batch, channels, height and width of the image
    OpSource("images", (4, 8, 16), "sgd", quick=True),
    OpSource("images", (8, 16, 32), "sgd", quick=True),
    OpSource("images", (16, 64, 8), "sgd", quick=True),
    OpSource("images", (32, 32, 32), "sgd"),
    # batch, width; the last has few rows and weights that no cache holds, as micro-batches do
    OpSource("rows", (64, 128), "adam"),
    OpSource("rows", (256, 512), "adam", quick=True),
    OpSource("rows", (512, 1024), "adam"),
    OpSource("rows", (32, 1024), "sgd"),
)
"""Each kind in several sizes, so that every op type is met with small and with large operands."""
_BY_NAME = {source.name: source for source in SOURCES}


@dataclass(frozen=True)
class OpSettings:
    """What is measured: results of other settings do not go together with it."""

    ranks: int
    quick: bool = False
    ops: tuple[str, ...] = ()
    kind: str = ALIKE
    """What the devices here are, where not all are alike."""

    @property
    def seconds_per_source(self) -> float:
        """Return how long the calls of one source may take."""
        return 1.5 if self.quick else 3.0


@dataclass(frozen=True)
class OpTask:
    """What the ranks of one launch are told."""

    settings: OpSettings
    sources: tuple[OpSource, ...]


class OpCampaign(Campaign[OpSource]):
    """Time the ops of every source."""

    kind = "fit_device"

    def __init__(
        self, settings: OpSettings, partial: Path | None = None, *, fresh: bool = False
    ) -> None:
        self.settings = settings
        parts = [source for source in SOURCES if source.quick or not settings.quick]
        super().__init__(parts, asdict(settings), partial, fresh=fresh)

    @property
    def ops(self) -> list[Timed]:
        return [op for ops in self.found.values() for op in ops]

    @property
    def device(self) -> Device:
        """Return what one of the ranks is that have timed them."""
        return device_of(self.ops, **one_of(self.settings.ranks))

    def read(self, line: Any) -> tuple[OpSource, list[Timed]]:
        return _BY_NAME[line["source"]], msgspec.convert(line["ops"], list[Timed])

    def task(self, batch: Sequence[OpSource], left: Sequence[OpSource]) -> OpTask:
        return OpTask(self.settings, tuple(batch))


def job_for(engine: Engine, settings: OpSettings, timeout_s: float | None = None) -> LaunchJob:
    """Return the launch that times ops; its time limit is by default several times what it takes.

    Raises:
        AutoDDLError: the engine is not installed, or the number of ranks can't be.
    """
    limit_s = _LIMIT_S[settings.quick] if timeout_s is None else timeout_s
    return probe_job(engine, engine.probes.ops, nproc_per_node=settings.ranks, timeout_s=limit_s)


def profile_with(
    device: Device, settings: OpSettings, *, name: str, into: Profile | None
) -> Profile:
    """Return the profile `into` with the measured device, or one that has only this."""
    command = f"python -m autoddl fit-device --nproc-per-node {settings.ranks}"
    command += " --quick" * settings.quick
    if into is not None:
        if settings.kind != ALIKE:
            return with_device(into, settings.kind, device, command)
        (kind,) = into.devices
        source = f"{into.source}; device: {command}"
        return structs.replace(into, devices={kind: device}, source=source)
    return Profile(
        name=name,
        source=f"measured with {command}",
        kind="measured",
        device_type="cpu",
        levels=("gpu",),
        links=(),
        devices={settings.kind: device},
    )
