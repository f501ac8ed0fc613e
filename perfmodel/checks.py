"""Checks of a profile's parts; each raises one clear line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.collectives import COLLECTIVES

if TYPE_CHECKING:
    from autoddl.perfmodel.profile import Device, Kernel, Link

KINDS = ("measured", "data sheet")
AGAIN = "measure again with `python -m autoddl.fit_network`"


def check_link(link: Link, levels: Sequence[str], where: str) -> None:
    """Raise AutoDDLError where a link can't be."""
    if link.collective not in COLLECTIVES:
        raise AutoDDLError(
            f"{where}: link of {link.collective!r}; collectives are {', '.join(COLLECTIVES)}"
        )
    what = f"{where}: {{}} of {link.collective}"
    check_count(link.group_size, what.format("group_size"), least=2)
    if link.level not in levels:
        raise AutoDDLError(f"{where}: link in level {link.level!r}; levels are {', '.join(levels)}")
    for key in ("inner", "groups"):
        check_count(getattr(link, key), what.format(key), least=1)
    if link.group_size % link.inner or link.inner == link.group_size:
        raise AutoDDLError(
            f"{what.format('inner')} is {link.inner} of {link.group_size} members; allowed: a true "
            "divisor, since the group crosses its level"
        )
    for key in ("alpha_s", "beta_s_per_byte"):
        check_number(getattr(link, key), what.format(key), least=0.0)
    for key in ("alpha_interval_s", "beta_interval_s_per_byte"):
        interval = getattr(link, key)
        if interval is None:
            continue
        if not isinstance(interval, tuple) or len(interval) != 2:
            raise AutoDDLError(f"{what.format(key)} is {interval!r}; give (least, most); {AGAIN}")
        for bound in interval:
            check_number(bound, what.format(key), least=0.0)


def check_device(device: Device, where: str) -> None:
    """Raise AutoDDLError where a device can't be."""
    for key in ("peak_flops", "kernels"):
        if not isinstance(getattr(device, key), Mapping):
            raise AutoDDLError(f"{where}: {key} is {getattr(device, key)!r}; give it by name")
    check_number(device.memory_bytes, f"{where}: memory_bytes", least=1.0)
    check_number(device.memory_bytes_per_s, f"{where}: memory_bytes_per_s", least=1.0)
    check_number(device.op_overhead_s, f"{where}: op_overhead_s", least=0.0)
    check_rates(device.peak_flops, f"{where}: peak_flops")
    for name, kernel in device.kernels.items():
        check_kernel(kernel, f"{where}: kernel {name}")


def check_kernel(kernel: Kernel, where: str) -> None:
    """Raise AutoDDLError where a kernel can't be."""
    if not isinstance(kernel.flops_per_s, Mapping):
        raise AutoDDLError(f"{where}: flops_per_s is {kernel.flops_per_s!r}; give it by dtype")
    check_number(kernel.overhead_s, f"{where}: overhead_s", least=0.0)
    check_number(kernel.bytes_per_s, f"{where}: bytes_per_s", least=1.0)
    check_rates(kernel.flops_per_s, f"{where}: flops_per_s")


def check_rates(rates: Mapping[str, float], where: str) -> None:
    """Raise AutoDDLError where rates by dtype lack float32 or can't be."""
    if "float32" not in rates:
        raise AutoDDLError(
            f"{where} of {', '.join(rates) or 'nothing'}; give at least float32, the rate of every "
            "dtype that is not listed"
        )
    for dtype, flops in rates.items():
        check_number(flops, f"{where}[{dtype}]", least=1.0)


def check_shares(
    shares: Mapping[str, float],
    what: str,
    meaning: tuple[str, str],
    levels: Sequence[str],
    where: str,
) -> None:
    """Raise AutoDDLError unless each level's share is in 0 to 1; `meaning` says what both are."""
    if not isinstance(shares, Mapping):
        raise AutoDDLError(f"{where}: {what} is {shares!r}; give it by level")
    for level, share in shares.items():
        if level not in levels:
            raise AutoDDLError(f"{where}: {what} of {level!r}; levels are {', '.join(levels)}")
        check_number(share, f"{where}: {what}[{level}]", least=0.0)
        if share > 1:
            raise AutoDDLError(
                f"{where}: {what}[{level}] is {share!r}; allowed: 0 ({meaning[0]}) to 1 ({meaning[1]})"
            )


def check_count(value: Any, what: str, *, least: int) -> None:
    """Raise AutoDDLError unless `value` is a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise AutoDDLError(f"{what} is {value!r}; allowed: whole numbers >= {least}")


def check_number(value: Any, what: str, *, least: float) -> None:
    """Raise AutoDDLError unless `value` is a finite number of at least `least`."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or value < least:
        raise AutoDDLError(f"{what} is {value!r}; allowed: a finite number >= {least:g}; {AGAIN}")
