"""What all measurements have in common: launches of a probe until nothing is left, kept as they go.

A probe (engine.interface.Probes) is a module that all ranks run on a folder with task.json. It appends
a line of JSON for every part of the task that it has done; a part is kept at once, and a launch whose
ranks die or hang is followed by another that does the parts left. So an interrupted command goes on
where it ended.
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
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import autoddl
from autoddl import store
from autoddl.engine.interface import Engine
from autoddl.errors import AutoDDLError
from autoddl.launch.job import LaunchError, LaunchResult
from autoddl.launch.launcher import launch

logger = logging.getLogger(__name__)

OnProgress = Callable[[str, float], None]
"""Called with what is being measured and the share of the whole that is done, 0 to 1."""

ANEW = "--fresh starts anew"
# OneFlow 0.9 puts a call of an nn.Graph into its queue after having started it. Where the call ends
# first, the rank crashes or hangs: seen once in some thousand calls of a few ms on crowded cores.
ATTEMPTS = 3  # for one part, after which it is left out
MOST_LEFT_OUT = 2
_TIMED_OUT = 124  # exit code of a launch; above are those of ranks that a signal killed
_HANG = "Timeout ("  # what faulthandler writes when the ranks' own alarm ends them
_PORTS = 64  # every launch takes the next port: the last one's may still be in use


@dataclass(frozen=True)
class ClusterNode:
    """Which node this is, how the nodes find each other, and how its ranks wait (see launch)."""

    rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int | None = None
    share_cores: bool | None = None


@dataclass
class Launches:
    """The launches of a probe on this node, one after the other, under one time limit."""

    probe: str
    nproc_per_node: int
    timeout_s: float | None = None
    nnodes: int = 1
    node: ClusterNode = field(default_factory=ClusterNode)
    count: int = 0
    begin_s: float = field(default_factory=time.monotonic)

    def launch(self, folder: Path) -> LaunchResult:
        """Start this node's ranks with the task in `folder` and wait for them."""
        port = self.node.master_port
        left_s = None
        if self.timeout_s is not None:
            left_s = max(0.0, self.timeout_s - (time.monotonic() - self.begin_s))
        result = launch(
            ["-m", self.probe, str(folder)],
            nproc_per_node=self.nproc_per_node,
            nnodes=self.nnodes,
            node_rank=self.node.rank,
            master_addr=self.node.master_addr,
            master_port=None if port is None else port + self.count % _PORTS,
            timeout_s=left_s,
            env={"PYTHONPATH": _python_path()},
            stream_rank0=False,
            share_cores=self.node.share_cores,
        )
        self.count += 1
        return result

    def carry_out(self, task: Mapping[str, Any], look: Callable[[Path], None]) -> LaunchResult:
        """Launch a task; `look` is called now and then, and at the end, to take what is done."""
        with tempfile.TemporaryDirectory(prefix="autoddl-") as name:
            folder = Path(name)
            (folder / "task.json").write_text(json.dumps(task))
            with _looking(lambda: look(folder)):
                return self.launch(folder)


def _python_path() -> str:
    root = str(Path(autoddl.__file__).parent.parent)
    return os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))


@contextlib.contextmanager
def _looking(look: Callable[[], None]) -> Iterator[None]:
    """Call `look` every 0.2 s and at the end; where it fails, interrupt the launch and raise that."""
    over = threading.Event()
    failures: list[AutoDDLError] = []

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


class Retries:
    """Decide after failed launches: once more, without the part that stopped them, or an error."""

    def __init__(self) -> None:
        self.left_out: list[Hashable] = []
        self._failures: dict[Hashable, int] = {}

    def account(
        self, result: LaunchResult, stopped: Hashable, *, label: str, any_done: bool
    ) -> None:
        """Note that a launch failed while doing the part `stopped` (None: it is not known which).

        Raises:
            LaunchError: another launch would fail, too.
        """
        if not worth_another(result):
            raise LaunchError(result)
        count = self._failures[stopped] = self._failures.get(stopped, 0) + 1
        if count < ATTEMPTS:
            logger.warning("%s; trying once more", result.message)
            return
        if stopped is None or not any_done or len(self.left_out) >= MOST_LEFT_OUT:
            raise LaunchError(result)
        self.left_out.append(stopped)
        logger.warning("%s, %d times in %s, which is left out", result.message, count, label)


def worth_another(result: LaunchResult) -> bool:
    """Tell whether ranks were killed or hung, rather than failing with an error of their own."""
    if result.timed_out:
        return False
    return result.exit_code > _TIMED_OUT or any(line.startswith(_HANG) for line in result.tail)


class Finished:
    """The parts of a measurement that are done, kept in a file of JSON lines (or in memory only).

    The first line names the settings, each further one is a part. `take` makes something of a part;
    it raises ValueError, KeyError or TypeError where the part is damaged, which is then left out.
    """

    def __init__(
        self, path: Path | None, kind: str, settings: Mapping[str, Any],
        take: Callable[[Any], None], *, fresh: bool = False,
    ) -> None:  # fmt: skip
        """Read what `path` has, or make it.

        Raises:
            AutoDDLError: it is of other settings, not such a file, or cannot be written.
        """
        self.path, self._take = path, take
        self.resumed = 0
        if path is None:
            return
        head = {"format": f"autoddl.{kind}.partial", "settings": json.loads(json.dumps(settings))}
        try:
            if fresh or not path.exists() or not path.read_bytes().strip():
                path.write_text(json.dumps(head) + "\n")
            else:
                self._read(path, head)
        except OSError as error:
            raise self._trouble(error) from None

    def add(self, part: Any) -> None:
        """Take a part and keep it.

        Raises:
            AutoDDLError: the file cannot be written.
        """
        self._take(part)
        try:
            if self.path is not None:
                store.append(self.path, part)
        except OSError as error:
            raise self._trouble(error) from None

    def remove(self) -> None:
        """Delete the file: all is measured and written."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _read(self, path: Path, head: Mapping[str, Any]) -> None:
        values, damaged = store.read(path)
        self._check(values.pop(1, None), head)
        for number, value in values.items():
            try:
                self._take(value)
                self.resumed += 1
            except (ValueError, KeyError, TypeError):
                damaged.append(number)
        for number in damaged:
            logger.warning(
                "%s: line %d is truncated or damaged and is left out; its part is measured again",
                path, number,
            )  # fmt: skip

    def _check(self, seen: Any, head: Mapping[str, Any]) -> None:
        if not isinstance(seen, dict) or seen.get("format") != head["format"]:
            raise AutoDDLError(f"{self.path}: not a file of partial results; {ANEW}")
        old, new = seen.get("settings") or {}, head["settings"]
        other = [f"{k} {old.get(k)!r} instead of {v!r}" for k, v in new.items() if old.get(k) != v]
        if other:
            raise AutoDDLError(
                f"{self.path}: partial results of other settings: {', '.join(other)}; "
                f"give the same ones to go on, or {ANEW}"
            )

    def _trouble(self, error: OSError) -> AutoDDLError:
        return AutoDDLError(
            f"partial results {self.path}: {error.strerror}; make room there or give another output "
            "with -o"
        )


def check_measurable(engine: Engine, timeout_s: float | None) -> None:
    """Raise AutoDDLError where nothing can be measured."""
    if not engine.installed():
        raise AutoDDLError(
            "OneFlow is not installed, so nothing can be measured; install it with "
            "`pip install 'autoddl[oneflow]'` (CPython 3.10)"
        )
    if timeout_s is not None and not timeout_s > 0:
        raise AutoDDLError(f"timeout: got {timeout_s}; allowed are more than 0 seconds")


def cpu_name() -> str:
    """Return the model of this machine's processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "CPU"


def memory(key: str) -> int:
    """Return a number of /proc/meminfo in bytes."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise AutoDDLError(f"memory: /proc/meminfo lacks {key}; a Linux machine is needed to measure")
