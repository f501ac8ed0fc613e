"""Compute time of one op on one device: launch overhead + roofline."""

from __future__ import annotations

from collections.abc import Mapping

from autoddl.perfmodel.profile import Device

UNKNOWN_EFFICIENCY = 0.5  # of the peak, for ops that the profile knows nothing of


def op_s(
    device: Device, *, op_type: str, family: str, dtype: str, flops: float, moved_bytes: float
) -> float:
    """Return overhead + max(flops / rate, bytes / bandwidth), in seconds.

    `flops` and `moved_bytes` (read and written) are those of one device. The numbers are those of
    the op type, else of its family, else the device's bandwidth and half of its peak. A dtype that
    is not listed runs at the float32 rate.
    """
    kernel = device.kernels.get(op_type) or device.kernels.get(family)
    if kernel is None:
        rate = UNKNOWN_EFFICIENCY * _rate(device.peak_flops, dtype)
        return device.op_overhead_s + max(flops / rate, moved_bytes / device.memory_bytes_per_s)
    rate = _rate(kernel.flops_per_s, dtype)
    return kernel.overhead_s + max(flops / rate, moved_bytes / kernel.bytes_per_s)


def _rate(by_dtype: Mapping[str, float], dtype: str) -> float:
    return by_dtype.get(dtype) or by_dtype["float32"]
