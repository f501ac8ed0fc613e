"""`python -m autoddl trace`: write the predicted timeline of a saved plan."""

from __future__ import annotations

from pathlib import Path

import click

from autoddl.cli.app import say


@click.command("trace")
@click.argument("plan", metavar="PLAN")
@click.option("-o", "--output", type=Path, default="trace.json", metavar="FILE", show_default=True)
@click.option(
    "--profile", metavar="FILE", help="of a plan without stages, if it is not a bundled one"
)
def command(plan: str, output: Path, profile: str | None) -> None:
    """Write the predicted timeline of PLAN, a file of Plan.save, for ui.perfetto.dev."""
    from autoddl import load
    from autoddl.report.perfetto import write

    timeline = write(load(plan), output, profile=profile)
    say(f"wrote {output}: a step of {timeline.step_s * 1e3:.3g} ms; open it in ui.perfetto.dev")
