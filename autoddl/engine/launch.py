"""Start the ranks of a OneFlow job on one node and end them together; stdlib only.

OneFlow does not end a job when one rank fails: the other ranks, and often the failed one too, hang.
Here the first rank that fails, a time limit or a signal ends all ranks of this node with everything
they started. Across nodes, each launcher ends its own ranks only.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from autoddl.engine.ranks.job import (
    LaunchArgumentError,
    LaunchError,
    LaunchJob,
    LaunchResult,
    checked,
)
from autoddl.engine.ranks.supervise import supervise
from autoddl.engine.ranks.terminal import Terminal

__all__ = ["LaunchArgumentError", "LaunchError", "LaunchResult", "launch", "main"]

SHARE_CORES = ("yes", "no")
SHARE_CORES_HELP = "bind each rank to a core and wait asleep (yes with < 2 cores a rank)"
_EXIT_USAGE = 2
_USAGE = "python -m autoddl run --nproc-per-node N [options] (script.py | -m module) [args ...]"


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
    result = _run(job)
    if result.interrupted_by is not None:
        signal.raise_signal(result.interrupted_by)
    if check and not result.ok:
        raise LaunchError(result)
    return result


def main(argv: list[str] | None = None) -> int:
    """Run the command line ``run`` (without that word) and return its exit code.

    Exit codes: 0; 2 for bad input; 124 after the time limit; 130 or 143 after SIGINT or SIGTERM;
    else that of the rank that failed first (128 + signal if a signal killed it).
    """
    try:
        job = _parse(sys.argv[1:] if argv is None else argv)
        result = _run(job)
        if not result.ok:
            _tell(_failure_text(job, result))
        _drop_unread_output()
        return result.exit_code
    except LaunchArgumentError as error:
        _tell(f"{error}\n")
        return _EXIT_USAGE
    except KeyboardInterrupt:  # before the first rank started or after the last one ended
        return 128 + signal.SIGINT
    except SystemExit as error:  # --help
        return int(error.code or 0)


def _run(job: LaunchJob) -> LaunchResult:
    return supervise(checked(job), Terminal().write if job.stream_rank0 else None)


def _tell(text: str) -> None:
    sys.stderr.write(f"autoddl run: {text}")
    sys.stderr.flush()


def _drop_unread_output() -> None:
    """Keep the interpreter from complaining at its end about output that nobody reads."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failure_text(job: LaunchJob, result: LaunchResult) -> str:
    lines = [result.message]
    if result.failed_rank is not None:
        shown = job.stream_rank0 and result.failed_rank == job.rank(0)
        if shown:
            lines.append(f"rank {result.failed_rank}'s output is above")
        elif not result.tail:
            lines.append(f"rank {result.failed_rank} wrote nothing")
        else:
            lines.append(f"---- last lines of rank {result.failed_rank} ----")
            lines.extend(result.tail)
            lines.append("----")
    lines.append(f"logs of all ranks: {result.log_dir}")
    return "\n".join(lines) + "\n"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise LaunchArgumentError(f"{message}; usage: {_USAGE}")


def _parse(argv: Sequence[str]) -> LaunchJob:
    options, command = _split(argv)
    parser = _Parser(prog="autoddl run", usage=_USAGE, allow_abbrev=False, description=__doc__)
    add = parser.add_argument
    add("--nproc-per-node", type=int, required=True, metavar="N", help="ranks on each node")
    add("--nnodes", type=int, default=1, metavar="N", help="nodes")
    add("--node-rank", type=int, default=0, metavar="K", help="this node, from 0")
    add("--master-addr", default="127.0.0.1", metavar="HOST", help="where others reach node 0")
    add("--master-port", type=int, metavar="PORT", help="where rank 0 listens (one node: any)")
    add("--timeout", type=float, metavar="SECONDS", help="end all ranks after this time")
    add("--log-dir", type=Path, metavar="DIR", help="keep each rank's output here")
    add("--share-cores", choices=SHARE_CORES, help=SHARE_CORES_HELP)
    values = parser.parse_args(options)
    return LaunchJob(
        command=tuple(command),
        nproc_per_node=values.nproc_per_node,
        nnodes=values.nnodes,
        node_rank=values.node_rank,
        master_addr=values.master_addr,
        master_port=values.master_port,
        timeout_s=values.timeout,
        log_dir=values.log_dir,
        share_cores=share_cores_of(values.share_cores),
    )


def share_cores_of(text: str | None) -> bool | None:
    """Return what the option --share-cores means to `launch`."""
    return None if text is None else text == "yes"


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split our options (every one takes a value; ``_`` is ``-``) from the command after them.

    argparse cannot: its remainder argument swallows a ``--`` that belongs to the command.
    """
    options: list[str] = []
    rest = list(argv)
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "--"):
        name, equals, value = rest.pop(0).partition("=")
        options.append(name.replace("_", "-") + equals + value)
        if not equals and name not in ("-h", "--help") and rest:
            options.append(rest.pop(0))
    return options, rest[1:] if rest[:1] == ["--"] else rest
