"""What is planned: GPTs and HiDup's BERT by depth and cluster, and what each may take."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from experiments.bench.frozen.suite import FAST_PROFILE, GPT3, MEDIUM
from experiments.hidup.moe_models import MAIN, sizes_of
from experiments.hidup.moe_models import PROFILE as V100

PROFILE, MEMORY = FAST_PROFILE, "80GB"  # for each device
LAYERS, DEVICES, MOE_LAYERS, MOE_DEVICES = "layers", "devices", "MoE layers", "MoE GPUs"
GROWTH = {LAYERS: 1.5, DEVICES: 2.0, MOE_LAYERS: 8.0, MOE_DEVICES: 2.0}
"""By what factor the seconds of a group may grow from its first case to its slowest one."""


@dataclass(frozen=True)
class GptCase:
    """A model of these sizes on one mesh, or on all meshes of a cluster where `mesh` is empty.

    `bars` are what figures may be at most: seconds from program to plan, bytes of the process, gap of
    the step.
    """

    name: str
    sizes: Mapping[str, Any] = field(hash=False)
    mesh: str = ""
    cluster: str = ""
    group: str = ""
    bars: Mapping[str, float] = field(default_factory=dict, hash=False)
    model: str = "gpt"
    profile: str = PROFILE

    @property
    def devices(self) -> int:
        """Return how many devices there are."""
        return math.prod(map(int, re.findall(r"\d+", self.mesh or self.cluster)))


def cases() -> Iterator[GptCase]:
    """Yield all cases.

    GPT-3 of 175 billion parameters, and the same with fewer layers, has one sequence for each node of
    eight, in float32 and without recomputing activations; the medium GPT on more and more devices has
    as many sequences as devices. BERT with experts is that of HiDup's figure 14, with an expert and a
    sequence for each device.
    """
    medium = {"total_s": 3.0, "peak_bytes": 1.5e9, "gap": 0.02}
    medium |= {"capture_s": 10.0, "capture_bytes": 1.2e9}
    yield GptCase("medium", MEDIUM, "4x8", bars=medium)
    for layers in (12, 24, 48, 96):
        bars = {"total_s": 15.0} if layers == GPT3["layers"] else {}
        yield GptCase(f"gpt3 {layers} layers", GPT3 | {"layers": layers}, "128x8", "", LAYERS, bars)
    for devices in (8, 32, 128, 512, 2048, 8192):
        mesh, sizes = "2x4" if devices == 8 else f"{devices // 8}x8", MEDIUM | {"batch": devices}
        yield GptCase(f"{devices} devices", sizes, mesh, "", DEVICES)
    wide = MEDIUM | {"batch": 64}
    bars = {"total_s": 20.0}
    yield GptCase("three axes", wide, "[node 2][node 4][gpu 8]", bars=bars)
    yield GptCase("mesh searched", wide, cluster="8x8", bars={"total_s": 60.0})
    for layers in (4, 8, 16, 32):
        yield _moe(f"MoE {layers} layers", layers, 4, "4", MOE_LAYERS)
    for devices in (8, 32, 128, 512, 2048, 8192):
        mesh = "2x4" if devices == 8 else f"{devices // 8}x8"
        yield _moe(f"MoE {devices} GPUs", 6, devices, mesh, MOE_DEVICES)


def _moe(name: str, layers: int, devices: int, mesh: str, group: str) -> GptCase:
    sizes = sizes_of(MAIN, devices, 1) | {"layers": layers}
    return GptCase(name, sizes, mesh, "", group, model="bert_moe", profile=V100)
