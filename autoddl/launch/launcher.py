"""Start the ranks of a OneFlow job on one node and end them together; stdlib only.

OneFlow does not end a job when one rank fails: the other ranks, and often the failed one too, hang.
Here the first rank that fails, a time limit or a signal ends all ranks of this node with everything
they started. Across nodes, each launcher ends its own ranks only.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from autoddl.errors import shown
from autoddl.launch.job import LaunchArgumentError, LaunchError, LaunchJob, LaunchResult, checked
from autoddl.launch.supervise import supervise

__all__ = ["LaunchArgumentError", "LaunchError", "LaunchResult", "launch", "run", "supervised"]

MOST_RESTARTS = 1 << 20  # more is a slip of the finger
RESTARTS = "AUTODDL_RESTARTS"
"""A variable of the ranks: how often the job was started again."""


def launch(
    command: Sequence[str],
    *,
    nproc_per_node: int,
    env: Mapping[str, str] | None = None,
    check: bool = False,
    **fields: Any,
) -> LaunchResult:
    """Run a Python script or module on every rank of this node and wait until all have ended.

    Rank 0 starts first, the others when it listens on the master port, when it has ended, or after
    3 s. On other nodes all start when rank 0's node accepts connections there, or after 60 s.
    SIGINT, SIGTERM and SIGHUP end all ranks and then take their usual effect.

    Args:
        command: a script, or "-m" and a module, then its arguments; without the Python interpreter.
        nproc_per_node: ranks on each node.
        env: variables for the ranks, added to our own environment.
        check: raise if anything goes wrong.
        fields: the others of LaunchJob, such as `timeout_s`.

    Raises:
        LaunchArgumentError: an argument is out of range, the script is missing, the port is in use.
        LaunchError: with ``check``, a rank failed or the time limit was reached.
    """
    variables = tuple((env or {}).items())
    result = run(LaunchJob(tuple(command), nproc_per_node, env=variables, **fields))
    if check and not result.ok:
        raise LaunchError(result)
    return result


def run(job: LaunchJob, on_turn: Callable[[], None] = lambda: None) -> LaunchResult:
    """Run a job as ``launch`` does; for ``on_turn`` see ``supervise``.

    Raises:
        LaunchArgumentError: it cannot be started.
    """
    result = supervise(checked(job), on_turn)
    if result.interrupted_by is not None:
        signal.raise_signal(result.interrupted_by)
    return result


def supervised(
    job: LaunchJob, most: int, fewest: int, tell: Callable[[str], None] = lambda _: None
) -> LaunchResult:
    """Run a job, and again where a rank fails, up to `most` times.

    Then, and when a rank is silent, `tell` gets a line. Each time the job has half the ranks, but
    `fewest` at least. A time limit holds for each start, and it or a signal ends the job for good.

    Raises:
        LaunchArgumentError: it cannot be started.
    """
    _check(job, most, fewest)
    for count in range(most + 1):
        env = (*job.env, (RESTARTS, str(count)))
        logs = job.log_dir / f"restart{count}" if job.log_dir and count else job.log_dir
        started = checked(replace(job, env=env, log_dir=logs))
        result = supervise(started, tell=tell)
        if result.failed_rank is None or result.interrupted_by is not None or count == most:
            return result
        ranks = max(fewest, job.nproc_per_node // 2)
        job = replace(job, nproc_per_node=ranks)
        tell(f"{result.message}; starting again with {ranks} ranks ({count + 1} of {most})")
    raise AssertionError("unreachable")


def _check(job: LaunchJob, most: int, fewest: int) -> None:
    if not 0 <= most <= MOST_RESTARTS:
        raise LaunchArgumentError(
            f"max_restarts: got {shown(most)}; allowed are 0 to {MOST_RESTARTS}"
        )
    if most and job.nnodes > 1:
        raise LaunchArgumentError(
            f"max_restarts: got {most} with nnodes={shown(job.nnodes)}; a launcher starts the ranks of "
            "its own node again, and others would wait; restart all nodes from outside"
        )
    if fewest != job.nproc_per_node and not 1 <= fewest < job.nproc_per_node:
        raise LaunchArgumentError(
            f"nproc_per_node: got {shown(fewest)}:{shown(job.nproc_per_node)}; allowed are N and "
            "FEWEST:MOST, such as 2:4"
        )
    if fewest != job.nproc_per_node and not most:
        raise LaunchArgumentError(
            f"nproc_per_node: got {shown(fewest)}:{shown(job.nproc_per_node)}, but ranks are not started "
            "again; give --max-restarts N, or one number"
        )
