"""Start the ranks of a OneFlow job on one node and end them together; stdlib only.

OneFlow does not end a job when one rank fails: the other ranks, and often the failed one too, hang.
Here the first rank that fails, a time limit or a signal ends all ranks of this node with everything
they started. Across nodes, each launcher ends its own ranks only.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autoddl.launch.job import LaunchArgumentError, LaunchError, LaunchJob, LaunchResult, checked
from autoddl.launch.supervise import supervise

__all__ = ["LaunchArgumentError", "LaunchError", "LaunchResult", "launch", "run"]


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
