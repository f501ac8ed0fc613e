"""Profiles as they would be with faster links or devices: one frozen value makes another.

`scaled(profile, bandwidth={"node": 2.0})` halves β of the links of level node and leaves α as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from autoddl.errors import AutoDDLError, near, shortened, shown
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.profile_entries import MOST_LABEL, Device, Interval, Kernel, Link

LEAST, MOST = 1e-3, 1e3  # factors


def scaled(
    profile: Profile,
    *,
    bandwidth: Mapping[str, float] | None = None,
    latency: Mapping[str, float] | None = None,
    device: float = 1.0,
) -> Profile:
    """Return a profile with other links and devices, whose name tells what was changed.

    By level of links `bandwidth` divides β, `latency` multiplies α; both are factors. `device` multiplies
    flop/s and bytes/s of all devices; the launch of an op takes as long, and memory is the same.

    Raises:
        AutoDDLError: no links of such a level, or a factor is none from 0.001 to 1000.
    """
    bandwidth, latency = dict(bandwidth or {}), dict(latency or {})
    joined = sorted({link.level for link in profile.links})
    for level in (*bandwidth, *latency):
        if level not in joined:
            raise AutoDDLError(
                f"links: got level {shown(level, 60)}; profile {shown(profile.name, 60)} has links of "
                f"{', '.join(joined) or 'no level'}{near(str(level), joined)}"
            )
    for value in (*bandwidth.values(), *latency.values(), device):
        _check_factor(value)
    told = [f"links of {level} {value:g}x" for level, value in bandwidth.items()]
    told += [f"latency of {level} {value:g}x" for level, value in latency.items()]
    told += [f"devices {device:g}x"] if device != 1 else []
    links = [
        _link(link, 1 / bandwidth.get(link.level, 1.0), latency.get(link.level, 1.0))
        for link in profile.links
    ]
    devices = {kind: _device(each, device) for kind, each in profile.devices.items()}
    name = shortened(", ".join([profile.name, *told]), MOST_LABEL)
    return structs.replace(profile, name=name, links=tuple(links), devices=devices)


def _check_factor(value: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and LEAST <= value <= MOST):
        raise AutoDDLError(
            f"factor of links or devices: got {shown(value, 100)}; allowed are {LEAST:g} to {MOST:g}"
        )


def _link(link: Link, beta: float, alpha: float) -> Link:
    return structs.replace(
        link,
        alpha_s=link.alpha_s * alpha,
        beta_s_per_byte=link.beta_s_per_byte * beta,
        alpha_interval_s=_times(link.alpha_interval_s, alpha),
        beta_interval_s_per_byte=_times(link.beta_interval_s_per_byte, beta),
    )


def _times(interval: Interval | None, factor: float) -> Interval | None:
    return None if interval is None else (interval[0] * factor, interval[1] * factor)


def _device(device: Device, factor: float) -> Device:
    return structs.replace(
        device,
        peak_flops=_rates(device.peak_flops, factor),
        memory_bytes_per_s=device.memory_bytes_per_s * factor,
        kernels={name: _kernel(kernel, factor) for name, kernel in device.kernels.items()},
    )


def _kernel(kernel: Kernel, factor: float) -> Kernel:
    return structs.replace(
        kernel,
        bytes_per_s=kernel.bytes_per_s * factor,
        flops_per_s=_rates(kernel.flops_per_s, factor),
    )


def _rates(rates: Mapping[str, float], factor: float) -> dict[str, float]:
    return {dtype: rate * factor for dtype, rate in rates.items()}
