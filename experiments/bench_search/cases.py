"""What is planned: GPTs of many depths on clusters of many sizes, and what each may take."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from autoddl.errors import AutoDDLError

PROFILE, MEMORY = "h100", "80GB"  # for each device
LAYERS = "layers"
DEVICES = "devices"
GROWTH = {LAYERS: 1.5, DEVICES: 2.0}
"""By what factor the seconds of a group may grow from its first case to its slowest one."""


@dataclass(frozen=True)
class Model:
    """The sizes of a GPT, trained with Adam; `batch` is that of all devices together."""

    layers: int
    width: int
    heads: int
    sequence: int
    batch: int
    vocabulary: int = 50304

    @property
    def key(self) -> str:
        """Return a name that no other sizes have."""
        parts = (self.layers, self.width, self.heads, self.sequence, self.vocabulary, self.batch)
        return "gpt-" + "-".join(map(str, parts))


@dataclass(frozen=True)
class Bars:
    """What a case may take at most: seconds from program to plan, bytes of the process, gap.

    `capture_s` and `capture_bytes` are for building the model and capturing it.
    """

    seconds: float | None = None
    peak_bytes: float | None = None
    gap: float | None = None
    capture_s: float | None = None
    capture_bytes: float | None = None


@dataclass(frozen=True)
class Case:
    """One model on one mesh, or on all meshes of a cluster where `mesh` is empty."""

    name: str
    model: Model
    mesh: str = ""
    cluster: str = ""
    group: str = ""
    bars: Bars = Bars()

    @property
    def devices(self) -> int:
        """Return how many devices there are."""
        return math.prod(map(int, re.findall(r"\d+", self.mesh or self.cluster)))


MEDIUM = Model(layers=24, width=1024, heads=16, sequence=1024, batch=32)
# One sequence for each node of eight, in float32 and without recomputing activations.
GPT3 = Model(layers=96, width=12288, heads=96, sequence=2048, batch=128)


def cases() -> tuple[Case, ...]:
    """Return all cases."""
    return (
        Case(
            "medium",
            MEDIUM,
            "4x8",
            bars=Bars(5.0, 1.5e9, 0.0, capture_s=10.0, capture_bytes=1.2e9),
        ),
        *_layers(),
        *_devices(),
        Case(
            "three axes",
            replace(MEDIUM, batch=64),
            "[node 2][node 4][gpu 8]",
            bars=Bars(20.0, gap=0.01),
        ),
        Case("mesh searched", replace(MEDIUM, batch=64), cluster="8x8", bars=Bars(60.0)),
    )


def _layers() -> Iterator[Case]:
    """Yield GPT-3 of 175 billion parameters, and the same with fewer layers."""
    for layers in (12, 24, 48, 96):
        bars = Bars(10.0, gap=0.001) if layers == GPT3.layers else Bars()
        model = replace(GPT3, layers=layers)
        yield Case(f"gpt3 {layers} layers", model, "128x8", group=LAYERS, bars=bars)


def _devices() -> Iterator[Case]:
    """Yield the medium GPT on more and more devices, with as many sequences as devices."""
    for devices in (8, 32, 128, 512, 2048, 8192):
        nodes, inner = (2, 4) if devices == 8 else (devices // 8, 8)
        model = replace(MEDIUM, batch=devices)
        yield Case(f"{devices} devices", model, f"{nodes}x{inner}", group=DEVICES)


def chosen(names: Sequence[str] | None) -> tuple[Case, ...]:
    """Return the cases of these names or groups, all for None.

    Raises:
        AutoDDLError: there is no such case.
    """
    known = cases()
    if names is None:
        return known
    allowed = {c.name for c in known} | {c.group for c in known if c.group}
    for name in names:
        if name not in allowed:
            raise AutoDDLError(f"--only: got {name!r}; there are {', '.join(sorted(allowed))}")
    return tuple(c for c in known if c.name in names or c.group in names)
