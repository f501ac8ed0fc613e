"""Measure a cluster's ranks in disposable processes; the library behind autoddl.fit_network.

`engine.cases` says what is measured, `engine.boxing_chains` how, `engine.collectives` is the program
of the ranks. Every launch carries out the cases that are left; where a rank dies or hangs, the next
one goes on with the case that it stopped at.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import autoddl
from autoddl.engine.cases import Case, pack
from autoddl.engine.launch import LaunchError, LaunchResult, launch
from autoddl.engine.partial import Partial
from autoddl.engine.settings import Node, Settings
from autoddl.errors import AutoDDLError

logger = logging.getLogger(__name__)

OnProgress = Callable[[str, float], None]
"""Called with what is being measured and the share of the whole that is done, 0 to 1."""

_DEVICE_SHARE_S, _QUICK_DEVICE_SHARE_S = 2.0, 0.4  # for each of the device's chains
_DEVICE_WEIGHT = 12.0  # the device takes about as long as so many short messages; for the progress
# OneFlow 0.9 puts a call of an nn.Graph into its queue after having started it. Where the call ends
# first, the rank crashes or hangs: seen once in some thousand calls of a few ms on crowded cores.
_ATTEMPTS = 3  # for one case, after which it is left out
_MOST_LEFT_OUT = 2
_TIMED_OUT = 124  # exit code of a launch; above are those of ranks that a signal killed
_HANG = "Timeout ("  # what faulthandler writes when the ranks' own alarm ends them
_PORTS = 64  # every launch takes the next port: the last one's may still be in use


def run(
    settings: Settings,
    partial: Partial,
    *,
    node: Node | None = None,
    progress: OnProgress | None = None,
    timeout_s: float | None = None,
) -> bool:
    """Measure what `partial` lacks. Return False on nodes other than 0, which learn no results.

    Args:
        settings: the same on every node.
        partial: gets each case when it is done.
        node: with several nodes; the others start their ranks when node 0 does.
        progress: is told how far it is, from another thread.
        timeout_s: for everything.

    Raises:
        LaunchError: ranks failed again and again, or the time limit was reached.
        AutoDDLError: no OneFlow, or `partial` cannot be written.
    """
    if find_spec("oneflow") is None:
        raise AutoDDLError(
            "OneFlow is not installed, so nothing can be measured; install it with "
            "`pip install 'autoddl[oneflow]'` (CPython 3.10)"
        )
    if timeout_s is not None and not timeout_s > 0:
        raise AutoDDLError(f"timeout: got {timeout_s}; allowed are more than 0 seconds")
    job = _Job(settings, node or Node(), partial, timeout_s)
    if job.node.rank > 0:
        job.follow()
        return False
    meter = _Meter(progress, settings, partial)
    _Lead(job, meter).until_done()
    return True


@dataclass
class _Job:
    """The launches of this node, one after the other."""

    settings: Settings
    node: Node
    partial: Partial
    timeout_s: float | None
    launches: int = 0
    begin_s: float = field(default_factory=time.monotonic)

    def launch(self, folder: Path) -> LaunchResult:
        """Start this node's ranks with the task in `folder` and wait for them."""
        root = str(Path(autoddl.__file__).parent.parent)
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        port = self.node.master_port
        spent_s = time.monotonic() - self.begin_s
        result = launch(
            ["-m", "autoddl.engine.collectives", str(folder)],
            nproc_per_node=self.settings.nproc_per_node,
            nnodes=self.settings.nnodes,
            node_rank=self.node.rank,
            master_addr=self.node.master_addr,
            master_port=None if port is None else port + self.launches % _PORTS,
            timeout_s=None if self.timeout_s is None else max(0.0, self.timeout_s - spent_s),
            env={"PYTHONPATH": path},
            stream_rank0=False,
            share_cores=self.node.share_cores,
        )
        self.launches += 1
        return result

    def follow(self) -> None:
        """Take part in node 0's launches until it says that there are no more."""
        failures = 0
        while True:
            with tempfile.TemporaryDirectory(prefix="autoddl-") as name:
                result = self.launch(Path(name))
                outcome = Path(name) / "outcome.json"
                if result.ok and not json.loads(outcome.read_text())["more"]:
                    return
            if result.ok:
                failures = 0
                continue
            failures += 1
            if not _worth_another(result) or failures == _ATTEMPTS * (_MOST_LEFT_OUT + 1):
                raise LaunchError(result)
            logger.warning("%s; going on", result.message)


class _Lead:
    """Node 0: launch batch after batch until nothing is left."""

    def __init__(self, job: _Job, meter: _Meter) -> None:
        self.job = job
        self.meter = meter
        self.failures: dict[Case | None, int] = {}
        self.left_out: list[Case] = []

    def until_done(self) -> None:
        """Launch until every case is measured or left out."""
        settings, partial = self.job.settings, self.job.partial
        end_s = time.monotonic() + settings.seconds
        while True:
            dropped = {case for case, count in self.failures.items() if count >= _ATTEMPTS}
            left = [c for c in settings.cases() if c not in partial.rows and c not in dropped]
            device = settings.device and partial.device is None
            if not left and not device:
                return
            batches = pack(
                left, memory_bytes=memory("MemAvailable") // 2 // settings.nproc_per_node
            )
            share = sum(c.weight for c in batches[0]) / sum(c.weight for c in left) if left else 1.0
            task = {
                "cluster": [settings.nnodes, settings.nproc_per_node],
                "cases": [asdict(case) for case in batches[0]],
                "iterations": settings.iterations,
                "warm_up": settings.warm_up,
                "passes": settings.passes,
                "budget_s": max(0.0, end_s - time.monotonic()) * share,
                "device": device and len(batches) == 1,
                "device_mode": settings.modes[0],
                "device_s": _QUICK_DEVICE_SHARE_S if settings.quick else _DEVICE_SHARE_S,
                "more": len(batches) > 1,
            }
            self.launch(task, batches[0])

    def launch(self, task: Mapping[str, Any], cases: Sequence[Case]) -> None:
        """Carry out a task, and keep what it measured even if it fails."""
        with tempfile.TemporaryDirectory(prefix="autoddl-") as name:
            folder = Path(name)
            (folder / "task.json").write_text(json.dumps(task))
            with _following(folder / "results.jsonl", self.meter):
                result = self.job.launch(folder)
        if not result.ok:
            self.account(result, next((c for c in cases if c not in self.job.partial.rows), None))

    def account(self, result: LaunchResult, stopped: Case | None) -> None:
        """Decide after a failed launch: once more, without the case `stopped`, or an error."""
        if not _worth_another(result):
            raise LaunchError(result)
        count = self.failures[stopped] = self.failures.get(stopped, 0) + 1
        if count < _ATTEMPTS:
            logger.warning("%s; trying once more", result.message)
            return
        if stopped is None or not self.job.partial.rows or len(self.left_out) >= _MOST_LEFT_OUT:
            raise LaunchError(result)
        self.left_out.append(stopped)
        logger.warning(
            "%s, %d times in %s of %d bytes, which is left out",
            result.message, count, stopped.label, stopped.size_bytes,
        )  # fmt: skip


def _worth_another(result: LaunchResult) -> bool:
    """Tell whether ranks were killed or hung, rather than failing with an error of their own."""
    if result.timed_out:
        return False
    return result.exit_code > _TIMED_OUT or any(line.startswith(_HANG) for line in result.tail)


class _Meter:
    """Keep what the ranks have measured and tell how far it is."""

    def __init__(self, progress: OnProgress | None, settings: Settings, partial: Partial) -> None:
        self.partial = partial
        self._progress = progress
        cases = settings.cases()
        self._passes = settings.passes
        self._done = sum(case.weight for case in partial.rows)
        self._total = sum(case.weight for case in cases)
        self._total += _DEVICE_WEIGHT if settings.device else 0.0
        self.show("starting the ranks")

    def take(self, line: str) -> None:
        """Keep one line of results."""
        self.partial.add(line)
        data = json.loads(line)
        if "device" in data:
            self.show("device")
            return
        case = Case(**data["row"]["case"])
        self._done += case.weight / self._passes
        self.show(case.label)

    def show(self, text: str) -> None:
        """Tell how much is done."""
        if self._progress is None:
            return
        done = self._done
        done += _DEVICE_WEIGHT if self.partial.device is not None else 0.0
        self._progress(text, min(1.0, done / self._total))


@contextlib.contextmanager
def _following(file: Path, meter: _Meter) -> Iterator[None]:
    """Take the lines that rank 0 appends to `file` when they are there.

    Where they can't be kept, the launch is interrupted and the error raised.
    """
    over = threading.Event()
    failures: list[AutoDDLError] = []
    seen = 0

    def look() -> None:
        nonlocal seen
        text = file.read_bytes()[seen:] if file.exists() else b""
        for line in text.splitlines(keepends=True):
            if line.endswith(b"\n"):
                meter.take(line.decode().rstrip("\n"))
                seen += len(line)

    def follow() -> None:
        try:
            while not over.wait(0.2):
                look()
        except AutoDDLError as error:
            failures.append(error)
            os.kill(os.getpid(), signal.SIGINT)  # ends the ranks

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    except KeyboardInterrupt:
        if not failures:
            raise
    finally:
        over.set()
        thread.join()
        if not failures:
            look()
    if failures:
        raise failures[0]


def memory(key: str) -> int:
    """Return a number of /proc/meminfo in bytes."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise AutoDDLError(f"memory: /proc/meminfo lacks {key}; a Linux machine is needed to measure")
