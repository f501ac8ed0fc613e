"""Time collectives and the device on a cluster's ranks, launch by launch.

`link_cases` says what is measured; the engine's probe for links does it. Every launch carries out the
cases that are left; where a rank dies or hangs, the next one goes on with the case it stopped at.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autoddl.calibrate.campaign import (
    ATTEMPTS,
    MOST_LEFT_OUT,
    ClusterNode,
    Finished,
    Launches,
    OnProgress,
    Retries,
    check_measurable,
    memory,
    worth_another,
)
from autoddl.calibrate.network.link_cases import CollectiveCase, Timing, pack, timing_from_json
from autoddl.calibrate.network.link_settings import LinkSettings
from autoddl.engine.interface import Engine
from autoddl.launch.job import LaunchError

_DEVICE_SHARE_S, _QUICK_DEVICE_SHARE_S = 2.0, 0.4  # for each of the device's chains
_DEVICE_WEIGHT = 12.0  # the device takes about as long as so many short messages; for the progress


class FinishedLinks:
    """The cases of a measurement that are done, and its device; in a file, if there is a path."""

    def __init__(self, path: Path | None, settings: LinkSettings, *, fresh: bool = False) -> None:
        """Read what the file has; see Finished."""
        self.timings: dict[CollectiveCase, Timing] = {}
        self.device: dict[str, Any] | None = None
        self.file = Finished(path, "fit_network", settings.fingerprint(), self._take, fresh=fresh)

    def _take(self, part: Any) -> None:
        if "device" in part:
            self.device = dict(part["device"])
        else:
            timing = timing_from_json(part["row"])
            self.timings[timing.case] = timing


def time_links(
    engine: Engine,
    settings: LinkSettings,
    done: FinishedLinks,
    *,
    node: ClusterNode | None = None,
    progress: OnProgress | None = None,
    timeout_s: float | None = None,
) -> bool:
    """Measure what `done` lacks. Return False on nodes other than 0, which learn no results.

    Args:
        engine: whose ranks are measured.
        settings: the same on every node.
        done: gets each case when it is measured.
        node: with several nodes; the others start their ranks when node 0 does.
        progress: is told how far it is, from another thread.
        timeout_s: for everything.

    Raises:
        LaunchError: ranks failed again and again, or the time limit was reached.
        AutoDDLError: the engine is not installed, or `done` cannot be written.
    """
    check_measurable(engine, timeout_s)
    node = node or ClusterNode()
    launches = Launches(
        engine.probes.links, settings.nproc_per_node, timeout_s, nnodes=settings.nnodes, node=node
    )
    if node.rank > 0:
        _follow(launches)
        return False
    _Lead(settings, done, launches, progress).until_done()
    return True


def _follow(launches: Launches) -> None:
    """Take part in node 0's launches until it says that there are no more."""
    failures = 0
    while True:
        with tempfile.TemporaryDirectory(prefix="autoddl-") as name:
            result = launches.launch(Path(name))
            if result.ok and not json.loads((Path(name) / "outcome.json").read_text())["more"]:
                return
        failures = 0 if result.ok else failures + 1
        if (failures and not worth_another(result)) or failures == ATTEMPTS * (MOST_LEFT_OUT + 1):
            raise LaunchError(result)


class _Lead:
    """ClusterNode 0: launch batch after batch until nothing is left."""

    def __init__(
        self, settings: LinkSettings, done: FinishedLinks, launches: Launches,
        progress: OnProgress | None,
    ) -> None:  # fmt: skip
        self.settings, self.done, self.launches = settings, done, launches
        self.retries = Retries()
        self._progress = progress
        self._end_s = time.monotonic() + settings.seconds
        self._spent = _weight(done.timings)
        self._total = _weight(settings.cases()) + _DEVICE_WEIGHT * settings.device
        self._show("starting the ranks")

    def until_done(self) -> None:
        """Launch until every case is measured or left out."""
        while True:
            missing = [c for c in self.settings.cases() if c not in self.done.timings]
            left = [case for case in missing if case not in self.retries.left_out]
            device = self.settings.device and self.done.device is None
            if not left and not device:
                return
            self._launch(left, device)

    def _launch(self, left: list[CollectiveCase], device: bool) -> None:
        """Launch as many cases as fit into memory, and account for a failure."""
        settings = self.settings
        free = memory("MemAvailable") // 2 // settings.nproc_per_node
        batch, *more = pack(left, memory_bytes=free)
        share = _weight(batch) / _weight(left) if left else 1.0
        task = {
            "cluster": [settings.nnodes, settings.nproc_per_node],
            "cases": [asdict(case) for case in batch],
            "iterations": settings.iterations,
            "warm_up": settings.warm_up,
            "passes": settings.passes,
            "budget_s": max(0.0, self._end_s - time.monotonic()) * share,
            "device": device and not more,
            "device_mode": settings.modes[0],
            "device_s": _QUICK_DEVICE_SHARE_S if settings.quick else _DEVICE_SHARE_S,
            "more": bool(more),
        }
        reader = _Reader(self._keep)
        result = self.launches.carry_out(task, lambda folder: reader.read(folder / "results.jsonl"))
        if not result.ok:
            stopped = next((case for case in batch if case not in self.done.timings), None)
            label = "" if stopped is None else f"{stopped.label} of {stopped.size_bytes} bytes"
            self.retries.account(result, stopped, label=label, any_done=bool(self.done.timings))

    def _keep(self, part: Any) -> None:
        """Keep what the ranks have measured, and tell."""
        self.done.file.add(part)
        if "device" in part:
            self._show("device")
            return
        case = CollectiveCase(**part["row"]["case"])
        self._spent += case.weight / self.settings.passes
        self._show(case.label)

    def _show(self, text: str) -> None:
        if self._progress is not None:
            spent = self._spent + _DEVICE_WEIGHT * (self.done.device is not None)
            self._progress(text, min(1.0, spent / self._total))


class _Reader:
    """Give the whole lines that rank 0 appends to a file, each once."""

    def __init__(self, keep: Any) -> None:
        self._keep, self._seen = keep, 0

    def read(self, file: Path) -> None:
        """Pass on what is new."""
        text = file.read_bytes()[self._seen :] if file.exists() else b""
        for line in text.splitlines(keepends=True):
            if line.endswith(b"\n"):
                self._keep(json.loads(line))
                self._seen += len(line)


def _weight(cases: Iterable[CollectiveCase]) -> float:
    return sum(case.weight for case in cases)
