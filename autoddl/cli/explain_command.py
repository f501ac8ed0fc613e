"""`python -m autoddl explain`: what a plan does and why, in words and seconds."""

from __future__ import annotations

import click

from autoddl.cli.options import NOT_NEGATIVE, option, with_options

_CALL = "python -m autoddl explain plan.json --profile network.json"
_EXAMPLES = "; ".join(
    [_CALL, f"{_CALL} --why model.blocks.0.fc1", f"{_CALL} --why model.blocks.0.fc1 --why-not S0"]
)
_OPTIONS = with_options(
    option("--why", "why a module, op or tensor is as it is; what others would cost", None, "NAME"),
    option("--why-not", "with --why: what that state would cost, or why it can't be", None, "STATE"),
    option("--budget", "of the search around each other choice (2); 0: none", NOT_NEGATIVE, "SECONDS",
           default=2.0),
    option("--profile", "prices the plan again, if its own is not a bundled one", None, "FILE"),
)  # fmt: skip


@click.command("explain", epilog=f"Examples: {_EXAMPLES}.")
@click.argument("plan", metavar="PLAN")
@_OPTIONS
def command(
    plan: str, why: str | None, why_not: str | None, budget: float, profile: str | None
) -> None:
    """Say what PLAN, a file of Plan.save, does and why.

    Without --why: what each layer does, what the step waits for, and what is certain.
    """
    from autoddl import load

    click.echo(str(load(plan).explain(why, why_not, profile=profile, budget=budget)))
