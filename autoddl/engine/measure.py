"""Measure this machine's ranks and fit their profile; the library behind autoddl.fit_network.

`engine.collectives` says what is timed. Group sizes are the divisors of the number of ranks; each
is measured with all groups of that size at work at once, and the device with all ranks at work.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import autoddl
from autoddl.engine.launch import LaunchError, launch
from autoddl.errors import AutoDDLError
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.samples import device_of, links_of, points_of
from autoddl.sbp.boxing import COLLECTIVES

logger = logging.getLogger(__name__)

OnProgress = Callable[[str, float], None]
"""Called with what is being measured and the share of the whole that is done, 0 to 1."""

LEVEL = "gpu"
MODES = ("graph", "eager")
QUICK_SIZES = (1 << 14, 1 << 18, 1 << 22)
SIZES = (1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 21, 1 << 22, 1 << 24)
_QUICK_REPETITIONS, _REPETITIONS = 15, 15
_QUICK_CASE_S, _CASE_S = 4.0, 20.0  # default time limit for each case, several times what it takes
_QUICK_STEPS, _MOST_STEPS = 8, 12  # boxings in a chain; compiling it takes most of the time
_CHAIN_BYTES = 16 << 20  # short chains of long messages: OneFlow never frees a graph's buffers
_BUFFERS_PER_STEP = 8  # messages that one step of a chain and of its twin hold
_DEVICE_CASES = 7  # that engine.device_chains has; for the progress only
# OneFlow 0.9 puts a call of an nn.Graph into its queue after having started it. Where the call ends
# first, the rank crashes or hangs: seen once in some thousand calls of a few ms on crowded cores.
_ATTEMPTS = 2
_TIMED_OUT = 124  # exit code of a launch; above are those of ranks that a signal killed


@dataclass(frozen=True)
class Case:
    """One chain of engine.collectives; `size_bytes` is the n of perfmodel.collectives."""

    collective: str
    group_size: int
    size_bytes: int
    most_steps: int = _MOST_STEPS

    @property
    def steps(self) -> int:
        """Return how many boxings the chain has, an even number."""
        return max(2, min(self.most_steps, _CHAIN_BYTES // self.size_bytes // 2 * 2))

    @property
    def memory_bytes(self) -> int:
        """Return about how much memory the case takes on each rank."""
        return _BUFFERS_PER_STEP * self.steps * self.size_bytes


def measure(
    nproc_per_node: int,
    *,
    quick: bool = False,
    mode: str | None = None,
    progress: OnProgress | None = None,
    timeout_s: float | None = None,
    name: str = "measured",
) -> Profile:
    """Run `nproc_per_node` OneFlow ranks on this machine's CPU and return their profile.

    Args:
        nproc_per_node: ranks; one rank gives a profile without links.
        quick: fewer message sizes and repetitions, half a minute on 4 ranks.
        mode: "graph" measures boxing inside nn.Graph, as plans use it, "eager" that of tensors. The
            default is "graph", but "eager" with `quick`: compiling a graph per message size takes
            longer than all else, and eager boxing ranks plans in the same way.
        progress: is told how far it is, from another thread.
        timeout_s: seconds for everything; by default several times what it takes. Half of it
            has passed when ranks that hang are started once more.
        name: of the profile.

    Raises:
        LaunchError: a rank failed (twice), or the time limit was reached.
        AutoDDLError: bad arguments, no OneFlow, or too much noise to fit anything.
    """
    mode = mode or ("eager" if quick else "graph")
    _check(nproc_per_node, mode, timeout_s)
    cases = (
        schedule(nproc_per_node, QUICK_SIZES, most_steps=_QUICK_STEPS)
        if quick
        else schedule(nproc_per_node, SIZES)
    )
    count = len(cases) + _DEVICE_CASES
    limit_s = count * (_QUICK_CASE_S if quick else _CASE_S) if timeout_s is None else timeout_s
    end_s = time.monotonic() + limit_s
    batches = pack(cases, memory_bytes=_memory("MemAvailable") // 2 // nproc_per_node)
    meter = _Meter(progress, count)
    links: list[list[Any]] = [[] for _ in range(nproc_per_node)]
    device: list[Any] = []
    for batch in batches:
        last = batch is batches[-1]
        task = {
            "mode": mode,
            "repetitions": _QUICK_REPETITIONS if quick else _REPETITIONS,
            "cases": [_task_case(case) for case in batch],
            "device": last,
        }
        results = _run(nproc_per_node, task, meter, end_s)
        for collected, result in zip(links, results, strict=True):
            collected.extend(result["links"])
        device = [result["device"] for result in results]
    cores = len(os.sched_getaffinity(0))
    return Profile(
        name=name,
        source=(
            "measured with python -m autoddl.fit_network"
            + (" --quick" if quick else "")
            + f" --mode {mode}"
            + f" on {nproc_per_node} CPU ranks, {cores} cores, loopback"
        ),
        kind="measured",
        device_type="cpu",
        levels=(LEVEL,),
        links=links_of(points_of(links, LEVEL)),
        device=device_of(
            device,
            name=f"{_cpu_name()}, one of {nproc_per_node} ranks on {cores} cores",
            memory_bytes=_memory("MemTotal") // nproc_per_node,
        ),
    )


def _check(nproc_per_node: int, mode: str, timeout_s: float | None) -> None:
    if nproc_per_node < 1:
        raise AutoDDLError(f"nproc_per_node: got {nproc_per_node}; allowed are 1 rank and more")
    if mode not in MODES:
        raise AutoDDLError(f"mode: got {mode!r}; allowed are {', '.join(MODES)}")
    if timeout_s is not None and not timeout_s > 0:
        raise AutoDDLError(f"timeout: got {timeout_s}; allowed are more than 0 seconds")
    if find_spec("oneflow") is None:
        raise AutoDDLError(
            "OneFlow is not installed, so nothing can be measured; install it with "
            "`pip install 'autoddl[oneflow]'` (CPython 3.10)"
        )


def _task_case(case: Case) -> dict[str, Any]:
    values = asdict(case)
    del values["most_steps"]
    return {**values, "steps": case.steps}


def schedule(ranks: int, sizes: Sequence[int], *, most_steps: int = _MOST_STEPS) -> list[Case]:
    """Return every collective over every group size p > 1 that divides `ranks`, in every size."""
    groups = [p for p in range(ranks, 1, -1) if ranks % p == 0]
    return [Case(c, p, size, most_steps) for p in groups for c in COLLECTIVES for size in sizes]


def pack(cases: Sequence[Case], *, memory_bytes: int) -> list[list[Case]]:
    """Split the cases into batches whose ranks need at most `memory_bytes` each (or one case).

    A batch is one launch: only ending a process frees the buffers of its graphs.
    """
    batches: list[list[Case]] = [[]]
    used = 0
    for case in cases:
        if batches[-1] and used + case.memory_bytes > memory_bytes:
            batches.append([])
            used = 0
        batches[-1].append(case)
        used += case.memory_bytes
    return batches


class _Meter:
    """Add up what is done over all launches and tell it."""

    def __init__(self, progress: OnProgress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._before = 0

    def show(self, text: str, done: int) -> None:
        """Tell that `done` cases of the present launch are done."""
        if self._progress is not None:
            self._progress(text, min(1.0, (self._before + done) / self._total))

    def close(self, done: int) -> None:
        """End a launch that did `done` cases."""
        self._before += done


def _run(ranks: int, task: dict[str, Any], meter: _Meter, end_s: float) -> list[dict[str, Any]]:
    """Launch one batch, again if a rank crashed or hung, and return what each rank wrote."""
    root = str(Path(autoddl.__file__).parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    for attempt in range(_ATTEMPTS):
        with tempfile.TemporaryDirectory(prefix="autoddl-") as name:
            folder = Path(name)
            (folder / "task.json").write_text(json.dumps(task))
            with _following(folder / "progress", meter):
                result = launch(
                    ["-m", "autoddl.engine.collectives", name],
                    nproc_per_node=ranks,
                    timeout_s=max(0.0, end_s - time.monotonic()) / (_ATTEMPTS - attempt),
                    env={"PYTHONPATH": path},
                    stream_rank0=False,
                )
            if result.ok:
                meter.close(len(task["cases"]))
                files = [folder / f"rank{rank}.json" for rank in range(ranks)]
                return [json.loads(file.read_text()) for file in files]
        if result.exit_code < _TIMED_OUT or attempt == _ATTEMPTS - 1:
            break  # not the engine's race but an error that would come again
        logger.warning("%s; trying once more", result.message)
    raise LaunchError(result)


@contextlib.contextmanager
def _following(file: Path, meter: _Meter) -> Iterator[None]:
    """Pass on the lines that rank 0 appends to `file`, one for each case that is done."""
    over = threading.Event()

    def follow() -> None:
        seen = -1
        while not over.wait(0.2):
            lines = file.read_text().splitlines() if file.exists() else []
            if len(lines) != seen:
                seen = len(lines)
                meter.show(lines[-1] if lines else "starting the ranks", seen)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _memory(key: str) -> int:
    """Return a number of /proc/meminfo in bytes."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise AutoDDLError(f"memory: /proc/meminfo lacks {key}; a Linux machine is needed to measure")


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "CPU"
