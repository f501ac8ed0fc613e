"""Start the ranks that time the ops of training steps, and collect what they found.

What one source gave is kept in a file of JSON lines as soon as all ranks have timed it, so that a
run that was interrupted goes on where it ended.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import autoddl
from autoddl.engine.launch import LaunchError, launch
from autoddl.errors import AutoDDLError
from autoddl.perfmodel.kernels import Timed

logger = logging.getLogger(__name__)

OnProgress = Callable[[str, float], None]
"""Called with what is being measured and the share of the whole that is done, 0 to 1."""

PARTIAL_FORMAT = "autoddl.fit_device.partial"
_VERSION = 1
# OneFlow 0.9 puts a call of an nn.Graph into its queue after having started it. Where the call ends
# first, the rank crashes or hangs: seen once in some thousand calls of a few ms on crowded cores.
_ATTEMPTS = 3
_TIMED_OUT = 124  # exit code of a launch; above are those of ranks that a signal killed
_SOURCES = {True: 5, False: 14}  # of engine.device_sources; for the progress only
_SOURCE_S = {True: 1.5, False: 3.0}  # of timed calls for each source
_LIMIT_S = {True: 240.0, False: 900.0}


@dataclass(frozen=True)
class Setting:
    """What is measured: results of another setting do not go together with it."""

    ranks: int
    quick: bool = False
    ops: tuple[str, ...] = ()


def measure_ops(
    setting: Setting,
    *,
    partial: Path | None = None,
    progress: OnProgress | None = None,
    timeout_s: float | None = None,
) -> list[Timed]:
    """Run `setting.ranks` OneFlow ranks on this machine and return every op that they timed.

    Args:
        setting: ranks, and what to time.
        partial: where finished sources are kept, and taken from if there are any.
        progress: is told how far it is, from another thread.
        timeout_s: seconds for everything; by default several times what it takes.

    Raises:
        LaunchError: a rank failed (three times, if the engine's race killed it) or the time is up.
        AutoDDLError: no OneFlow, or `partial` is of another setting or damaged.
    """
    if find_spec("oneflow") is None:
        raise AutoDDLError(
            "OneFlow is not installed, so nothing can be measured; install it with "
            "`pip install 'autoddl[oneflow]'` (CPython 3.10)"
        )
    store = _Store(partial, setting)
    end_s = time.monotonic() + (timeout_s or _LIMIT_S[setting.quick])
    for attempt in range(_ATTEMPTS):
        with tempfile.TemporaryDirectory(prefix="autoddl-") as name:
            folder = Path(name)
            task = {
                "quick": setting.quick,
                "ops": list(setting.ops),
                "done": sorted(store.found),
                "seconds_per_source": _SOURCE_S[setting.quick],
            }
            (folder / "task.json").write_text(json.dumps(task))
            with _following(folder, store, progress):
                result = launch(
                    ["-m", "autoddl.engine.device_probe", name],
                    nproc_per_node=setting.ranks,
                    timeout_s=max(1.0, end_s - time.monotonic()),
                    env={"PYTHONPATH": _python_path()},
                    stream_rank0=False,
                )
        if result.ok:
            return [op for ops in store.found.values() for op in ops]
        if result.exit_code <= _TIMED_OUT or attempt == _ATTEMPTS - 1:
            break  # not the engine's race but an error that would come again
        logger.warning("%s; going on with the next source", result.message)
    raise LaunchError(result)


def _python_path() -> str:
    root = str(Path(autoddl.__file__).parent.parent)
    return os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))


class _Store:
    """The ops of finished sources, in memory and as JSON lines in a file."""

    def __init__(self, path: Path | None, setting: Setting) -> None:
        self.path = path
        self.setting = setting
        self.found: dict[str, list[Timed]] = {}
        self._head = {"format": PARTIAL_FORMAT, "version": _VERSION, **asdict(setting)}
        self._head["ops"] = list(setting.ops)
        if path is not None and path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        lines = path.read_text(errors="replace").splitlines()
        head = _parsed(lines[0]) if lines else None
        if head != self._head:
            raise AutoDDLError(
                f"{path}: what it holds was measured with other options; "
                "delete it, or repeat the command that wrote it"
            )
        entries = [_parsed(line) for line in lines[1:]]
        for entry in filter(None, entries):
            self.found[entry["source"]] = [Timed(**op) for op in entry["ops"]]
        if None in entries:
            logger.warning("%s: a damaged line is left out and measured again", path)
            path.unlink()
            self._write(self.found)

    def add(self, source: str, ops: list[Timed]) -> None:
        """Keep the ops of a source."""
        self.found[source] = ops
        self._write({source: ops})

    def _write(self, found: Mapping[str, list[Timed]]) -> None:
        if self.path is None:
            return
        lines: list[Any] = [] if self.path.exists() else [self._head]
        lines += [{"source": s, "ops": [asdict(op) for op in ops]} for s, ops in found.items()]
        with self.path.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def merged(ranks: Sequence[Mapping[str, Any]]) -> list[Timed]:
    """Return the ops of one source from what each rank found (device_probe.time_source).

    An op takes the mean of all ranks, times how much longer the slowest rank of a call takes than the
    mean one: the ranks of a real step wait for each other.
    """
    calls_s = list(zip(*(rank["calls_s"] for rank in ranks), strict=True))
    wait = sum(map(max, calls_s)) * len(ranks) / sum(map(sum, calls_s)) if calls_s else 1.0
    ops = []
    for records in zip(*(rank["records"] for rank in ranks), strict=True):
        values = {key: records[0][key] for key in Timed.__dataclass_fields__}
        mean_s = sum(r["seconds"] for r in records) / len(records)
        ops.append(Timed(**values | {"seconds": mean_s * wait}))
    return ops


@contextlib.contextmanager
def _following(folder: Path, store: _Store, progress: OnProgress | None) -> Iterator[None]:
    """Store what all ranks have finished and tell how far they are."""
    over = threading.Event()
    total = _SOURCES[store.setting.quick]

    def collect() -> None:
        files = [folder / f"rank{rank}.jsonl" for rank in range(store.setting.ranks)]
        if not all(file.exists() for file in files):
            return
        lines = [[e for e in map(_parsed, f.read_text().splitlines()) if e] for f in files]
        for entries in zip(*lines, strict=False):
            if entries[0]["source"] not in store.found:
                store.add(entries[0]["source"], merged(entries))

    def follow() -> None:
        seen = -1
        while not over.wait(0.3):
            collect()
            if progress is not None and len(store.found) != seen:
                seen = len(store.found)
                text = f"timed {list(store.found)[-1]}" if seen else "starting the ranks"
                progress(text, min(1.0, seen / total))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        collect()
