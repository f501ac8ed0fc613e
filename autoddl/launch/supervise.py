"""Run a launch from its first rank to its result; stdlib only."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from autoddl.errors import shown, why
from autoddl.launch import ports
from autoddl.launch.job import LaunchArgumentError, LaunchJob, LaunchResult, describe
from autoddl.launch.output import Terminal, last_lines
from autoddl.launch.processes import RankProcesses
from autoddl.launch.progress import PROGRESS, Progress
from autoddl.launch.silence import SilenceWatch, on_stderr, state

_TAIL_LINES = 20
_LOG_BYTES = 1 << 20  # of each rank's output kept in a result
_EXIT_TIMED_OUT = 124  # as the shell's `timeout` has it
# OneFlow's ranks retry only every 10 s if rank 0 does not listen yet, so they start after it. A
# script that never opens the port must not wait long; rank 0 of another node may be started later.
_START_WAIT_S = 3.0
_START_WAIT_OTHER_NODE_S = 60.0
_POLL_S = 0.05
_POLL_PORT_S = 0.02


@dataclass(frozen=True)
class _Verdict:
    """Say why a launch is over; by default because every rank ended with 0."""

    failed: int | None = None  # local rank
    failed_at_s: float | None = None
    timed_out: bool = False
    interrupted_by: int | None = None
    still_running: tuple[int, ...] = ()  # local ranks


def supervise(
    job: LaunchJob,
    on_turn: Callable[[], None] = lambda: None,
    tell: Callable[[str], None] = on_stderr,
) -> LaunchResult:
    """Start the ranks of a checked job and wait for them; end them all as soon as one fails.

    ``on_turn`` is called many times a second while the ranks run; what it raises ends them. ``tell``
    gets a line when a rank is silent (silence.py).
    """
    begin_s = monotonic()
    log_dir = _make_log_dir(job.log_dir)
    terminal = Terminal(shown=job.stream_rank0)
    with (
        caught_signals() as caught,
        Progress.make(job.nproc_per_node) as progress,
        RankProcesses(terminal.feed) as ranks,
    ):
        watch = _Watch(job, ranks, progress, log_dir, caught)
        verdict = watch.until_over(begin_s, terminal.flush, on_turn, tell)
        if verdict.failed not in (None, 0):
            terminal.stop()
        ranks.end(job.grace_s, hurry=lambda: len(caught) > 1)
        terminal.flush()
    return _result(job, verdict, ranks, log_dir, monotonic() - begin_s)


class _Watch:
    """Start the ranks in order and follow them."""

    def __init__(
        self,
        job: LaunchJob,
        ranks: RankProcesses,
        progress: Progress,
        log_dir: Path,
        caught: list[int],
    ) -> None:
        self._job, self._ranks, self._progress = job, ranks, progress
        self._log_dir, self._caught = log_dir, caught
        self._waiting = list(range(job.nproc_per_node))

    def until_over(
        self,
        begin_s: float,
        on_idle: Callable[[], None],
        on_turn: Callable[[], None],
        tell: Callable[[str], None],
    ) -> _Verdict:
        """Return when every rank has ended or there is a reason to end them."""
        numbers = [self._job.rank(rank) for rank in range(self._job.nproc_per_node)]
        silence = SilenceWatch(self._job.silent_s, numbers, begin_s)
        if self._job.node_rank == 0:
            self._start_next()
        while True:
            now_s = monotonic()
            waited_s = now_s - begin_s
            if self._waiting and self._may_start_others(waited_s):
                while self._waiting:
                    self._start_next()
            if not self._ranks.turn(_POLL_PORT_S if self._waiting else _POLL_S):
                on_idle()
            on_turn()
            if silence.due(now_s):
                states = {rank: state(self._ranks.pid(rank)) for rank in self._ranks.running}
                for line in silence.look(now_s, self._progress.places(), states):
                    tell(line)
            verdict = self._verdict(waited_s)
            if verdict is not None:
                return verdict

    def _verdict(self, waited_s: float) -> _Verdict | None:
        running = self._ranks.running
        if self._caught:
            return _Verdict(interrupted_by=self._caught[0], still_running=running)
        failed = next((rank for rank, code in self._ranks.ended.items() if code != 0), None)
        if failed is not None:
            return _Verdict(failed, monotonic(), still_running=running)
        if not self._waiting and not running:
            return _Verdict()
        if self._job.timeout_s is not None and waited_s >= self._job.timeout_s:
            return _Verdict(timed_out=True, still_running=running)
        return None

    def _may_start_others(self, waited_s: float) -> bool:
        port = self._job.master_port
        assert port is not None
        if self._job.node_rank > 0:
            return waited_s >= _START_WAIT_OTHER_NODE_S or ports.accepts(
                self._job.master_addr, port
            )
        if 0 in self._ranks.ended or waited_s >= _START_WAIT_S:
            return True
        return ports.listens(port, self._ranks.pid(0))

    def _start_next(self) -> None:
        local_rank = self._waiting.pop(0)
        environment = self._job.environment(local_rank, os.environ)
        environment[PROGRESS] = self._progress.variable(local_rank)
        log = self._job.log_path(self._log_dir, local_rank)
        self._ranks.start(local_rank, self._job.argv(local_rank), env=environment, log=log)


def _make_log_dir(wanted: Path | None) -> Path:
    """Make the folder for logs, a temporary one if none is wanted.

    Raises:
        LaunchArgumentError: nothing can be written there.
    """
    if wanted is None:
        return Path(tempfile.mkdtemp(prefix="autoddl-run-"))
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=wanted).close()
    except (OSError, ValueError) as error:  # ValueError: NUL in the name
        raise LaunchArgumentError(
            f"log_dir: cannot write to {shown(str(wanted))} ({why(error)}); give another folder"
        ) from error
    return wanted


def _result(
    job: LaunchJob, verdict: _Verdict, ranks: RankProcesses, log_dir: Path, wall_s: float
) -> LaunchResult:
    local_ranks = range(job.nproc_per_node)
    logs = tuple(
        _last_text(job.log_path(log_dir, rank)) if rank in ranks.started else ""
        for rank in local_ranks
    )
    message, exit_code = _explain(job, verdict, ranks.ended)
    keep = job.log_dir is not None or exit_code != 0
    if not keep:
        shutil.rmtree(log_dir, ignore_errors=True)
    return LaunchResult(
        returncodes=tuple(ranks.ended.get(rank) for rank in local_ranks),
        failed_rank=None if verdict.failed is None else job.rank(verdict.failed),
        failed_at_s=verdict.failed_at_s,
        timed_out=verdict.timed_out,
        interrupted_by=verdict.interrupted_by,
        wall_s=wall_s,
        logs=logs,
        log_dir=log_dir if keep else None,
        tail=() if verdict.failed is None else last_lines(logs[verdict.failed], _TAIL_LINES),
        message=message,
        exit_code=exit_code,
    )


def _explain(job: LaunchJob, verdict: _Verdict, ended: dict[int, int]) -> tuple[str, int]:
    """Give the one-line message and the exit code of a launch."""
    ranks = ", ".join(str(job.rank(rank)) for rank in verdict.still_running)
    also = f"; ended the ranks still running: {ranks}" if ranks else ""
    if verdict.failed is not None:
        code = ended[verdict.failed]
        who = job.described(verdict.failed)
        return f"{who} {describe(code)}{also}", code if code > 0 else 128 - code
    if verdict.timed_out:
        return f"time limit of {job.timeout_s:g} s reached{also}", _EXIT_TIMED_OUT
    if verdict.interrupted_by is not None:
        name = signal.Signals(verdict.interrupted_by).name
        return f"interrupted by {name}{also}", 128 + verdict.interrupted_by
    return "", 0


def _last_text(log: Path) -> str:
    """Give the last MiB of a log."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_BYTES))
        return file.read().decode("utf-8", errors="replace")


@contextlib.contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP instead of dying; those we were told to ignore stay so."""
    caught: list[int] = []
    previous = {}
    if threading.current_thread() is threading.main_thread():  # no other may set handlers
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(signum) not in (signal.SIG_IGN, None):
                previous[signum] = signal.signal(signum, lambda got, _: caught.append(got))
    try:
        yield caught
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
