"""A testbed that is there: run ranks on its nodes, end them together, remove it."""

from __future__ import annotations

import codecs
import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from autoddl.launch import ports
from autoddl.launch.job import LaunchJob, checked, describe
from autoddl.launch.launcher import LaunchResult
from autoddl.launch.output import last_lines
from autoddl.launch.processes import RankProcesses
from autoddl.launch.signals import caught_signals
from autoddl.launch.supervise import last_text, make_log_dir
from autoddl.launch.terminal import Terminal
from experiments.testbed import network, node
from experiments.testbed.spec import TestbedError, TestbedSpec

_GRACE_S = 2.0  # of a node's launcher to its ranks
_GRACE_NODES_S = 5.0  # ours to the launchers
_TAIL_LINES = 20
_EXIT_TIMED_OUT = 124


@dataclass(frozen=True)
class TestbedResult(LaunchResult):
    """Say how the ranks of all nodes ended: as a launch does, rank by rank over all nodes.

    `failed_rank` is None also where it was the launcher of `failed_node` that failed.
    """

    __test__ = False

    failed_node: int | None = None


class TestbedRunError(TestbedError):
    """Report in one line a run on a testbed that did not succeed."""

    def __init__(self, result: TestbedResult) -> None:
        super().__init__(result.message)
        self.result = result


class Testbed:
    """Make a cluster of network namespaces in a ``with`` and run ranks on it.

    Leftovers of testbeds whose process was killed are removed first. While it is there, SIGTERM and
    SIGHUP end this process as an exception, so that it is removed then too.

    Args:
        nodes: how many; each has one link to a switch that joins them.
        ranks: on each node.
        rate: of each link in each direction, such as "500mbit", or bit/s.
        burst: what a link passes at once after it has been idle, such as "32kb", or bytes; by
            default the least that reaches the rate.

    Raises:
        TestbedError: a value is out of range, or this process may not make namespaces.
    """

    __test__ = False

    def __init__(
        self, *, nodes: int, ranks: int, rate: str | float, burst: str | int | None = None
    ) -> None:
        self.spec = TestbedSpec.parse(nodes=nodes, ranks=ranks, rate=rate, burst=burst)
        self._network: network.Namespaces | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Testbed:
        network.require()
        with contextlib.ExitStack() as stack:
            stack.enter_context(_signals_raise())
            network.clean()
            self._network = network.create(self.spec)
            stack.callback(self._delete)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _delete(self) -> None:
        assert self._network is not None
        with caught_signals() as caught:
            network.delete(self._network)
            self._network = None
        if caught:
            signal.raise_signal(caught[0])

    def inside(self, node: int, command: Sequence[str]) -> list[str]:
        """Give the command line that runs any ``command`` on a node, from 0."""
        if self._network is None:
            raise TestbedError("the testbed is not there; use it inside `with Testbed(…) as bed:`")
        return self._network.inside(node, command)

    def run(
        self,
        command: Sequence[str],
        *,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        log_dir: Path | None = None,
        stream_rank0: bool = True,
        check: bool = False,
    ) -> TestbedResult:
        """Run a Python script or module on every rank of every node; see ``launch``.

        The first rank that fails, the time limit or a signal ends the ranks of all nodes.

        Raises:
            LaunchArgumentError: nothing to run, or the script is missing.
            TestbedRunError: with ``check``, a rank failed or the time limit was reached.
        """
        self.inside(0, [])
        spec, port = self.spec, ports.pick_port()
        job = LaunchJob(
            tuple(command), spec.ranks, spec.nodes, master_port=port, timeout_s=timeout_s
        )
        checked(job)
        folder = make_log_dir(log_dir).resolve()
        options = {
            "nproc_per_node": spec.ranks,
            "nnodes": spec.nodes,
            "master_addr": spec.address(0),
            "master_port": port,
            "env": dict(env or {}),
            "log_dir": str(folder),
            "grace_s": _GRACE_S,
            "share_cores": 2 * spec.nodes * spec.ranks > len(os.sched_getaffinity(0)),
        }
        lines = []
        for k in range(spec.nodes):
            (folder / f"node{k}.json").unlink(missing_ok=True)
            for rank in range(k * spec.ranks, (k + 1) * spec.ranks):
                (folder / f"rank{rank}.log").unlink(missing_ok=True)
            mine = {**options, "node_rank": k, "stream_rank0": stream_rank0 and k == 0}
            line = node.command_line(mine, folder / f"node{k}.json", command)
            lines.append(self.inside(k, line))
        result = _follow(spec, lines, folder, timeout_s)
        if result.ok and log_dir is None:
            shutil.rmtree(folder, ignore_errors=True)
        if result.interrupted_by is not None:
            signal.raise_signal(result.interrupted_by)
        if check and not result.ok:
            raise TestbedRunError(result)
        return result


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP, where they would just kill us, into SystemExit."""
    previous = {}
    if threading.current_thread() is threading.main_thread():
        for signum in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(signum) is signal.SIG_DFL:
                previous[signum] = signal.signal(signum, _exit)
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


def _exit(signum: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + signum)


class _Node0Echo:
    """Pass on what node 0's launcher passes on, which is rank 0's output."""

    def __init__(self) -> None:
        self._terminal = Terminal()
        make = codecs.getincrementaldecoder("utf-8")
        self._decoders = {name: make(errors="replace") for name in ("stdout", "stderr")}

    def feed(self, node: int, stream: str, data: bytes) -> None:
        if node == 0:
            self._terminal.write(stream, self._decoders[stream].decode(data))


def _follow(
    spec: TestbedSpec, lines: Sequence[Sequence[str]], folder: Path, timeout_s: float | None
) -> TestbedResult:
    """Start the nodes' launchers and wait for them; end them all as soon as one fails."""
    begin_s = time.monotonic()
    timed_out = False
    with caught_signals() as caught, RankProcesses(_Node0Echo().feed) as nodes:
        for k, line in enumerate(lines):
            nodes.start(k, line, env=os.environ, log=folder / f"node{k}.log")
        while nodes.running and not caught and not any(nodes.ended.values()):
            nodes.turn()
            if timeout_s is not None and time.monotonic() - begin_s >= timeout_s:
                timed_out = bool(nodes.running)
                break
        failed = not timed_out and not caught and any(nodes.ended.values())
        own = tuple(nodes.ended) if failed else ()  # those that ended before we ended any
        nodes.end(_GRACE_NODES_S, hurry=lambda: len(caught) > 1)
    results = [node.read(folder / f"node{k}.json") for k in range(spec.nodes)]
    logs = [folder / f"rank{rank}.log" for rank in range(spec.world_size)]
    codes: list[int | None] = []
    for result in results:
        codes.extend(result.returncodes if result else (None,) * spec.ranks)
    exit_code, message, failed_node, failed_rank = 0, "", None, None
    tail: tuple[str, ...] = ()
    if failed:
        failed_node, failed_rank = _first_failure(results, own, nodes.ended)
        exit_code, message, tail = _explain(
            spec, (failed_node, failed_rank), nodes.ended[failed_node], folder, codes
        )
    elif timed_out:
        exit_code, message = _EXIT_TIMED_OUT, f"time limit of {timeout_s:g} s reached"
    elif caught:
        exit_code = 128 + caught[0]
        message = f"interrupted by {signal.Signals(caught[0]).name}"
    return TestbedResult(
        exit_code=exit_code,
        message=message,
        failed_node=failed_node,
        failed_rank=failed_rank,
        timed_out=timed_out,
        interrupted_by=caught[0] if exit_code and caught and not (failed or timed_out) else None,
        wall_s=time.monotonic() - begin_s,
        returncodes=tuple(codes),
        logs=tuple(last_text(log) if log.exists() else "" for log in logs),
        tail=tail,
        log_dir=folder,
    )


def _first_failure(
    results: Sequence[LaunchResult | None], own: Sequence[int], ended: Mapping[int, int]
) -> tuple[int, int | None]:
    """Name the node, and its rank, that failed first; other ranks fail soon after for lack of it."""
    seen = [
        (result.failed_at_s, k, result.failed_rank)
        for k, result in enumerate(results)
        if result is not None and result.failed_at_s is not None
    ]
    if seen:
        _, k, rank = min(seen)
        return k, rank
    return next(k for k in own if ended[k] != 0), None


def _explain(
    spec: TestbedSpec,
    failed: tuple[int, int | None],
    launcher_code: int,
    folder: Path,
    codes: Sequence[int | None],
) -> tuple[int, str, tuple[str, ...]]:
    """Give the exit code, the one-line message and the last lines of what failed."""
    k, rank = failed
    if rank is None:
        code, who, log = launcher_code, f"the launcher of node {k}", folder / f"node{k}.log"
    else:
        code = codes[rank] or launcher_code
        who, log = f"rank {rank} of {spec.world_size} on node {k}", folder / f"rank{rank}.log"
    tail = last_lines(last_text(log), _TAIL_LINES) if log.exists() else ()
    message = f"{who} {describe(code)}"
    if spec.nodes > 1:
        message += "; ended all nodes"
    return code if code > 0 else 128 - code, message, tail
