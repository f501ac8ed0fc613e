"""Launches of a probe, one after the other, and what is done where their ranks die or hang."""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

import autoddl
from autoddl.engine.interface import Engine
from autoddl.errors import AutoDDLError
from autoddl.launch.job import LaunchError, LaunchJob, LaunchResult, checked
from autoddl.launch.launcher import run

logger = logging.getLogger(__name__)

# OneFlow 0.9 puts a call of an nn.Graph into its queue after having started it. Where the call ends
# first, the rank crashes or hangs: seen once in some thousand calls of a few ms on crowded cores.
ATTEMPTS = 3  # for one part, after which it is left out
MOST_LEFT_OUT = 2
_TIMED_OUT = 124  # exit code of a launch; above are those of ranks that a signal killed
_HANG = "Timeout ("  # what faulthandler writes when the ranks' own alarm ends them
_PORTS = 64  # every launch takes the next port: the last one's may still be in use


def probe_job(engine: Engine, probe: str, **options: Any) -> LaunchJob:
    """Return the launch of one of an engine's probes; `options` are fields of LaunchJob.

    Raises:
        AutoDDLError: it cannot be started so, or the engine is not installed.
    """
    root = str(Path(autoddl.__file__).parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    job = LaunchJob(("-m", probe), env=(("PYTHONPATH", path),), stream_rank0=False, **options)
    checked(job)
    if not engine.installed():
        raise AutoDDLError(
            "OneFlow is not installed, so nothing can be measured; install it with "
            "`pip install 'autoddl[oneflow]'` (CPython 3.10)"
        )
    return job


def launches(job: LaunchJob) -> Iterator[LaunchJob]:
    """Yield one launch after the other, each on the next port and in what is left of the time."""
    begin_s = time.monotonic()
    for count in itertools.count():
        port, limit_s = job.master_port, job.timeout_s
        if port is not None:
            port += count % _PORTS
        if limit_s is not None:
            limit_s = max(1e-3, limit_s - (time.monotonic() - begin_s))  # 0 is none that is allowed
        yield replace(job, master_port=port, timeout_s=limit_s)


def carry_out(job: LaunchJob, task: Any, keep: Callable[[Any], None]) -> LaunchResult:
    """Launch a task; `keep` gets each line that rank 0 writes, as soon as it is whole."""
    with tempfile.TemporaryDirectory(prefix="autoddl-") as folder:
        Path(folder, "task.json").write_bytes(msgspec.json.encode(task))
        results = Path(folder, "results.jsonl")
        results.touch()
        with results.open("rb") as file:
            cut_off = b""

            def look() -> None:
                nonlocal cut_off
                *whole, cut_off = (cut_off + file.read()).split(b"\n")
                for line in whole:
                    keep(json.loads(line))

            try:
                return run(replace(job, command=(*job.command, folder)), look)
            finally:
                look()


def follow(job: LaunchJob) -> None:
    """Take part in node 0's launches until it says that there are no more."""
    failures = 0
    for each in launches(job):
        with tempfile.TemporaryDirectory(prefix="autoddl-") as folder:
            result = run(replace(each, command=(*each.command, folder)))
            if result.ok and not json.loads(Path(folder, "outcome.json").read_text())["more"]:
                return
        failures = 0 if result.ok else failures + 1
        if (failures and not worth_another(result)) or failures == ATTEMPTS * (MOST_LEFT_OUT + 1):
            raise LaunchError(result)


class Retries:
    """Decide after failed launches: once more, without the part that stopped them, or an error."""

    def __init__(self) -> None:
        self.left_out: list[Hashable] = []
        self._failures: Counter[Hashable] = Counter()

    def account(self, result: LaunchResult, stopped: Hashable, *, any_done: bool) -> None:
        """Note that a launch failed while doing the part `stopped` (None: one that can't be left out).

        Raises:
            LaunchError: another launch would fail, too.
        """
        if not worth_another(result):
            raise LaunchError(result)
        self._failures[stopped] += 1
        if self._failures[stopped] < ATTEMPTS:
            logger.warning("%s; trying once more", result.message)
            return
        if stopped is None or not any_done or len(self.left_out) >= MOST_LEFT_OUT:
            raise LaunchError(result)
        self.left_out.append(stopped)
        logger.warning("%s, %d times in %s, which is left out", result.message, ATTEMPTS, stopped)


def worth_another(result: LaunchResult) -> bool:
    """Tell whether ranks were killed or hung, rather than failing with an error of their own."""
    if result.timed_out:
        return False
    return result.exit_code > _TIMED_OUT or any(line.startswith(_HANG) for line in result.tail)


def memory(key: str) -> int:
    """Return a number of /proc/meminfo in bytes."""
    found = _proc("meminfo", key)
    if found is None:
        raise AutoDDLError(
            f"memory: /proc/meminfo lacks {key}; a Linux machine is needed to measure"
        )
    return int(found.split()[0]) * 1024


def _proc(name: str, key: str) -> str | None:
    """Return the first entry of a name in a table of /proc."""
    found = re.search(rf"^{key}\s*: *(\S.*)", Path("/proc", name).read_text(), re.MULTILINE)
    return None if found is None else found[1]


def one_of(ranks: int) -> dict[str, Any]:
    """Return name and memory of the device that one of so many ranks of this machine is."""
    cores = len(os.sched_getaffinity(0))
    cpu = _proc("cpuinfo", "model name") or "CPU"
    name = f"{cpu}, one of {ranks} ranks on {cores} cores"
    return {"name": name, "memory_bytes": memory("MemTotal") // ranks}
