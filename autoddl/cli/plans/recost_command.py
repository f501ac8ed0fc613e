"""`python -m autoddl recost`: what a plan costs with another profile, and what planning again gains."""

from __future__ import annotations

import click

from autoddl.cli.options import JSON, NOT_NEGATIVE, example, option, written


@click.command("recost", epilog=example("recost plan.json --profile network.json --budget 5"))
@click.argument("plan", metavar="PLAN")
@click.option(
    "--profile", required=True, metavar="NAME", help="a bundled one or a file of fit-network"
)
@option(
    "--budget",
    "of planning again (20); 0: do not plan again",
    NOT_NEGATIVE,
    "SECONDS",
    default=20.0,
)
@option("--memory", "of each device, 16GiB; the profile's if not given", None, "SIZE")
@option("--cluster", "of stages that don't tell it: nodes x devices", None, "4x8")
@JSON
def command(
    plan: str, profile: str, budget: float, memory: str | None, cluster: str | None, as_json: bool
) -> None:
    """Price PLAN, a file of Plan.save, with another profile, in the states that it has.

    Then plan the same step again with that profile, and say what that gains.
    """
    from autoddl import load

    again, old = budget > 0, load(plan)
    found = old.recost(profile, again=again, budget=budget or 1.0, memory=memory, cluster=cluster)
    written(found, as_json=as_json)
