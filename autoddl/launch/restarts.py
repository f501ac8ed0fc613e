"""Start a job again when a rank has died, on as many ranks or fewer; stdlib only.

A script goes on by itself from what it has saved last:

    if Path("checkpoint/index.json").exists():
        step = autoddl.resume("checkpoint", graph, x, y)

With 2 to 4 ranks a job begins with 4, and is started again with 2, since what killed a rank, such as a
lost device, may still be there; with a fixed number always with that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from autoddl.errors import shown
from autoddl.launch.job import LaunchArgumentError, LaunchJob, LaunchResult, checked
from autoddl.launch.supervise import supervise

MOST_RESTARTS = 1 << 20  # more is a slip of the finger
RESTARTS = "AUTODDL_RESTARTS"
"""A variable of the ranks: how often the job was started again."""


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
        started = checked(dataclasses.replace(job, env=env, log_dir=logs))
        result = supervise(started, tell=tell)
        if result.failed_rank is None or result.interrupted_by is not None or count == most:
            return result
        ranks = max(fewest, job.nproc_per_node // 2)
        job = dataclasses.replace(job, nproc_per_node=ranks)
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
