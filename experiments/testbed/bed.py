"""A testbed that is there: run ranks on its nodes, end them together, remove it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from autoddl.launch import launcher, ports
from autoddl.launch.job import LaunchError, LaunchJob, LaunchResult
from autoddl.launch.supervise import caught_signals
from experiments.testbed import network, quotas
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

    def core(self, local_rank: int) -> int | None:
        assert self.bed is not None
        cores = self.bed.cores
        return cores[local_rank] if cores else super().core(local_rank)

    def argv(self, local_rank: int) -> list[str]:
        assert self.bed is not None
        return self.bed.of_rank(*self._node(local_rank), super().argv(local_rank))

    def environment(self, local_rank: int, outer: Mapping[str, str]) -> dict[str, str]:
        own = {"LOCAL_RANK": str(self._node(local_rank)[1])}
        return super().environment(local_rank, outer) | own


class Testbed:
    """Make a cluster of network namespaces in a ``with`` and run ranks on it.

    Leftovers of testbeds whose process was killed are removed first. While it is there, SIGTERM and
    SIGHUP end this process as an exception, so that it is removed then too.

    The shape is what `TestbedSpec.parse` takes: nodes, ranks, rate, burst, cpu.

    Raises:
        TestbedError: a value is out of range, or this process may not make namespaces, or no shares.
    """

    __test__ = False

    def __init__(self, **shape: Any) -> None:
        self.spec = TestbedSpec.parse(**shape)
        self.cores: tuple[int, ...] = ()
        """Of each rank, where ranks have shares of cores."""
        if self.spec.cpu:
            usable = sorted(os.sched_getaffinity(0))
            self.cores = tuple(usable[core] for core in self.spec.packed(len(usable)))
        self._network: network.Namespaces | None = None
        self._quotas: quotas.Quotas | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Testbed:
        network.require()
        with contextlib.ExitStack() as stack:
            stack.enter_context(_signals_raise())
            network.clean()
            quotas.clean()
            self._network = network.create(self.spec)
            stack.callback(self._delete)
            if self.spec.cpu:
                self._quotas = quotas.create(self._shares(self._network.nodes))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _delete(self) -> None:
        assert self._network is not None
        with caught_signals() as caught:
            network.delete(self._network)
            self._network = None
            if self._quotas is not None:
                self._quotas.delete()
                self._quotas = None
        if caught:
            signal.raise_signal(caught[0])

    def _shares(self, names: Sequence[str]) -> dict[str, float]:
        """Give the share of each control group: one for each rank, and for what `inside` runs."""
        shares = dict[str, float]()
        for name, share in zip(names, self.spec.cpu, strict=True):
            shares[name] = share * self.spec.ranks
            shares |= {f"{name}r{rank}": share for rank in range(self.spec.ranks)}
        return shares

    def inside(self, node: int, command: Sequence[str]) -> list[str]:
        """Give the command line that runs any ``command`` on a node, from 0.

        It has the shares of all ranks of the node together, on the cores of these.
        """
        if not self.cores:
            return self._there(node, command)
        mine = self.cores[node * self.spec.ranks :][: self.spec.ranks]
        bound = ["taskset", "-c", ",".join(map(str, sorted(set(mine)))), *command]
        return self._there(node, bound, "")

    def of_rank(self, node: int, rank: int, command: Sequence[str]) -> list[str]:
        """Give the command line that runs a rank's ``command`` on a node, with that rank's share."""
        return self._there(node, command, f"r{rank}")

    def _there(self, node: int, command: Sequence[str], group: str = "") -> list[str]:
        if self._network is None:
            raise TestbedError("the testbed is not there; use it inside `with Testbed(…) as bed:`")
        line = self._network.inside(node, command)
        if self._quotas is None:
            return line
        return self._quotas.entering(self._network.nodes[node] + group, line)

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
