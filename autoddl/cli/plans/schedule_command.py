"""`python -m autoddl schedule`: what each rank of a plan with stages does in a step, in order."""

from __future__ import annotations

import json
from pathlib import Path

import click

from autoddl.cli.app import say
from autoddl.cli.options import check_new, example
from autoddl.terminal.status_line import working


@click.command("schedule", epilog=example("schedule staged.json -o schedule.json"))
@click.argument("plan", metavar="PLAN")
@click.option("-o", "--output", type=Path, metavar="FILE", help="else it is printed")
@click.option("--use", metavar="FILE", help="an edited one instead")
@click.option("--save", type=Path, metavar="FILE", help="the plan that keeps it, for codegen")
def command(plan: str, output: Path | None, use: str | None, save: Path | None) -> None:
    """Write the schedule of PLAN, a file of Plan.save with stages: by rank its tasks, in order.

    With --use it is that of an edited file, which is checked: nothing may be left out or wait for ever.
    """
    from autoddl import load, store

    if output is not None:
        check_new(output, force=True, beside=plan)
    known = load(plan)
    with working("ordering"):
        found = known if use is None else known.with_schedule(use)
        text = json.dumps(found.schedule(), indent=1)
    if save is not None:
        found.save(save)
        say(f"wrote {save}: a step of {found.estimate.step_s * 1e3:.3g} ms")
    if output is not None:
        store.write(output, text.encode() + b"\n")
        say(f"wrote {output}: {len(found.parts)} stages, {found.micro_batches} micro-batches")
    if output is None and save is None:
        click.echo(text)
