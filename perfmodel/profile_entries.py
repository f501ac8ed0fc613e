"""What a profile says of one link, one kernel, one device.

A collective of n bytes takes what its algorithm makes of α and β·n (collectives.py): with α = 20 µs and
β = 1 ns per byte an all-gather of 1 MB among 2 takes 20 µs + 0.5 ms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from autoddl.decoding import FieldError
from autoddl.perfmodel import collectives

Interval = tuple[float, float]


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """α and β of one collective among the `group_size` members of a group.

    `level` is the outermost level that the group crosses. `inner` members lie in each unit of that
    level; where they are more than one, the group spans several levels. When this was measured,
    `groups` groups at a time shared the link of each unit; in the innermost level so many were at work
    among the devices of one unit of the level outside (perfmodel.topology).

    `kinds` are those of the units that it joins: one, two where it is between unlike ones, none where
    units are alike or it is the same for all.

    `mean_error` is the mean relative error of the fit on its own points (0.1 = 10 %), `r2` the share of
    their variance that it explains, the intervals hold α and β with 95 % confidence (calibration);
    None where no points are known.
    """

    collective: str
    level: str
    group_size: int
    alpha_s: float
    beta_s_per_byte: float
    inner: int = 1
    groups: int = 1
    mean_error: float | None = None
    r2: float | None = None
    alpha_interval_s: Interval | None = None
    beta_interval_s_per_byte: Interval | None = None
    kinds: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.collective not in collectives.COLLECTIVES:
            raise FieldError(
                f"link of {self.collective!r}; collectives are {', '.join(collectives.COLLECTIVES)}"
            )
        of = f"of {self.collective}"
        for key, least in (("group_size", 2), ("inner", 1), ("groups", 1)):
            if getattr(self, key) < least:
                raise FieldError(
                    f"{key} {of} is {getattr(self, key)}; allowed: whole numbers >= {least}"
                )
        if len(self.kinds) > 2 or tuple(sorted(set(self.kinds))) != self.kinds:
            raise FieldError(
                f"kinds {of} are {', '.join(self.kinds)}; allowed: none, one, or two in their order"
            )
        if self.group_size % self.inner or self.inner == self.group_size:
            raise FieldError(
                f"inner {of} is {self.inner} of {self.group_size} members; allowed: a true divisor, "
                "since the group crosses its level"
            )
        for key in ("alpha_s", "beta_s_per_byte"):
            check_number(getattr(self, key), f"{key} {of}", least=0.0)
        for key in ("alpha_interval_s", "beta_interval_s_per_byte"):
            for bound in getattr(self, key) or ():
                check_number(bound, f"{key} {of}", least=0.0)


class Kernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One op type, or one family of them, on one device while its neighbours work as well.

    An op takes `overhead_s` and then as long as its flop at `flops_per_s` (by dtype, float32 always among
    them) or its bytes, read and written, at `bytes_per_s`, whichever is longer.
    """

    overhead_s: float
    bytes_per_s: float
    flops_per_s: Mapping[str, float]
    mean_error: float | None = None

    def __post_init__(self) -> None:
        check_number(self.overhead_s, "overhead_s", least=0.0)
        check_number(self.bytes_per_s, "bytes_per_s", least=1.0)
        check_rates(self.flops_per_s, "flops_per_s")

    def op_s(self, dtype: str, flops: float, moved_bytes: float) -> float:
        """Return the seconds of an op."""
        rate = rate_of(self.flops_per_s, dtype)
        return self.overhead_s + max(flops / rate, moved_bytes / self.bytes_per_s)


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One device while all its neighbours work as well.

    `peak_flops` by dtype in flop/s; `kernels` by op type or family; ops of neither cost `op_overhead_s`
    and then what perfmodel.roofline makes of the peak and of `memory_bytes_per_s`.
    """

    name: str
    memory_bytes: int
    peak_flops: Mapping[str, float]
    memory_bytes_per_s: float
    op_overhead_s: float
    kernels: Mapping[str, Kernel] = {}

    def __post_init__(self) -> None:
        check_number(self.memory_bytes, "memory_bytes", least=1.0)
        check_number(self.memory_bytes_per_s, "memory_bytes_per_s", least=1.0)
        check_number(self.op_overhead_s, "op_overhead_s", least=0.0)
        check_rates(self.peak_flops, "peak_flops")


def rate_of(by_dtype: Mapping[str, float], dtype: str) -> float:
    """Return the rate of a dtype, of float32 if it is not listed."""
    return by_dtype.get(dtype) or by_dtype["float32"]


def check_rates(rates: Mapping[str, float], what: str) -> None:
    """Raise FieldError where rates by dtype lack float32 or can't be."""
    if "float32" not in rates:
        raise FieldError(
            f"{what} of {', '.join(rates) or 'nothing'}; give at least float32, the rate of every "
            "dtype that is not listed"
        )
    for dtype, flops in rates.items():
        check_number(flops, f"{what}[{dtype}]", least=1.0)


def check_number(value: float, what: str, *, least: float) -> None:
    """Raise FieldError unless `value` is a finite number of at least `least`."""
    if not (math.isfinite(value) and value >= least):
        raise FieldError(f"{what} is {value!r}; allowed: a finite number >= {least:g}")
