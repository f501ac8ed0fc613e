"""`python -m autoddl plan`: what `autoddl.optimize` does, for a saved program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from autoddl.cli.app import say
from autoddl.cli.options import FORCE, check_new, example, option
from autoddl.cli.plans.planning_options import PLANNING, asked, in_own_words
from autoddl.terminal.status_line import working
from autoddl.units import seconds_text


@click.command(
    "plan", epilog=example("plan gpt.json --mesh 2x2 --profile cpu-loopback -o plan.json")
)
@click.argument("program", metavar="PROGRAM")
@PLANNING
@option("-o --output", "the plan", Path, "FILE", default="plan.json", show_default=True)
@FORCE
def command(program: str, output: Path, force: bool, **options: Any) -> None:
    """Plan PROGRAM, a file of Program.save or of capture, print the plan and write it.

    Options are those of autoddl.optimize (docs/search.md); what is not given is chosen.
    """
    check_new(output, force=force, beside=program)
    given = asked(**options)
    from autoddl import optimize

    with in_own_words(), working("planning") as word:
        plan = optimize(
            program, **given, progress=lambda _, cost_s: word(f"best so far {seconds_text(cost_s)}")
        )
    say(*str(plan).split("\n"))
    plan.save(output)
    say(f"wrote {output}")
