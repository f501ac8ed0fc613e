"""`python -m autoddl run`: start the ranks of a script on this node (see launch.launcher)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from autoddl.cli.app import tell
from autoddl.cli.options import (
    KIND,
    NODES,
    OF_SCRIPTS,
    WORDS,
    Ranks,
    check_words,
    example,
    option,
    with_options,
)
from autoddl.launch.job import KIND as KIND_OF_NODE
from autoddl.launch.job import LaunchJob
from autoddl.launch.launcher import supervised

_OPTIONS = with_options(
    option("--nproc-per-node ranks",
           "ranks on each node; 2:4: begin with 4, after a failure go on with 2", Ranks(), "N",
           required=True),
    option("--max-restarts", "start all ranks again when one has died, up to N times (0)", int, "N",
           default=0),
    NODES,
    option("--kind", "what kind this node is, of unlike ones", KIND, "NAME"),
    option("--master-port", "where rank 0 listens (one node: any)", int, "PORT"),
    option("--timeout timeout_s", "end all ranks then", float, "SECONDS"),
    option("--log-dir", "keep each rank's output here", Path, "DIR"),
)  # fmt: skip


@click.command(
    "run",
    context_settings=OF_SCRIPTS,
    options_metavar="--nproc-per-node N [OPTIONS]",
    help="Start the ranks of a OneFlow job on this node and end them together.",
    epilog=example("run --nproc-per-node 2 train.py"),
)
@_OPTIONS
@WORDS
def command(
    words: tuple[str, ...], ranks: tuple[int, int], max_restarts: int, kind: str | None,
    **options: Any,
) -> int:  # fmt: skip
    """Run the job; see LaunchJob for the options."""
    check_words(words)
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
