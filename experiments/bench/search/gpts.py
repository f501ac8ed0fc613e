"""What is planned: GPTs of many depths on clusters of many sizes, and what each may take."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from experiments.bench.frozen.suite import GPT3, MEDIUM

PROFILE, MEMORY = "h100", "80GB"  # for each device
LAYERS, DEVICES = "layers", "devices"
GROWTH = {LAYERS: 1.5, DEVICES: 2.0}
"""By what factor the seconds of a group may grow from its first case to its slowest one."""


@dataclass(frozen=True)
class GptCase:
    """A GPT of these sizes on one mesh, or on all meshes of a cluster where `mesh` is empty.

    `bars` are what figures may be at most: seconds from program to plan, bytes of the process, gap.
    """

    name: str
    sizes: Mapping[str, int] = field(hash=False)
    mesh: str = ""
    cluster: str = ""
    group: str = ""
    bars: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def devices(self) -> int:
        """Return how many devices there are."""
        return math.prod(map(int, re.findall(r"\d+", self.mesh or self.cluster)))


def cases() -> tuple[GptCase, ...]:
    """Return all cases."""
    medium = {"total_s": 5.0, "peak_bytes": 1.5e9, "gap": 0.0}
    medium |= {"capture_s": 10.0, "capture_bytes": 1.2e9}
    wide = MEDIUM | {"batch": 64}
    return (
        GptCase("medium", MEDIUM, "4x8", bars=medium),
        *_layers(),
        *_devices(),
        GptCase("three axes", wide, "[node 2][node 4][gpu 8]", bars={"total_s": 20.0, "gap": 0.01}),
        GptCase("mesh searched", wide, cluster="8x8", bars={"total_s": 60.0}),
    )


def _layers() -> Iterator[GptCase]:
    """Yield GPT-3 of 175 billion parameters, and the same with fewer layers.

    It has one sequence for each node of eight, in float32 and without recomputing activations.
    """
    for layers in (12, 24, 48, 96):
        bars = {"total_s": 10.0, "gap": 0.001} if layers == GPT3["layers"] else {}
        yield GptCase(f"gpt3 {layers} layers", GPT3 | {"layers": layers}, "128x8", "", LAYERS, bars)


def _devices() -> Iterator[GptCase]:
    """Yield the medium GPT on more and more devices, with as many sequences as devices."""
    for devices in (8, 32, 128, 512, 2048, 8192):
        nodes, inner = (2, 4) if devices == 8 else (devices // 8, 8)
        yield GptCase(
            f"{devices} devices", MEDIUM | {"batch": devices}, f"{nodes}x{inner}", "", DEVICES
        )
