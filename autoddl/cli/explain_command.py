"""`python -m autoddl explain`: what a plan does and why, in words and seconds."""

from __future__ import annotations

import click

from autoddl.cli.options import option


@click.command(
    "explain", epilog="Examples: python -m autoddl explain plan.json --profile network.json."
)
@click.argument("plan", metavar="PLAN")
@option("--profile", "that prices the plan again, if its own is not a bundled one", None, "FILE")
def command(plan: str, profile: str | None) -> None:
    """Say what PLAN, a file of Plan.save, does and why.

    Without an option: what each layer does, what the step waits for, and what is certain.
    """
    from autoddl import load

    click.echo(str(load(plan).explain(profile=profile)))
