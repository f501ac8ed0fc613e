"""`python -m autoddl report`: a saved plan as one HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from autoddl.cli.app import say
from autoddl.cli.options import FORCE, check_new, example, option
from autoddl.terminal.status_line import working


@click.command("report", epilog=example("report plan.json -o plan.html"))
@click.argument("plan", metavar="PLAN")
@option("-o --output", "the page", Path, "FILE", default="plan.html", show_default=True)
@option("--profile", "prices a plan without stages, if its own is not a bundled one", None, "FILE")
@FORCE
def command(plan: str, output: Path, profile: str | None, force: bool) -> None:
    """Write PLAN, a file of Plan.save, as one HTML page that needs neither a network nor scripts.

    It tells what the plan does layer by layer, what its step waits for, its memory, the baselines beside
    it, its timeline and what would change it.
    """
    for read in (plan, profile or plan):
        check_new(output, force=force, beside=read)
    from autoddl import load

    with working("writing the page"):
        load(plan).report(output, profile=profile)
    say(f"wrote {output}; open it in a browser")
