"""From measured cases to a profile and to a raw table, a row per case."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from msgspec import structs

from autoddl import store
from autoddl.calibrate.network.link_cases import (
    SEND_RECEIVE,
    CollectiveCase,
    LinkSettings,
    OverlapTiming,
    Timing,
)
from autoddl.perfmodel import collectives
from autoddl.perfmodel.calibration.alpha_beta import Point
from autoddl.perfmodel.calibration.measurements import links_of, sharing_of
from autoddl.perfmodel.calibration.overlaps import (
    Attributed,
    Delays,
    attributed,
    delays,
    overhead_s,
)
from autoddl.perfmodel.profile import ALIKE, Profile
from autoddl.perfmodel.profile_entries import Device, Link

logger = logging.getLogger(__name__)

COLUMNS = (
    "mode", "collective", "level", "group_size", "inner", "groups", "size_bytes", "steps",
    "repetitions", "seconds", "min_s", "median_s", "max_s", "fitted_s",
    "boxings_s", "ops_s", "together_s", "few_ops_s", "few_together_s",
)  # fmt: skip


@dataclass(frozen=True)
class LinkFits:
    """Measured cases, by mode the links that were fitted to them, and ops beside boxings."""

    rows: tuple[Timing, ...]
    links: dict[str, tuple[Link, ...]]
    overlaps: tuple[OverlapTiming, ...] = ()

    def fitted_s(self, case: CollectiveCase, size_bytes: float) -> float | None:
        """Return what the link fitted to the points of a case says of a message size, if any was."""
        link = next((link for link in self.links[case.mode] if _key(link) == _key(case)), None)
        if link is None:
            return None
        one_s = collectives.seconds(
            link.collective, link.group_size, size_bytes / case.collectives,
            alpha_s=link.alpha_s, beta_s_per_byte=link.beta_s_per_byte,
        )  # fmt: skip
        return case.collectives * one_s


def _key(of: CollectiveCase | Link) -> tuple[Any, ...]:
    return of.collective, of.level, of.group_size, of.inner, of.groups


def _points(rows: Iterable[Timing]) -> Iterator[Point]:
    """Yield the points above the noise; each of the others is reported.

    A line is the same for broadcasts of all sizes, so a grouped gather counts as its mean broadcast.
    """
    for row in rows:
        collective, level, size, inner, groups = _key(row.case)
        if row.seconds > 0:
            sent, seconds = (x / row.case.collectives for x in (row.size_bytes, row.seconds))
            yield Point(collective, level, size, sent, seconds, inner, groups)
        else:
            logger.warning(
                "%s drowned in noise and is left out; measure again when the machine has less to do, "
                "or with a larger --budget",
                row.case,
            )


def fits_of(
    rows: Sequence[Timing], modes: Sequence[str], overlaps: Sequence[OverlapTiming] = ()
) -> LinkFits:
    """Fit the links of every mode.

    Raises:
        AutoDDLError: noise hid too much to fit anything.
    """
    links = {mode: links_of(_points(r for r in rows if r.case.mode == mode)) for mode in modes}
    return LinkFits(tuple(rows), links, tuple(overlaps))


def overheads_of(rows: Iterable[OverlapTiming]) -> dict[str, float]:
    """Return by level for how long a message keeps the device, the median over its primitives."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row.case.short and row.boxings_s > 0:
            mine = overhead_s(row.boxings_s, row.ops_s, row.together_s, row.case.messages)
            found.setdefault(row.case.boxings.level, []).append(mine)
        elif row.case.short:
            logger.warning("%s drowned in noise and is left out", row.case)
    return {level: median(mine) for level, mine in found.items()}


def overlaps_of(
    rows: Iterable[OverlapTiming], overheads: Mapping[str, float]
) -> dict[str, Attributed]:
    """Return overlap and interference by level, of the medians over its primitives.

    What messages keep the device for by the `overheads` of the levels counts as ops.
    """
    found: dict[str, list[Delays]] = {}
    for row in rows:
        if row.case.short:
            continue
        level = row.case.boxings.level
        held_s = overheads.get(level, 0.0) * row.case.messages
        if min(row.boxings_s - held_s, row.few_ops_s) > 0:
            mine = delays(
                row.boxings_s - held_s, row.ops_s + held_s, row.together_s,
                row.few_ops_s + held_s, row.few_together_s,
            )  # fmt: skip
            found.setdefault(level, []).append(mine)
        else:
            logger.warning("%s drowned in noise and is left out", row.case)
    return {level: attributed(mine) for level, mine in found.items()}


def profile_of(results: LinkFits, settings: LinkSettings, *, name: str, device: Device) -> Profile:
    """Return the profile of a device and of the links in the first mode."""
    overheads = overheads_of(results.overlaps)
    beside = overlaps_of(results.overlaps, overheads)
    nodes, ranks = settings.nnodes, settings.nproc_per_node
    where = (
        f"{nodes} nodes with {ranks} CPU ranks each"
        if nodes > 1
        else f"{ranks} CPU ranks, {len(os.sched_getaffinity(0))} cores, loopback"
    )
    mode, levels = settings.modes[0], settings.levels
    links = results.links[mode]
    # Nothing ties pairs together, so some send while others receive: they don't tell what is shared.
    in_step = [link for link in links if link.collective != SEND_RECEIVE]
    return Profile(
        name=name,
        source="measured with python -m autoddl fit-network"
        + (" --quick" if settings.quick else "")
        + f" --mode {settings.mode} on {where}",
        kind="measured",
        device_type="cpu",
        levels=levels,
        links=_profile_links(links, levels[-1]),
        devices={ALIKE: device},
        sharing=sharing_of(in_step, levels),
        overlap={level: found.overlap for level, found in beside.items()},
        interference={level: found.interference for level, found in beside.items()},
        overhead=overheads,
        mode=mode,
    )


def _profile_links(links: Sequence[Link], innermost: str) -> tuple[Link, ...]:
    """Return the links as a profile has them.

    In the innermost level that are those with all groups at work, which count as one group
    (perfmodel.topology); how a group fares alone only tells `sharing`.
    """
    outer = [link for link in links if link.level != innermost]
    inner: dict[tuple[str, int], Link] = {}
    for link in links:
        if link.level == innermost:
            key = (link.collective, link.group_size)
            if key not in inner or inner[key].groups < link.groups:
                inner[key] = link
    return (*outer, *(structs.replace(link, groups=1) for link in inner.values()))


def raw_table(results: LinkFits) -> bytes:
    """Return the raw measurements as CSV, seconds and bytes; last ops beside chains of boxings."""
    rows = []
    for row in results.rows:
        values = asdict(row) | asdict(row.case)
        values |= {"size_bytes": round(row.size_bytes), "steps": row.case.steps}
        values["fitted_s"] = results.fitted_s(row.case, row.size_bytes)
        rows.append(values)
    for beside in results.overlaps:
        values = asdict(beside.case.boxings) | {"steps": beside.case.boxings.steps}
        rows.append({**values, **asdict(beside)})
    rows = [{k: f"{v:.9g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows]
    return store.csv_bytes(COLUMNS, rows)
