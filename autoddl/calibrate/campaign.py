"""What all measurements have in common: launches of a probe until nothing is left, kept as they go.

A probe (engine.interface.Probes) is a module that all ranks run on a folder with task.json. Its rank 0
appends a line of JSON to results.jsonl for every part of the task that is done; a line is kept at once,
and a launch whose ranks die or hang is followed by another that does the parts left. So an interrupted
command goes on where it ended.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import tempfile
import time
from abc import ABC, abstractmethod
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import msgspec

import autoddl
from autoddl.calibrate.finished import Finished
from autoddl.engine.interface import Engine
from autoddl.errors import AutoDDLError
from autoddl.launch.job import LaunchError, LaunchJob, LaunchResult, checked
from autoddl.launch.launcher import run

logger = logging.getLogger(__name__)

OnProgress = Callable[[str, float], None]
"""Called with what is being measured and the share of the whole that is done, 0 to 1."""

# OneFlow 0.9 puts a call of an nn.Graph into its queue after having started it. Where the call ends
# first, the rank crashes or hangs: seen once in some thousand calls of a few ms on crowded cores.
ATTEMPTS = 3  # for one part, after which it is left out
MOST_LEFT_OUT = 2
_TIMED_OUT = 124  # exit code of a launch; above are those of ranks that a signal killed
_HANG = "Timeout ("  # what faulthandler writes when the ranks' own alarm ends them
_PORTS = 64  # every launch takes the next port: the last one's may still be in use


class CampaignPart(Protocol):
    """What is measured at once and kept when it is done: frozen data."""

    def __hash__(self) -> int: ...

    @property
    def label(self) -> str:
        """Return it in words; parts that differ only in size may have the same."""

    @property
    def weight(self) -> float:
        """Return how long it takes beside others."""

    @property
    def memory_bytes(self) -> int:
        """Return about how much memory it takes on each rank until the ranks end."""

    @property
    def needed(self) -> bool:
        """Tell that it can't be left out."""


P = TypeVar("P", bound=CampaignPart)


class Campaign(ABC, Generic[P]):
    """Parts to measure, and what came of those that are done."""

    kind: ClassVar[str]
    """Of its partial files."""

    def __init__(
        self, parts: Sequence[P], settings: Mapping[str, Any], partial: Path | None, *, fresh: bool
    ) -> None:
        """Read what the file of partial results has; see `Finished`."""
        self.parts = parts
        self.found: dict[P, Any] = {}
        self.file = Finished(partial, self.kind, settings, self._take, fresh=fresh)

    @abstractmethod
    def read(self, line: Any) -> tuple[P, Any]:
        """Return the part that a line of the probe or of the file is of, and what came of it.

        Raises:
            ValueError, KeyError, TypeError: the line is damaged.
        """

    @abstractmethod
    def task(self, batch: Sequence[P], left: Sequence[P]) -> Any:
        """Return what the ranks are told, as JSON, to measure a batch of the parts that are left."""

    def lines(self, part: P) -> int:
        """Return how often the ranks report a part, each time with more repetitions."""
        return 1

    def run(self, job: LaunchJob, progress: OnProgress = lambda text, done: None) -> None:
        """Launch a probe (`probe_job`) until every part is measured or left out.

        On nodes other than 0, take part in node 0's launches; these learn no results.

        Raises:
            LaunchError: ranks failed again and again, or the time limit was reached.
            AutoDDLError: the file of partial results cannot be written.
        """
        if job.node_rank > 0:
            _follow(job)
            return
        spent, total = (sum(part.weight for part in parts) for parts in (self.found, self.parts))
        total = total or 1.0

        def keep(line: Any) -> None:
            nonlocal spent
            self.file.add(line)
            part, _ = self.read(line)
            spent += part.weight / self.lines(part)
            progress(part.label, min(1.0, spent / total))

        retries, launches = Retries(), _launches(job)
        progress("starting the ranks", spent / total)
        while left := [p for p in self.parts if p not in self.found and p not in retries.left_out]:
            batch = left[: _fitting(left, job.nproc_per_node)]
            result = _carry_out(next(launches), self.task(batch, left), keep)
            if not result.ok:
                stopped = next((part for part in batch if part not in self.found), None)
                spare = None if stopped is None or stopped.needed else stopped
                retries.account(result, spare, any_done=bool(self.found))

    def _take(self, line: Any) -> None:
        part, value = self.read(line)
        self.found[part] = value


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


def _launches(job: LaunchJob) -> Iterator[LaunchJob]:
    """Yield one launch after the other, each on the next port and in what is left of the time."""
    begin_s = time.monotonic()
    for count in itertools.count():
        port, limit_s = job.master_port, job.timeout_s
        if port is not None:
            port += count % _PORTS
        if limit_s is not None:
            limit_s = max(0.0, limit_s - (time.monotonic() - begin_s))
        yield replace(job, master_port=port, timeout_s=limit_s)


def _carry_out(job: LaunchJob, task: Any, keep: Callable[[Any], None]) -> LaunchResult:
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


def _follow(job: LaunchJob) -> None:
    """Take part in node 0's launches until it says that there are no more."""
    failures = 0
    for each in _launches(job):
        with tempfile.TemporaryDirectory(prefix="autoddl-") as folder:
            result = run(replace(each, command=(*each.command, folder)))
            if result.ok and not json.loads(Path(folder, "outcome.json").read_text())["more"]:
                return
        failures = 0 if result.ok else failures + 1
        if (failures and not worth_another(result)) or failures == ATTEMPTS * (MOST_LEFT_OUT + 1):
            raise LaunchError(result)


def _fitting(parts: Sequence[CampaignPart], ranks: int) -> int:
    """Return how many of the first parts fit into memory together, or 1.

    Only ending a process frees what a part took there.
    """
    free = memory("MemAvailable") // 2 // ranks
    return max(1, bisect(list(itertools.accumulate(p.memory_bytes for p in parts)), free))


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


def one_of(ranks: int) -> dict[str, Any]:
    """Return name and memory of the device that one of so many ranks of this machine is."""
    cores = len(os.sched_getaffinity(0))
    cpu = proc("cpuinfo").get("model name", "CPU")
    return {
        "name": f"{cpu}, one of {ranks} ranks on {cores} cores",
        "memory_bytes": memory("MemTotal") // ranks,
    }


def memory(key: str) -> int:
    """Return a number of /proc/meminfo in bytes."""
    found = proc("meminfo")
    if key not in found:
        raise AutoDDLError(
            f"memory: /proc/meminfo lacks {key}; a Linux machine is needed to measure"
        )
    return int(found[key].split()[0]) * 1024


def proc(name: str) -> dict[str, str]:
    """Return the entries of a table in /proc, the last of those that are there twice."""
    lines = (line.partition(":") for line in Path("/proc", name).read_text().splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}
