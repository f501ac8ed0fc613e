"""Turn what the ranks timed (engine.collectives) into points, links and a device.

Every measurement is a chain of `steps` equal operations and a twin without them, several times on
every rank. A repetition lasts until its slowest rank is done; the operation takes (lower quartile of
the chain − lower quartile of the twin) / `steps`: other processes only ever add time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.fit import Point, fit_alpha_beta
from autoddl.perfmodel.profile import Device, Kernel, Link

logger = logging.getLogger(__name__)

QUARTILE = 0.25
DOUBTFUL = 0.25  # a mean error above this is reported
_QUIETER = "measure again when the machine has less to do, without --quick"

Sample = Mapping[str, Any]


def seconds_of(samples: Sequence[Sample]) -> float:
    """Return the seconds of one operation, from the samples of all ranks; can be <= 0 by noise."""
    chain_s, twin_s = (
        np.quantile([max(r) for r in zip(*(s[key] for s in samples), strict=True)], QUARTILE)
        for key in ("chain_s", "twin_s")
    )
    return float(chain_s - twin_s) / float(samples[0]["steps"])


def points_of(ranks: Sequence[Sequence[Sample]]) -> list[Point]:
    """Return one point per case, from the cases of every rank (in the same order on all).

    Cases in which noise hid the collective altogether are left out with a warning.
    """
    points = []
    for samples in zip(*ranks, strict=True):
        case, seconds = samples[0], seconds_of(samples)
        if seconds > 0:
            points.append(
                Point(case["collective"], case["group_size"], case["size_bytes"], seconds)
            )
        else:
            logger.warning(
                "%s of %d bytes over %d ranks drowned in noise and is left out; %s",
                case["collective"], case["size_bytes"], case["group_size"], _QUIETER,
            )  # fmt: skip
    return points


def links_of(points: Iterable[Point], level: str) -> tuple[Link, ...]:
    """Fit one link per collective and group size; links with too few points are left out.

    Raises:
        AutoDDLError: no link has enough points.
    """
    points = tuple(points)
    groups: dict[tuple[str, int], list[Point]] = {}
    for point in points:
        groups.setdefault((point.collective, point.group_size), []).append(point)
    if points and not any(len(members) > 1 for members in groups.values()):
        raise AutoDDLError(f"no link has two message sizes above the noise; {_QUIETER}")
    links = []
    for (collective, size), members in groups.items():
        if len({member.size_bytes for member in members}) < 2:
            logger.warning(
                "%s over %d ranks has too few points and is left out (plans take the nearest group "
                "size instead); %s",
                collective, size, _QUIETER,
            )  # fmt: skip
            continue
        fit = fit_alpha_beta(members)
        if fit.mean_error > DOUBTFUL:
            logger.warning(
                "%s over %d ranks: α and β miss the measured times by %.0f %% on average; %s",
                collective, size, 100 * fit.mean_error, _QUIETER,
            )  # fmt: skip
        links.append(
            Link(
                collective,
                level,
                size,
                fit.alpha_s,
                fit.beta_s_per_byte,
                mean_error=fit.mean_error,
                r2=fit.r2,
            )
        )
    return tuple(links)


def device_of(ranks: Sequence[Mapping[str, Sample]], *, name: str, memory_bytes: int) -> Device:
    """Return the device that makes perfmodel.compute reproduce the measured chains.

    The peak is the rate of the "matmul" chain. Every other chain gives the kernel of its family.

    Raises:
        AutoDDLError: noise hid an operation altogether.
    """
    taken_s, rate = {}, {}
    for chain in ranks[0]:
        taken_s[chain] = seconds_of([rank[chain] for rank in ranks])
    overhead_s = taken_s["overhead"]
    if overhead_s <= 0:  # then the whole call of the twin, shared out, bounds it
        logger.warning("device: the overhead probe drowned in noise; %s", _QUIETER)
        twins = [rank["overhead"] for rank in ranks]
        overhead_s = min(min(t["twin_s"]) / t["steps"] for t in twins)
    for chain, sample in ranks[0].items():
        net_s = max(taken_s[chain] - overhead_s, 0.1 * taken_s[chain])
        if net_s <= 0 and chain in ("matmul", "bandwidth"):
            raise AutoDDLError(f"device: the {chain} probe drowned in noise; {_QUIETER}")
        if net_s <= 0 and chain == "overhead":
            continue
        if net_s <= 0:
            logger.warning("device: the %s probe drowned in noise; %s", chain, _QUIETER)
            continue
        work = sample["moved_bytes"] if chain == "bandwidth" else sample["flops"]
        rate[chain] = work / net_s
    return Device(
        name=name,
        memory_bytes=memory_bytes,
        peak_flops={"float32": rate["matmul"]},
        memory_bytes_per_s=rate["bandwidth"],
        op_overhead_s=overhead_s,
        kernels={
            family: Kernel(overhead_s, rate["bandwidth"], {"float32": flops_per_s})
            for family, flops_per_s in rate.items()
            if family not in ("overhead", "bandwidth")
        },
    )
