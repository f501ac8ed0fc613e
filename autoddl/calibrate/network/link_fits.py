"""From measured cases to a profile and to a raw table, a row per case."""

from __future__ import annotations

import csv
import io
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from autoddl.calibrate.campaign import OnProgress, cpu_name, memory
from autoddl.calibrate.network.link_cases import SEND_RECEIVE, CollectiveCase, Timing
from autoddl.calibrate.network.link_settings import LinkSettings
from autoddl.calibrate.network.link_timing import FinishedLinks, time_links
from autoddl.engine.interface import Engine
from autoddl.perfmodel import collectives
from autoddl.perfmodel.calibration.alpha_beta import Point
from autoddl.perfmodel.calibration.measurements import device_of, links_of, sharing_of
from autoddl.perfmodel.profile import Device, Link, Profile

logger = logging.getLogger(__name__)

COLUMNS = (
    "mode", "collective", "level", "group_size", "inner", "groups", "size_bytes", "steps",
    "repetitions", "seconds", "min_s", "median_s", "max_s", "fitted_s",
)  # fmt: skip


@dataclass(frozen=True)
class LinkFits:
    """Measured cases, and by mode the links that were fitted to them."""

    rows: tuple[Timing, ...]
    links: dict[str, tuple[Link, ...]]

    def link(self, case: CollectiveCase) -> Link | None:
        """Return the link that was fitted to the points of a case, if any."""
        return next((link for link in self.links[case.mode] if _key(link) == _key(case)), None)

    def fitted_s(self, row: Timing) -> float | None:
        """Return what the fit says of a row."""
        link = self.link(row.case)
        return None if link is None else fitted_s(link, row.size_bytes)


def fitted_s(link: Link, size_bytes: float) -> float:
    """Return the seconds that a link says of a message size."""
    return collectives.seconds(
        link.collective,
        link.group_size,
        size_bytes,
        alpha_s=link.alpha_s,
        beta_s_per_byte=link.beta_s_per_byte,
    )


def _key(of: CollectiveCase | Link | Point) -> tuple[Any, ...]:
    return of.collective, of.level, of.group_size, of.inner, of.groups


def _points(rows: Sequence[Timing]) -> list[Point]:
    """Return the points above the noise; each of the others is reported."""
    points = []
    for row in rows:
        case = row.case
        if row.seconds > 0:
            points.append(
                Point(
                    case.collective,
                    case.level,
                    case.group_size,
                    row.size_bytes,
                    row.seconds,
                    inner=case.inner,
                    groups=case.groups,
                )
            )
        else:
            logger.warning(
                "%s of %d bytes drowned in noise and is left out; measure again when the machine "
                "has less to do, or with a larger --budget",
                case.label,
                case.size_bytes,
            )
    return points


def fits_of(rows: Sequence[Timing], modes: Sequence[str]) -> LinkFits:
    """Fit the links of every mode.

    Raises:
        AutoDDLError: noise hid too much to fit anything.
    """
    links = {mode: links_of(_points([r for r in rows if r.case.mode == mode])) for mode in modes}
    return LinkFits(tuple(rows), links)


def profile_of(
    results: LinkFits, settings: LinkSettings, *, name: str, device: Device | dict[str, Any]
) -> Profile:
    """Return the profile of the first mode; `device` is one, or what the ranks measured of theirs."""
    cores = len(os.sched_getaffinity(0))
    cluster = settings.cluster
    where = (
        f"{cluster.nodes} nodes with {cluster.ranks_per_node} CPU ranks each"
        if cluster.nodes > 1
        else f"{cluster.ranks} CPU ranks, {cores} cores, loopback"
    )
    mode = settings.modes[0]
    if not isinstance(device, Device):
        device = device_of(
            [device],
            name=f"{cpu_name()}, one of {cluster.ranks_per_node} ranks on {cores} cores",
            memory_bytes=memory("MemTotal") // cluster.ranks_per_node,
        )
    return Profile(
        name=name,
        source="measured with python -m autoddl fit-network"
        + (" --quick" if settings.quick else "")
        + f" --mode {settings.mode} on {where}",
        kind="measured",
        device_type="cpu",
        levels=cluster.levels,
        links=_profile_links(results.links[mode], cluster.levels[-1]),
        device=device,
        sharing=sharing_of(_in_step(results.links[mode]), cluster.levels),
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


def _in_step(links: Sequence[Link]) -> list[Link]:
    """Leave out pairs: nothing ties them together, so some send while others receive."""
    return [link for link in links if link.collective != SEND_RECEIVE]


def raw_table(results: LinkFits) -> str:
    """Return the raw measurements as CSV, seconds and bytes."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in results.rows:
        case, fitted = row.case, results.fitted_s(row)
        writer.writerow(
            [
                case.mode, case.collective, case.level, case.group_size, case.inner, case.groups,
                round(row.size_bytes), case.steps, row.repetitions,
                *(f"{s:.9g}" for s in (row.seconds, row.min_s, row.median_s, row.max_s)),
                "" if fitted is None else f"{fitted:.9g}",
            ]
        )  # fmt: skip
    return out.getvalue()


def measured_links(
    engine: Engine,
    nproc_per_node: int,
    *,
    quick: bool = False,
    mode: str = "graph",
    device: Device | None = None,
    progress: OnProgress | None = None,
    timeout_s: float | None = None,
    name: str = "measured",
) -> Profile:
    """Run `nproc_per_node` ranks on this machine's CPU and return their profile.

    Args:
        engine: whose ranks are measured.
        nproc_per_node: ranks; one rank gives a profile without links.
        quick: fewer message sizes, groups and repetitions: under a minute on 4 ranks.
        mode: "graph" measures boxing inside nn.Graph, as plans use it, "eager" that of tensors.
        device: of the profile, as measured_device returns it; timed roughly if not given.
        progress: is told how far it is, from another thread.
        timeout_s: seconds for everything.
        name: of the profile.

    Raises:
        LaunchError: ranks failed again and again, or the time limit was reached.
        AutoDDLError: bad arguments, no engine, or too much noise to fit anything.
    """
    settings = LinkSettings(nproc_per_node, quick=quick, mode=mode, device=device is None)
    done = FinishedLinks(None, settings)
    time_links(engine, settings, done, progress=progress, timeout_s=timeout_s)
    fits = fits_of(list(done.timings.values()), settings.modes)
    return profile_of(fits, settings, name=name, device=device or done.device or {})
