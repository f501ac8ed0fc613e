"""Values of the launcher: what to start, how it ended, what can be wrong with it; stdlib only."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autoddl.errors import AutoDDLError, printable, shown, why
from autoddl.launch import ports

MOST_RANKS, MOST_NODES = 1 << 10, 1 << 16  # more is a slip of the finger, and would all be started
KIND = "AUTODDL_KIND"  # tells ranks of what kind their node is
_RANK_MAIN = Path(__file__).with_name("main.py")


class LaunchArgumentError(AutoDDLError):
    """Report a launch that cannot be started as asked."""


@dataclass(frozen=True)
class LaunchJob:
    """Say what to start on this node; see ``launch``."""

    command: tuple[str, ...]
    nproc_per_node: int
    nnodes: int = 1
    node_rank: int = 0
    """This node, from 0."""
    master_addr: str = "127.0.0.1"
    """Where the other nodes reach node 0."""
    master_port: int | None = None
    """Where rank 0 listens; None (one node only) picks a free one."""
    timeout_s: float | None = None
    """Seconds after which all ranks are ended."""
    env: tuple[tuple[str, str], ...] = ()
    log_dir: Path | None = None
    """Folder for what each rank writes, as rank0.log and so on; by default removed if all goes well."""
    stream_rank0: bool = True
    """Pass rank 0's output on to our stdout and stderr, without the engine's noise."""
    grace_s: float = 3.0
    """Seconds between SIGTERM and SIGKILL when ranks are ended."""
    silent_s: float = 60.0
    """Seconds after which a line on stderr names a rank that others wait for."""
    share_cores: bool | None = None
    """Bind each rank to one core, in turn, and let OneFlow's scheduler thread sleep instead of spin while
    it waits (waiting.py); None: where there are fewer than two cores a rank."""

    def core(self, local_rank: int) -> int | None:
        """Give the core that a rank is bound to where ranks share cores, else None.

        Bound to one core, ranks take equal parts; the system would move them about, so that at times
        three work on one core and one on another. A rank keeps two threads busy: its kernels', and
        the scheduler, which sleeps on shared cores while it waits (waiting.py).
        """
        cores = sorted(os.sched_getaffinity(0))
        shared = 2 * self.nproc_per_node > len(cores)
        if not (shared if self.share_cores is None else self.share_cores):
            return None
        return cores[self.rank(local_rank) % len(cores)]

    @property
    def world_size(self) -> int:
        return self.nnodes * self.nproc_per_node

    def rank(self, local_rank: int) -> int:
        """Give the global rank of a rank of this node."""
        return self.node_rank * self.nproc_per_node + local_rank

    def described(self, local_rank: int) -> str:
        return f"rank {self.rank(local_rank)} of {self.world_size}"

    def argv(self, local_rank: int) -> list[str]:
        """Give the words that start a rank; see main.py."""
        core = self.core(local_rank)
        where = "any" if core is None else str(core)
        return [sys.executable, str(_RANK_MAIN), str(os.getpid()), where, *self.command]

    def log_path(self, log_dir: Path, local_rank: int) -> Path:
        return log_dir / f"rank{self.rank(local_rank)}.log"

    def environment(self, local_rank: int, outer: Mapping[str, str]) -> dict[str, str]:
        """Give a rank's environment: defaults, ``outer``, the job's, and what OneFlow reads."""
        return {
            "GLOG_minloglevel": "2",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            **outer,
            **dict(self.env),
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": str(self.master_port),
            "WORLD_SIZE": str(self.world_size),
            "RANK": str(self.rank(local_rank)),
            "LOCAL_RANK": str(local_rank),
        }


@dataclass(frozen=True)
class LaunchResult:
    """Say how the ranks of this node ended."""

    returncodes: tuple[int | None, ...]
    """Per local rank: exit code, minus the signal that killed it, or None if it never started."""
    failed_rank: int | None
    """The (global) rank that failed first by itself."""
    timed_out: bool
    interrupted_by: int | None
    """The signal to the launcher that ended the ranks."""
    wall_s: float
    logs: tuple[str, ...]
    """Per local rank: the last MiB of what it wrote."""
    log_dir: Path | None
    """Where the full logs are (rank0.log, …); None if they have been removed."""
    tail: tuple[str, ...]
    """The last lines of the failed rank, without the engine's noise."""
    message: str
    """What went wrong, in one line; empty if all went well."""
    exit_code: int
    """0; 124 (time limit); 128 + signal to us or to the failed rank; or the failed rank's code."""
    failed_at_s: float | None = None
    """When ``failed_rank`` was seen to have failed, on this machine's monotonic clock."""

    @property
    def ok(self) -> bool:
        """Say whether every rank of this node ended with 0 by itself."""
        return self.exit_code == 0

    def told(self, shown_rank: int) -> str:
        """Tell in some lines what went wrong; the output of ``shown_rank`` has been seen already."""
        lines = [self.message]
        if self.failed_rank == shown_rank:
            lines.append(f"rank {self.failed_rank}'s output is above")
        elif self.failed_rank is not None and not self.tail:
            lines.append(f"rank {self.failed_rank} wrote nothing")
        elif self.failed_rank is not None:
            lines += [f"---- last lines of rank {self.failed_rank} ----", *self.tail, "----"]
        return "\n".join([*lines, f"logs of all ranks: {printable(str(self.log_dir))}", ""])


class LaunchError(AutoDDLError):
    """Report in one line a launch that did not succeed."""

    def __init__(self, result: LaunchResult) -> None:
        super().__init__(result.message)
        self.result = result
        self.tail = result.tail


def checked(job: LaunchJob) -> LaunchJob:
    """Return ``job`` with its master port decided.

    Raises:
        LaunchArgumentError: it cannot be started on this machine.
    """
    _check_command(job.command)
    _check_ranks(job)
    _check_master(job.master_addr)
    limits = {"timeout": job.timeout_s, "grace_s": job.grace_s, "silent_s": job.silent_s}
    for name, seconds in limits.items():
        if seconds is not None and not seconds > 0:
            raise LaunchArgumentError(f"{name}: got {seconds}; allowed are seconds > 0")
    if job.master_port is None:
        return dataclasses.replace(job, master_port=ports.pick_port())
    return job


def _check_command(command: tuple[str, ...]) -> None:
    what = "give a Python script, or -m and a module, then its arguments"
    if not command or command == ("-m",):
        raise LaunchArgumentError(f"nothing to run: {what}")
    if any("\0" in word for word in command):
        raise LaunchArgumentError("command: a word contains NUL, which no program can be given")
    first = command[0]
    if first == "-m":
        return
    if first.startswith("-"):
        raise LaunchArgumentError(f"command: got {shown(first)} where a script should be; {what}")
    wrong = _wrong_script(Path(first))
    if wrong:
        raise LaunchArgumentError(
            f"script {shown(first, 100)} {wrong} in {shown(os.getcwd(), 100)}; {what}, without the "
            "interpreter"
        )
    if Path(first).resolve() == Path(sys.executable).resolve():
        raise LaunchArgumentError(
            f"command: starts with the interpreter {shown(first)}; {what} only"
        )


def _wrong_script(path: Path) -> str:
    """Return what is wrong with a script, which may be a pipe, too."""
    try:
        if path.is_dir():
            return "is a folder"
        return "" if path.exists() else "does not exist"
    except OSError:  # too long a name
        return "does not exist"


def _check_ranks(job: LaunchJob) -> None:
    for name, count, most in (
        ("nproc_per_node", job.nproc_per_node, MOST_RANKS), ("nnodes", job.nnodes, MOST_NODES),
    ):  # fmt: skip
        if not 1 <= count <= most:
            raise LaunchArgumentError(f"{name}: got {shown(count)}; allowed are 1 to {most}")
    if not 0 <= job.node_rank < job.nnodes:
        raise LaunchArgumentError(
            f"node_rank: got {shown(job.node_rank)}, allowed with nnodes={job.nnodes} are "
            f"0 to {job.nnodes - 1}; number the nodes from 0"
        )
    port = job.master_port
    if port is None:
        if job.nnodes > 1:
            raise LaunchArgumentError(
                f"master_port: missing with nnodes={job.nnodes}; "
                "give the same free port on every node"
            )
    elif not 1 <= port <= 65535:
        raise LaunchArgumentError(f"master_port: got {shown(port)}, allowed are 1 to 65535")
    elif job.node_rank == 0 and not ports.is_free(port):
        raise LaunchArgumentError(
            f"master_port: {port} is in use on this machine; give a free one"
            + (", or none to have one picked" if job.nnodes == 1 else " on every node")
        )


def _check_master(host: str) -> None:
    """Raise where a host is not known here, for which ranks would wait for ever."""
    try:
        socket.getaddrinfo(host or "?", None)
    except (OSError, ValueError) as error:  # ValueError: no name of a host at all
        raise LaunchArgumentError(
            f"master_addr: {shown(host, 100)} can't be resolved ({why(error, 'no name of a host')}); "
            "give a name or address under which this machine reaches node 0"
        ) from None


def describe(returncode: int) -> str:
    """Put a return code into words."""
    if returncode >= 0:
        return f"failed with exit code {returncode}"
    try:
        return f"was killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was killed by signal {-returncode}"
