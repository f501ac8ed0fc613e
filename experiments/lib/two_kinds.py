"""Profiles of two kinds of devices, where only one is known: the other takes so many times as long."""

from __future__ import annotations

from msgspec.structs import replace

from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.profile_entries import Kernel


def of_two_kinds(base: Profile, slower: float = 2.0) -> Profile:
    """Return a profile of kinds "fast" and "slow", whose ops take so many times as long."""
    fast = base.device

    def slowed(kernel: Kernel) -> Kernel:
        return replace(
            kernel, overhead_s=kernel.overhead_s * slower, bytes_per_s=kernel.bytes_per_s / slower,
            flops_per_s={d: rate / slower for d, rate in kernel.flops_per_s.items()},
        )  # fmt: skip

    slow = replace(
        fast, name="slow", op_overhead_s=fast.op_overhead_s * slower,
        memory_bytes_per_s=fast.memory_bytes_per_s / slower,
        peak_flops={d: rate / slower for d, rate in fast.peak_flops.items()},
        kernels={name: slowed(kernel) for name, kernel in fast.kernels.items()},
    )  # fmt: skip
    return replace(base, name="two kinds", devices={"fast": fast, "slow": slow})
