"""Start the ranks of a OneFlow job on one node and end them together; stdlib only.

OneFlow does not end a job when one rank fails: the other ranks, and often the failed one too, hang.
Here the first rank that fails, a time limit or a signal ends all ranks of this node with everything
they started. Across nodes, each launcher ends its own ranks only.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from autoddl.launch.job import (
    LaunchArgumentError,
    LaunchError,
    LaunchJob,
    LaunchResult,
    checked,
)
from autoddl.launch.supervise import supervise
from autoddl.launch.terminal import Terminal

__all__ = ["LaunchArgumentError", "LaunchError", "LaunchResult", "launch", "run"]


def launch(
    command: Sequence[str],
    *,
    nproc_per_node: int,
    nnodes: int = 1,
    node_rank: int = 0,
    master_addr: str = "127.0.0.1",
    master_port: int | None = None,
    timeout_s: float | None = None,
    env: Mapping[str, str] | None = None,
    log_dir: Path | None = None,
    stream_rank0: bool = True,
    grace_s: float = 3.0,
    share_cores: bool | None = None,
    check: bool = False,
) -> LaunchResult:
    """Run a Python script or module on every rank of this node and wait until all have ended.

    Rank 0 starts first, the others when it listens on the master port, when it has ended, or after
    3 s. On other nodes all start when rank 0's node accepts connections there, or after 60 s.
    SIGINT, SIGTERM and SIGHUP end all ranks and then take their usual effect.

    Args:
        command: a script, or "-m" and a module, then its arguments; without the Python interpreter.
        nproc_per_node: ranks on each node.
        nnodes: nodes.
        node_rank: this node, from 0.
        master_addr: where the other nodes reach node 0.
        master_port: where rank 0 listens; None (one node only) picks a free one.
        timeout_s: seconds after which all ranks are ended.
        env: variables for the ranks, added to our own environment.
        log_dir: folder for what each rank writes, as rank0.log and so on. By default a temporary
            one, removed if all goes well.
        stream_rank0: pass rank 0's output on to our stdout and stderr, without the engine's noise.
        grace_s: seconds between SIGTERM and SIGKILL when ranks are ended.
        share_cores: bind each rank to one core, in turn, and let OneFlow's scheduler thread sleep
            instead of spin while it waits; None: where there are fewer than two cores a rank.
        check: raise if anything goes wrong.

    Raises:
        LaunchArgumentError: an argument is out of range, the script is missing, the port is in use.
        LaunchError: with ``check``, a rank failed or the time limit was reached.
    """
    job = LaunchJob(
        command=tuple(command),
        nproc_per_node=nproc_per_node,
        nnodes=nnodes,
        node_rank=node_rank,
        master_addr=master_addr,
        master_port=master_port,
        timeout_s=timeout_s,
        env=tuple((env or {}).items()),
        log_dir=log_dir,
        stream_rank0=stream_rank0,
        grace_s=grace_s,
        share_cores=share_cores,
    )
    result = run(job)
    if check and not result.ok:
        raise LaunchError(result)
    return result


def run(job: LaunchJob, on_turn: Callable[[], None] = lambda: None) -> LaunchResult:
    """Run a job as ``launch`` does; for ``on_turn`` see ``supervise``.

    Raises:
        LaunchArgumentError: it cannot be started.
    """
    result = supervise(checked(job), Terminal().write if job.stream_rank0 else None, on_turn)
    if result.interrupted_by is not None:
        signal.raise_signal(result.interrupted_by)
    return result
