"""Made-up cluster profiles with distinct numbers everywhere, so that no mix-up goes unseen."""

from __future__ import annotations

from typing import Any

from autoddl.perfmodel.profile import ALIKE, Profile
from autoddl.perfmodel.profile_entries import Device, Kernel, Link
from autoddl.sbp.boxing import COLLECTIVES
from experiments.lib.varied_profiles import of_two_kinds

__all__ = ["cluster", "counting", "of_two_kinds"]

GIB = 1024**3


def cluster(
    *,
    memory_bytes: int = 16 * GIB,
    overhead_s: float = 1e-6,
    sizes: tuple[int, ...] = (2, 3, 4, 8),
    **changes: Any,
) -> Profile:
    """Return a profile of nodes and GPUs; links between nodes are slower, larger groups as well."""
    links = tuple(
        Link(
            collective=collective,
            level=level,
            group_size=size,
            alpha_s=(3 + kind) * 1e-6 * slow,
            beta_s_per_byte=(1 + 0.1 * kind) * (1 + 0.01 * size) * 1e-10 * slow,
        )
        for kind, collective in enumerate(COLLECTIVES)
        for level, slow in (("node", 7.0), ("gpu", 1.0))
        for size in sizes
    )
    device = Device(
        name="made up",
        memory_bytes=memory_bytes,
        peak_flops={"float32": 2e12, "float16": 8e12},
        memory_bytes_per_s=3e11,
        op_overhead_s=overhead_s,
        kernels={
            "matmul": Kernel(2 * overhead_s, 2e11, {"float32": 1.6e12, "float16": 5e12}),
            "elementwise": Kernel(overhead_s, 2.5e11, {"float32": 1.2e12}),
            "relu": Kernel(0.5 * overhead_s, 2.8e11, {"float32": 9e11}),
        },
    )
    fields: dict[str, Any] = {
        "name": "made-up", "source": "tests", "kind": "data sheet", "device_type": "cpu",
        "levels": ("node", "gpu"), "links": links, "devices": {ALIKE: device},
    }  # fmt: skip
    return Profile(**{**fields, **changes})


def counting(level: str = "gpu") -> Profile:
    """Return a profile of one level whose seconds are float32 elements that each device receives.

    α = 0 and β = 1 per element for every collective; local work costs next to nothing.
    """
    links = tuple(
        Link(collective=c, level=level, group_size=n, alpha_s=0.0, beta_s_per_byte=0.25)
        for c in COLLECTIVES
        for n in (2, 4, 8, 16, 32, 64)
    )
    device = Device(
        name="made up",
        memory_bytes=2**60,
        peak_flops={"float32": 1e24},
        memory_bytes_per_s=1e24,
        op_overhead_s=0.0,
        kernels={},
    )
    return Profile(
        name="counting", source="tests", kind="data sheet", device_type="cpu",
        levels=(level,), links=links, devices={ALIKE: device},
    )  # fmt: skip
