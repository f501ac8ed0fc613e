"""A testbed that is there: run ranks on its nodes, end them together, remove it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from autoddl.launch import launcher, ports
from autoddl.launch.job import LaunchError, LaunchJob, LaunchResult
from autoddl.launch.signals import caught_signals
from experiments.testbed import network
from experiments.testbed.spec import TestbedError, TestbedSpec


@dataclass(frozen=True)
class _AllNodes(LaunchJob):
    """The ranks of all nodes as one launch, each started inside its node."""

    bed: Testbed | None = None

    def _node(self, local_rank: int) -> tuple[int, int]:
        """Give a rank's node and its number there."""
        assert self.bed is not None
        return divmod(local_rank, self.bed.spec.ranks)

    def described(self, local_rank: int) -> str:
        return f"{super().described(local_rank)} on node {self._node(local_rank)[0]}"

    def argv(self, local_rank: int) -> list[str]:
        assert self.bed is not None
        return self.bed.inside(self._node(local_rank)[0], super().argv(local_rank))

    def environment(self, local_rank: int, outer: Mapping[str, str]) -> dict[str, str]:
        own = {"LOCAL_RANK": str(self._node(local_rank)[1])}
        return super().environment(local_rank, outer) | own


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
    ) -> LaunchResult:
        """Run a Python script or module on every rank of every node; see ``launch``.

        The first rank that fails, the time limit or a signal ends the ranks of all nodes.

        Raises:
            LaunchArgumentError: nothing to run, or the script is missing.
            LaunchError: with ``check``, a rank failed or the time limit was reached.
        """
        self.inside(0, [])
        result = launcher.run(
            _AllNodes(
                tuple(command),
                self.spec.world_size,
                master_addr=self.spec.address(0),
                master_port=ports.pick_port(),
                timeout_s=timeout_s,
                env=tuple((env or {}).items()),
                log_dir=log_dir,
                stream_rank0=stream_rank0,
                bed=self,
            )
        )
        if check and not result.ok:
            raise LaunchError(result)
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
