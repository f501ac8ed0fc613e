"""Compute time of one op on one device: roofline with launch overhead and per-family efficiency."""

from __future__ import annotations

from autoddl.perfmodel.profile import Device

DEFAULT_EFFICIENCY = 0.5


def roofline_s(
    device: Device, *, flops: float, moved_bytes: float, family: str, dtype: str
) -> float:
    """Return overhead + max(flops / (peak · efficiency), bytes / bandwidth), in seconds.

    `flops` and `moved_bytes` (read and written) are those of one device. A dtype that the profile
    does not list runs at the float32 rate, a family that it does not list at half of the peak.
    """
    peak = device.peak_flops.get(dtype) or device.peak_flops["float32"]
    rate = peak * device.efficiency.get(family, DEFAULT_EFFICIENCY)
    return device.op_overhead_s + max(flops / rate, moved_bytes / device.memory_bytes_per_s)
