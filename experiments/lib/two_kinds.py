"""Profiles of several kinds of devices, where only one is known: others take so many times as long."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.profile_entries import Device, Kernel


def of_two_kinds(base: Profile, slower: float = 2.0) -> Profile:
    """Return a profile of kinds "fast" and "slow", whose ops take so many times as long."""
    return of_kinds(base, {"fast": 1.0, "slow": slower}, "two kinds")


def of_kinds(base: Profile, times: Mapping[str, float], name: str) -> Profile:
    """Return a profile of these kinds, whose ops take so many times as long as those of `base`."""
    devices = {kind: slowed(base.device, factor, kind) for kind, factor in times.items()}
    return replace(base, name=name, devices=devices)


def slowed(device: Device, times: float, name: str) -> Device:
    """Return a device on which all ops take so many times as long; itself where that is once."""

    def kernel(known: Kernel) -> Kernel:
        return replace(
            known, overhead_s=known.overhead_s * times, bytes_per_s=known.bytes_per_s / times,
            flops_per_s={d: rate / times for d, rate in known.flops_per_s.items()},
        )  # fmt: skip

    if times == 1.0:
        return device
    return replace(
        device, name=name, op_overhead_s=device.op_overhead_s * times,
        memory_bytes_per_s=device.memory_bytes_per_s / times,
        peak_flops={d: rate / times for d, rate in device.peak_flops.items()},
        kernels={name: kernel(known) for name, known in device.kernels.items()},
    )  # fmt: skip
