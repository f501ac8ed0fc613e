"""Start, watch and end the processes of the ranks on one node; stdlib only.

Each rank leads a session and process group of its own. A rank that has ended stays a zombie until
``end``: so its process id, which is the id of its group, cannot pass to a process that is not ours.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_GUARD = Path(__file__).with_name("guard.py")
_TURN_S = 0.05  # longest wait for an event, where nothing tells when it comes
_REAP_S = 2.0  # for the kernel to end killed processes, and for their last output

OnOutput = Callable[[int, str, bytes], None]
"""Called with the local rank, "stdout" or "stderr", and what it wrote there."""


@dataclass(frozen=True)
class _Pipe:
    local_rank: int
    stream: str


class RankProcesses:
    """Own the processes, pipes and log files of the ranks on this node; use it in a ``with``."""

    def __init__(self, on_output: OnOutput) -> None:
        self.ended: dict[int, int] = {}
        """Local rank to return code (negative: killed by that signal), in the order they ended."""
        self._on_output = on_output
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._logs: dict[int, BinaryIO] = {}
        self._selector = selectors.DefaultSelector()
        self._without_exit_event: set[int] = set()
        self._over = False
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_GUARD)], stdin=subprocess.PIPE, start_new_session=True
        )

    def __enter__(self) -> RankProcesses:
        return self

    def __exit__(self, *error: object) -> None:
        self.end(grace_s=0.0)

    def pid(self, local_rank: int) -> int:
        return self._processes[local_rank].pid

    @property
    def started(self) -> tuple[int, ...]:
        return tuple(self._processes)

    @property
    def running(self) -> tuple[int, ...]:
        return tuple(rank for rank in self._processes if rank not in self.ended)

    def start(
        self, local_rank: int, argv: Sequence[str], *, env: Mapping[str, str], log: Path
    ) -> None:
        """Start a rank; its stdout and stderr go to ``log`` and to ``on_output``."""
        self._logs[local_rank] = log.open("wb")
        process = subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # Only rank 0's output is passed on, stream by stream; elsewhere the order matters more.
            stderr=subprocess.PIPE if local_rank == 0 else subprocess.STDOUT,
            start_new_session=True,
        )
        self._processes[local_rank] = process
        self._tell_guard(str(process.pid))
        for stream in ("stdout", "stderr"):
            pipe = getattr(process, stream)
            if pipe is not None:
                self._selector.register(pipe, selectors.EVENT_READ, _Pipe(local_rank, stream))
        try:  # an event comes at once, and events come in the order in which the ranks end
            exit_fd = os.pidfd_open(process.pid)
        except (AttributeError, OSError):
            self._without_exit_event.add(local_rank)
        else:
            self._selector.register(exit_fd, selectors.EVENT_READ, local_rank)

    def turn(self, wait_s: float = _TURN_S) -> bool:
        """Wait for events, at most ``wait_s`` seconds; take output and note ranks that ended.

        Returns:
            Whether there was any event.
        """
        events = self._selector.select(wait_s)
        for key, _ in events:
            if isinstance(key.data, _Pipe):
                self._read(key.fd, key.data)
            else:
                self._selector.unregister(key.fd)
                os.close(key.fd)
                self._note_end(key.data)
        for local_rank in self._without_exit_event.difference(self.ended):
            self._note_end(local_rank)
        return bool(events)

    def end(self, grace_s: float, hurry: Callable[[], bool] = lambda: False) -> None:
        """End every group: SIGTERM, and SIGKILL after ``grace_s`` seconds or when ``hurry()``."""
        if self._over:
            return
        self._over = True
        try:
            self._signal(signal.SIGTERM)
            deadline = time.monotonic() + grace_s
            while self._anything_left() and time.monotonic() < deadline and not hurry():
                self.turn(0.02)
        finally:
            self._signal(signal.SIGKILL)
            self._collect()

    def _collect(self) -> None:
        """Reap the ranks, take their last output, close all files and dismiss the guard."""
        deadline = time.monotonic() + _REAP_S
        while (self.running or self.turn(0.0)) and time.monotonic() < deadline:
            self.turn(0.02)
        for key in list(self._selector.get_map().values()):
            if not isinstance(key.data, _Pipe):
                os.close(key.fd)
        self._selector.close()
        for local_rank, process in self._processes.items():
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
            if local_rank in self.ended:
                process.wait()
        for log in self._logs.values():
            log.close()
        self._tell_guard("done")
        self._guard.communicate()

    def _read(self, fd: int, pipe: _Pipe) -> None:
        data = os.read(fd, 1 << 16)
        if not data:
            self._selector.unregister(fd)
            return
        self._logs[pipe.local_rank].write(data)
        self._logs[pipe.local_rank].flush()
        self._on_output(pipe.local_rank, pipe.stream, data)

    def _note_end(self, local_rank: int) -> None:
        """Note how the rank ended, if it has; leave it a zombie."""
        pid = self._processes[local_rank].pid
        status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if status is not None and local_rank not in self.ended:
            exited = status.si_code == os.CLD_EXITED
            self.ended[local_rank] = status.si_status if exited else -status.si_status

    def _signal(self, signum: signal.Signals) -> None:
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signum)

    def _anything_left(self) -> bool:
        groups = {process.pid for process in self._processes.values()}
        return bool(self.running or members_alive(groups))

    def _tell_guard(self, line: str) -> None:
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # somebody killed it; the ranks can go on
            self._guard.stdin.write(f"{line}\n".encode())
            self._guard.stdin.flush()


def members_alive(groups: Collection[int]) -> list[int]:
    """List the processes of these process groups that are alive, zombies left out; Linux only."""
    members = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it may have ended meanwhile
            # pid (name, which may contain anything) state parent group …
            text = Path("/proc", name, "stat").read_text(errors="replace")
            state, _, group = text.rpartition(") ")[2].split()[:3]
            if int(group) in groups and state not in "ZX":
                members.append(int(name))
    return members
