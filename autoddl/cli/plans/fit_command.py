"""`python -m autoddl fit`: the smallest cluster, or the largest batch, within a time and memory."""

from __future__ import annotations

from typing import Any

import click

from autoddl.cli.options import JSON, Listed, example, option, with_options, written
from autoddl.cli.plans.planning_options import PLANNING, asked

_TARGETS = with_options(
    option("--within step", "the most that a step may take, 200ms", None, "TIME"),
    option("--throughput", "the fewest samples per second", None, "N"),
    option("--batch", "largest: look for that on a mesh, not for the smallest cluster",
           click.Choice(["largest"])),
    option("--clusters", "those that are tried, between commas", Listed(str), "1x4,2x8"),
    option("--node-size", "devices of a node (8)", int, "N"),
    option("--most", "devices of the largest cluster that is tried (64)", int, "N"),
)  # fmt: skip


@click.command(
    "fit", epilog=example("fit gpt.json --profile h100 --within 200ms --most 16 --budget 1")
)
@click.argument("program", metavar="PROGRAM")
@_TARGETS
@PLANNING
@JSON
def command(program: str, as_json: bool, **options: Any) -> None:
    """Find the smallest cluster on which a step of PROGRAM keeps to a time and to memory.

    With --batch largest and a mesh: the largest batch on it. --budget is for each plan, 5 seconds if not
    given. Other options are those of autoddl.optimize.
    """
    given = asked(**options)
    from autoddl import fit

    written(fit(program, **given), as_json=as_json)
