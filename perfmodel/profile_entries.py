"""What a profile says of one link, one kernel, one device.

A collective of n bytes takes what its algorithm makes of α and β·n (collectives.py): with α = 20 µs and
β = 1 ns per byte an all-gather of 1 MB among 2 takes 20 µs + 0.5 ms.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

import msgspec

from autoddl.errors import AutoDDLError, shown
from autoddl.json_files import FieldError
from autoddl.perfmodel import collectives
from autoddl.sbp.mesh import MOST_DEVICES
from autoddl.sbp.program.allowed import check_name

Interval = tuple[float, float]

MOST_S, MOST_RATE, MOST_BYTES = 1e6, 1e24, 1 << 60  # more than any machine has
MOST_LABEL = 300  # characters; names of files have up to 255
MOST_KERNELS, MOST_DTYPES = 10_000, 100


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A line: α and β of one collective among the `group_size` members of a group, by one algorithm.

    Of one kind of group there may be several, of which each is the fastest for some sizes, as NCCL
    chooses between algorithms and protocols; what counts is the fastest line. `algorithm` says what α
    is multiplied with (collectives.py).

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
    algorithm: str = collectives.RING

    def __post_init__(self) -> None:
        if self.collective not in collectives.PRICED:
            raise FieldError(
                f"link of {self.collective!r}; collectives are {', '.join(collectives.PRICED)}"
            )
        able = [name for name, does in collectives.ALGORITHMS.items() if self.collective in does]
        if self.algorithm not in able:
            raise FieldError(
                f"algorithm of {self.collective} is {shown(self.algorithm)}; allowed: {', '.join(able)}"
            )
        of = f"of {self.collective}"
        for key, least in (("group_size", 2), ("inner", 1), ("groups", 1)):
            if not least <= getattr(self, key) <= MOST_DEVICES:
                raise FieldError(
                    f"{key} {of} is {getattr(self, key)}; allowed: {least} to {MOST_DEVICES}"
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
            check_number(getattr(self, key), f"{key} {of}", 0.0, MOST_S)
        for key in ("alpha_interval_s", "beta_interval_s_per_byte"):
            low, high = getattr(self, key) or (0.0, 0.0)
            check_number(low, f"{key} {of}", 0.0, MOST_S)
            check_number(high, f"{key} {of}", low, MOST_S)
        check_fit(self.mean_error, self.r2)

    @property
    def key(self) -> tuple[object, ...]:
        """Return what the lines of one kind of group have in common."""
        return (
            self.collective, self.level, self.group_size, self.inner, self.groups, self.kinds
        )  # fmt: skip


def envelope(links: Iterable[Link]) -> list[Link]:
    """Return those lines of one kind of group and algorithm that are the fastest for some size.

    Of (α, β) = (1, 5), (2, 3) and (3, 3) the last never is.
    """
    found: list[Link] = []
    for link in sorted(links, key=lambda link: (link.alpha_s, link.beta_s_per_byte)):
        if not found or link.beta_s_per_byte < found[-1].beta_s_per_byte:
            found.append(link)
    return found


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
        check_number(self.overhead_s, "overhead_s", 0.0, MOST_S)
        check_number(self.bytes_per_s, "bytes_per_s", 1.0, MOST_RATE)
        check_rates(self.flops_per_s, "flops_per_s")
        check_fit(self.mean_error)

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
        check_label(self.name, "name of a device")
        check_number(self.memory_bytes, "memory_bytes", 1.0, MOST_BYTES)
        check_number(self.memory_bytes_per_s, "memory_bytes_per_s", 1.0, MOST_RATE)
        check_number(self.op_overhead_s, "op_overhead_s", 0.0, MOST_S)
        check_rates(self.peak_flops, "peak_flops")
        check_count(self.kernels, "kernels", MOST_KERNELS)
        for kernel in self.kernels:
            check_label(kernel, "name of a kernel")


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
    check_count(rates, what, MOST_DTYPES)
    for dtype, flops in rates.items():
        check_label(dtype, what)
        check_number(flops, f"{what}[{dtype}]", 1.0, MOST_RATE)


def check_fit(mean_error: float | None, r2: float | None = None) -> None:
    """Raise FieldError where a fit can't be that far off; r² is below 0 where a mean fits better."""
    check_number(mean_error or 0.0, "mean_error", 0.0, math.inf)
    check_number(r2 or 0.0, "r2", -math.inf, 1.0)


def check_number(value: float, what: str, least: float, most: float) -> None:
    """Raise FieldError unless `value` is a finite number from `least` to `most`."""
    if not (math.isfinite(value) and least <= value <= most):
        raise FieldError(f"{what} is {value!r}; allowed: finite numbers from {least:g} to {most:g}")


def check_count(values: Collection[object], what: str, most: int) -> None:
    """Raise FieldError where there are more of something than anybody measures."""
    if len(values) > most:
        raise FieldError(f"{what}: {len(values)} of them; allowed: {most}")


def check_label(text: str, what: str, most: int = MOST_LABEL) -> None:
    """Raise FieldError unless a text is a line of at most so many characters, a name by default."""
    try:
        check_name(text, what, most)
    except AutoDDLError as error:
        raise FieldError(str(error)) from None
