"""Turn what the ranks timed (probes.link_probe) into points, links and a device.

Every measurement is a chain of `steps` equal operations and a twin without them, several times on
every rank. A repetition lasts until its slowest rank is done; the operation takes (lower quartile of
the chain − lower quartile of the twin) / `steps`: other processes only ever add time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.calibration.alpha_beta import AlphaBeta, Point, fit_sharing
from autoddl.perfmodel.profile_entries import Device, Kernel, Link

logger = logging.getLogger(__name__)

QUARTILE = 0.25
_QUIETER = "measure again when the machine has less to do, or for longer"

Sample = Mapping[str, Any]
Fit = Callable[[Mapping[int, Sequence[Point]]], Mapping[int, Sequence[AlphaBeta]]]


def seconds_of(samples: Sequence[Sample]) -> float:
    """Return the seconds of one operation, from the samples of all ranks; can be <= 0 by noise."""
    chain_s, twin_s = (
        np.quantile([max(r) for r in zip(*(s[key] for s in samples), strict=True)], QUARTILE)
        for key in ("chain_s", "twin_s")
    )
    return float(chain_s - twin_s) / float(samples[0]["steps"])


def one_line(points: Mapping[int, Sequence[Point]]) -> dict[int, list[AlphaBeta]]:
    """Return one line for each group size (the keys)."""
    return {size: [fit] for size, fit in fit_sharing(points).items()}


def links_of(points: Iterable[Point], fit: Fit = one_line) -> tuple[Link, ...]:
    """Fit links per collective and kind of group; those with too few points are left out.

    Group sizes of one collective, level and number of concurrent groups share β where their errors
    allow it (perfmodel.calibration.alpha_beta). What is doubtful is logged, one line per link.

    Raises:
        AutoDDLError: no link has enough points.
    """
    kinds: dict[tuple[str, str, int, int], dict[int, list[Point]]] = {}
    for point in points:
        kind = (point.collective, point.level, point.inner, point.groups)
        kinds.setdefault(kind, {}).setdefault(point.group_size, []).append(point)
    links = []
    for kind, sizes in kinds.items():
        enough = {p: m for p, m in sizes.items() if len({x.size_bytes for x in m}) > 1}
        for size in sizes.keys() - enough.keys():
            logger.warning(
                "%s has too few points and is left out (plans take the nearest group size instead); %s",
                _label(kind, size), _QUIETER,
            )  # fmt: skip
        for size, lines in fit(enough).items():
            for line in lines:
                if line.warnings:
                    said = ", ".join(line.warnings)
                    logger.warning("%s: %s; %s", _label(kind, size), said, _QUIETER)
                collective, level, inner, groups = kind
                links.append(Link(
                    collective, level, size, line.alpha_s, line.beta_s_per_byte, inner, groups,
                    line.mean_error, line.r2, line.alpha_interval_s, line.beta_interval_s_per_byte,
                ))  # fmt: skip
    if kinds and not links:
        raise AutoDDLError(f"no link has two message sizes above the noise; {_QUIETER}")
    return tuple(links)


def _label(kind: tuple[str, str, int, int], group_size: int) -> str:
    collective, level, inner, groups = kind
    across = f" ({group_size // inner}×{inner})" if inner > 1 else ""
    beside = f", {groups} groups at once" if groups > 1 else ""
    return f"{collective} over {group_size} ranks{across} of level {level}{beside}"


def sharing_of(links: Iterable[Link], levels: Sequence[str]) -> dict[str, float]:
    """Return how much concurrent groups slow each other down on a link of each level, 0 to 1.

    The median, over kinds of groups measured with different numbers g of concurrent ones, of the
    s in β(g) = β(1)·(1 + s·(g − 1)), each clipped to [0, 1]. Levels without such a pair are left
    out, so that Profile's defaults hold.
    """
    kinds: dict[tuple[str, str, int, int], dict[int, Link]] = {}
    for link in sorted(
        links, key=lambda link: link.beta_s_per_byte
    ):  # of several lines that of most bytes
        kind = (link.collective, link.level, link.group_size, link.inner)
        kinds.setdefault(kind, {}).setdefault(link.groups, link)
    shares: dict[str, list[float]] = {}
    for members in kinds.values():
        few, *others = (members[groups] for groups in sorted(members))
        for many in others:
            # β(g)/β(f) = (1 + s(g − 1)) / (1 + s(f − 1)) solved for s.
            ratio = many.beta_s_per_byte / few.beta_s_per_byte if few.beta_s_per_byte else math.inf
            steps = (many.groups - 1) - ratio * (few.groups - 1)
            share = (ratio - 1) / steps if steps > 0 else 1.0
            shares.setdefault(few.level, []).append(min(1.0, max(0.0, share)))
    return {level: median(shares[level]) for level in levels if level in shares}


def device_of(ranks: Sequence[Mapping[str, Sample]], *, name: str, memory_bytes: int) -> Device:
    """Return the device that makes perfmodel.roofline reproduce the measured chains.

    The peak is the rate of the "matmul" chain. Every other chain gives the kernel of its family.

    Raises:
        AutoDDLError: noise hid an operation altogether.
    """
    taken_s = {chain: seconds_of([rank[chain] for rank in ranks]) for chain in ranks[0]}
    overhead_s = taken_s["overhead"]
    if overhead_s <= 0:  # then the whole call of the twin, shared out, bounds it
        logger.warning("device: the overhead probe drowned in noise; %s", _QUIETER)
        twins = [rank["overhead"] for rank in ranks]
        overhead_s = min(min(t["twin_s"]) / t["steps"] for t in twins)
    rate = {}
    for chain, sample in ranks[0].items():
        net_s = max(taken_s[chain] - overhead_s, 0.1 * taken_s[chain])
        if net_s > 0:
            rate[chain] = sample["moved_bytes" if chain == "bandwidth" else "flops"] / net_s
        elif chain in ("matmul", "bandwidth"):
            raise AutoDDLError(f"device: the {chain} probe drowned in noise; {_QUIETER}")
        elif chain != "overhead":
            logger.warning("device: the %s probe drowned in noise; %s", chain, _QUIETER)
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
