"""`python -m autoddl run`: start the ranks of a script on this node (see launch.launcher)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from autoddl.cli.app import tell
from autoddl.cli.options import KIND, NODES, Ranks
from autoddl.launch.job import KIND as KIND_OF_NODE
from autoddl.launch.job import LaunchJob
from autoddl.launch.launcher import supervised


@click.command(
    "run",
    # A script's own options are its own; -m is the first word of a command, not an option.
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True},
    options_metavar="--nproc-per-node N [OPTIONS]",
    help="Start the ranks of a OneFlow job on this node and end them together.",
)
@click.option(
    "--nproc-per-node",
    "ranks",
    type=Ranks(),
    required=True,
    metavar="N",
    help="ranks on each node; 2:4: begin with 4, after a failure go on with 2",
)
@click.option(
    "--max-restarts",
    type=int,
    default=0,
    metavar="N",
    help="start all ranks again when one has died, up to N times (0)",
)
@NODES
@click.option("--kind", type=KIND, metavar="NAME", help="what kind this node is, of unlike ones")
@click.option(
    "--master-port", type=int, metavar="PORT", help="where rank 0 listens (one node: any)"
)
@click.option("--timeout", "timeout_s", type=float, metavar="SECONDS", help="end all ranks then")
@click.option("--log-dir", type=Path, metavar="DIR", help="keep each rank's output here")
@click.argument(
    "words", nargs=-1, type=click.UNPROCESSED, metavar="(script.py | -m module) [ARGS …]"
)
def command(
    words: tuple[str, ...], ranks: tuple[int, int], max_restarts: int, kind: str | None,
    **options: Any,
) -> int:  # fmt: skip
    """Run the job; see LaunchJob for the options."""
    if words and words[0].startswith("-") and words[0] != "-m":
        raise click.NoSuchOption(words[0])
    fewest, most = ranks
    env = ((KIND_OF_NODE, kind),) if kind else ()
    job = LaunchJob(words, most, env=env, **options)
    result = supervised(job, max_restarts, fewest, lambda line: tell("autoddl run", line))
    if not result.ok:
        sys.stderr.write(f"autoddl run: {result.told(job.rank(0))}")
        sys.stderr.flush()
    _drop_unread_output()
    return result.exit_code


def _drop_unread_output() -> None:
    """Keep the interpreter from complaining at its end about output that nobody reads."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
