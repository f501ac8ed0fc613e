"""`python -m autoddl run`: start the ranks of a script on this node (see launch.launcher)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from autoddl.launch.job import LaunchJob, checked
from autoddl.launch.supervise import supervise
from autoddl.launch.terminal import Terminal

SHARE_CORES_HELP = "bind each rank to a core and wait asleep (yes with < 2 cores a rank)"


@click.command(
    "run",
    # A script's own options are its own; -m is the first word of a command, not an option.
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True},
    options_metavar="--nproc-per-node N [OPTIONS]",
    help="Start the ranks of a OneFlow job on this node and end them together.",
)
@click.option("--nproc-per-node", type=int, required=True, metavar="N", help="ranks on each node")
@click.option("--nnodes", type=int, default=1, metavar="N", help="nodes")
@click.option("--node-rank", type=int, default=0, metavar="K", help="this node, from 0")
@click.option(
    "--master-addr", default="127.0.0.1", metavar="HOST", help="where others reach node 0"
)
@click.option(
    "--master-port", type=int, metavar="PORT", help="where rank 0 listens (one node: any)"
)
@click.option("--timeout", "timeout_s", type=float, metavar="SECONDS", help="end all ranks then")
@click.option("--log-dir", type=Path, metavar="DIR", help="keep each rank's output here")
@click.option("--share-cores", type=click.Choice(["yes", "no"]), help=SHARE_CORES_HELP)
@click.argument(
    "words", nargs=-1, type=click.UNPROCESSED, metavar="(script.py | -m module) [ARGS …]"
)
def command(words: tuple[str, ...], share_cores: str | None, **options: object) -> int:
    """Run the job; see LaunchJob for the options."""
    if words and words[0].startswith("-") and words[0] != "-m":
        raise click.NoSuchOption(words[0])
    job = checked(LaunchJob(words, share_cores=share_cores_of(share_cores), **options))  # type: ignore[arg-type]
    result = supervise(job, Terminal().write)
    if not result.ok:
        sys.stderr.write(f"autoddl run: {result.told(job.rank(0))}")
        sys.stderr.flush()
    _drop_unread_output()
    return result.exit_code


def share_cores_of(text: str | None) -> bool | None:
    """Return what the option --share-cores means to `launch`."""
    return None if text is None else text == "yes"


def _drop_unread_output() -> None:
    """Keep the interpreter from complaining at its end about output that nobody reads."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
