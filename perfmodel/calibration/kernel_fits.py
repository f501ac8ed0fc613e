"""Fit the kernels of a device to timed ops: overhead + max(flops / rate, bytes / bandwidth).

An op type gets a kernel of its own where its timed ops tell one, a family the one of all its ops.
Errors weigh by what they cost a training step: the squared error over the measured time, so that
the long ops of a type count more than the short ones and their sum comes out right.

Ops of 0, 1 and 2 Gflop that took 5, 105 and 205 µs give an overhead of 5 µs and 10 Tflop/s.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.calibration import least_squares
from autoddl.perfmodel.profile_entries import Device, Kernel, rate_of

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]

DOUBTFUL = 0.25  # a mean error above this is reported …
_NOTABLE = 0.02  # … where the type takes more than this share of the time of all ops
_TINY_BYTES = 1 << 14
_ALIKE = 4.0  # sizes within this factor do not tell overhead from rate
_TELLING_BYTES = 1 << 16  # op types with larger operands tell a rate of their own
_TELLING_S = 1e-4  # ops that take longer tell a rate
_LEAST_S = 2e-5  # shorter times (below 0 by noise, even) weigh as much as this
# Flops per byte within this factor do not tell flops from bytes: what bounds an op at the peak's rates
# does. Else a ResNet's convolutions, of which one size is timed, are priced by their bytes.
_ONE_INTENSITY = 2.0
_BOUND = 1.02  # times the measured rate: of what never bounds a kernel
_ROUNDS = 20


@dataclass(frozen=True)
class Timed:
    """One timed op: what the cost model knows of it (perfmodel.roofline), and how long it took."""

    op_type: str
    family: str
    dtype: str
    flops: float
    moved_bytes: float
    seconds: float
    variant: str = ""


def peak_of(ops: Sequence[Timed]) -> Kernel:
    """Return what no kernel exceeds by much, the highest rates of ops that are long enough to tell one.

    The overhead is the time of the median tiny op.

    Raises:
        AutoDDLError: no float32 op among them.
    """
    flops: dict[str, float] = {}
    bytes_per_s = 1.0
    for op in ops:
        if op.seconds > _TELLING_S:
            flops[op.dtype] = max(flops.get(op.dtype, 1.0), op.flops / op.seconds)
            bytes_per_s = max(bytes_per_s, op.moved_bytes / op.seconds)
    if "float32" not in flops:
        raise AutoDDLError(
            f"fit-device: no float32 op took {_TELLING_S * 1e6:.0f} µs; leave --ops out, or add matmul"
        )
    tiny = [op.seconds for op in ops if op.moved_bytes < _TINY_BYTES]
    overhead_s = max(0.0, median(tiny)) if tiny else 0.0
    return Kernel(overhead_s, bytes_per_s, dict(sorted(flops.items())))


def device_of(ops: Iterable[Timed], *, name: str, memory_bytes: int) -> Device:
    """Return the device whose kernels come closest to `ops`.

    An op that has neither a kernel of its type nor of its family moves bytes as the elementwise
    ones do on average and takes the overhead of all op types' middle.

    Raises:
        AutoDDLError: no float32 op with flops.
    """
    ops = tuple(ops)
    peak = peak_of(ops)
    kernels = kernels_of(ops, peak)
    plain = [op for op in ops if op.family == "elementwise"] or ops
    plain_s = max(sum(op.seconds for op in plain), _LEAST_S)
    return Device(
        name=name,
        memory_bytes=memory_bytes,
        peak_flops=peak.flops_per_s,
        memory_bytes_per_s=max(1.0, sum(op.moved_bytes for op in plain) / plain_s),
        op_overhead_s=median(kernel.overhead_s for kernel in kernels.values()),
        kernels=kernels,
    )


def kernels_of(ops: Sequence[Timed], peak: Kernel) -> dict[str, Kernel]:
    """Return a kernel for every op type, family and variant of them among `ops`, by name.

    The kernel of a plain name is that of its ops without a variant, if there are such. A family has
    the median overhead and the median rates of its op types; op types of which only short ops were
    timed have its rates. Kernels that miss their ops by much are logged.
    """
    total_s = sum(op.seconds for op in ops)
    groups = _groups(ops)
    kernels: dict[str, Kernel] = {}
    for family in sorted({family for family, _ in groups}):
        members = {name: found for (f, name), found in groups.items() if f == family}
        kernels |= _family(family, members, peak)
    for (_, name), timed in groups.items():
        if ":" not in name and all(op.variant for op in timed):
            continue  # the middle of its variants, each of which has a kernel
        error, share = kernels[name].mean_error or 0.0, sum(op.seconds for op in timed) / total_s
        if error > DOUBTFUL and share > _NOTABLE:
            logger.warning(
                "%s: one overhead and one rate miss the measured times by %.0f %% on average",
                name, 100 * error,
            )  # fmt: skip
    return dict(sorted(kernels.items()))


def _groups(ops: Sequence[Timed]) -> dict[tuple[str, str], list[Timed]]:
    """Return the ops by family and kernel name, both with the variant."""
    plain = {op.op_type for op in ops if not op.variant}
    groups: dict[tuple[str, str], list[Timed]] = {}
    for op in ops:
        end = f":{op.variant}" if op.variant else ""
        groups.setdefault((op.family + end, op.op_type + end), []).append(op)
        if op.variant and op.op_type not in plain:
            groups.setdefault((op.family, op.op_type), []).append(op)
    return groups


def _family(family: str, members: Mapping[str, list[Timed]], peak: Kernel) -> dict[str, Kernel]:
    """Return the kernels of a family's op types, and its own where no type has its name."""
    telling = [n for n, ops in members.items() if max(o.moved_bytes for o in ops) >= _TELLING_BYTES]
    kernels = {name: fit_kernel(members[name], peak) for name in telling or members}
    ops = [op for found in members.values() for op in found]
    dtypes = {dtype for kernel in kernels.values() for dtype in kernel.flops_per_s}
    pooled = Kernel(
        median(k.overhead_s for k in kernels.values()),
        median(k.bytes_per_s for k in kernels.values()),
        {d: median(rate_of(k.flops_per_s, d) for k in kernels.values()) for d in sorted(dtypes)},
    )
    for name in members.keys() - kernels.keys():
        overhead_s = max(0.0, float(np.mean([op.seconds for op in members[name]])))
        kernels[name] = _rated(replace(pooled, overhead_s=overhead_s), members[name])
    return {family: _rated(pooled, ops)} | kernels


def _rated(kernel: Kernel, ops: Sequence[Timed]) -> Kernel:
    """Return the kernel with its mean error on `ops`, weighted by their time."""
    off = sum(abs(kernel.op_s(op.dtype, op.flops, op.moved_bytes) - op.seconds) for op in ops)
    return replace(kernel, mean_error=off / sum(max(op.seconds, _LEAST_S) for op in ops))


def fit_kernel(ops: Sequence[Timed], peak: Kernel) -> Kernel:
    """Return the kernel that comes closest to `ops`; what does not bound them is from `peak`.

    Ops of about one intensity do not tell whether flops or bytes bound them: what would at the peak's
    rates does. Ops of about one size do not tell overhead from rate: they have the overhead of tiny ops.
    `mean_error` is the mean of |predicted − measured| / measured, weighted by the measured time.
    """
    by_dtype = {dtype: [op for op in ops if op.dtype == dtype] for dtype in {o.dtype for o in ops}}
    main = by_dtype.get("float32") or max(by_dtype.values(), key=len)
    flops = np.array([op.flops for op in main])
    moved = np.array([op.moved_bytes for op in main])
    alike = moved.max() < _ALIKE * moved.min()
    least_s = min([peak.overhead_s, *(op.seconds / 2 for op in main)])
    given_s = max(0.0, least_s) if alike else 0.0
    seconds = np.array([op.seconds for op in main]) - given_s
    scale_s = np.maximum(seconds, _LEAST_S)
    nothing, everything = np.zeros(len(main), bool), np.ones(len(main), bool)
    intensity = flops / moved
    if intensity.max() < _ONE_INTENSITY * intensity.min():
        balance = max(peak.flops_per_s.values()) / peak.bytes_per_s
        bounds = [everything if float(np.median(intensity)) > balance else nothing]
    else:
        bounds = [nothing, everything, flops > 8 * moved]
    candidates = [
        _alternate((flops, moved, seconds, scale_s), bound, overhead=not alike) for bound in bounds
    ]
    overhead_s, per_flop, per_byte = min(
        candidates, key=lambda x: _cost(_model(x, flops, moved), seconds, scale_s)
    )
    overhead_s += given_s
    fastest = max(peak.flops_per_s.values())
    rate = 1 / per_flop if per_flop else _BOUND * max(fastest, float(np.max(flops / scale_s)))
    widest = max(peak.bytes_per_s, float(np.max(moved / scale_s)))
    bandwidth = 1 / per_byte if per_byte else _BOUND * widest
    rates = {"float32": rate}
    for dtype, others in by_dtype.items():
        ratios = [o.seconds - overhead_s for o in others if o.flops and o.seconds > overhead_s]
        if dtype != "float32" and ratios and per_flop and others is not main:
            work = sum(o.flops for o in others if o.seconds > overhead_s)
            rates[dtype] = work / sum(ratios)
    return _rated(Kernel(overhead_s, bandwidth, rates), ops)


def _model(x: Sequence[float], flops: Floats, moved: Floats) -> Floats:
    overhead_s, per_flop, per_byte = x
    predicted: Floats = overhead_s + np.maximum(flops * per_flop, moved * per_byte)
    return predicted


def _cost(predicted: Floats, seconds: Floats, scale_s: Floats) -> float:
    return float(np.sum((predicted - seconds) ** 2 / scale_s))


def _alternate(
    ops: tuple[Floats, Floats, Floats, Floats], by_flops: npt.NDArray[np.bool_], *, overhead: bool
) -> tuple[float, float, float]:
    """Return (overhead, s/flop, s/byte) for ops bound by their flops where `by_flops` says so.

    In turn the unknowns are solved for and the ops assigned anew, until nothing changes. `ops` are
    flops, bytes, seconds and what the errors are weighed by.
    """
    flops, moved, seconds, scale_s = ops
    ones = np.ones(len(seconds)) if overhead else np.zeros(len(seconds))
    best, least = (0.0, 0.0, 0.0), math.inf
    for _ in range(_ROUNDS):
        rows = np.stack([ones, np.where(by_flops, flops, 0), np.where(by_flops, 0, moved)], 1)
        overhead_s, per_flop, per_byte = least_squares.solve(rows, seconds, scale_s).tolist()
        found = overhead_s, per_flop, per_byte
        cost = _cost(_model(found, flops, moved), seconds, scale_s)
        if cost < least:
            best, least = found, cost
        again = flops * found[1] > moved * found[2]
        if np.array_equal(again, by_flops):
            break
        by_flops = again
    return best
