"""`python -m autoddl codegen`: write a saved plan as a Python script."""

from __future__ import annotations

import click

from autoddl.cli.options import RATE


@click.command("codegen")
@click.argument("plan", metavar="PLAN")
@click.option("-o", "--output", default="train_parallel.py", show_default=True, help="the script")
@click.option("--learning-rate", type=RATE, help="default of the script's own --learning-rate")
def command(plan: str, output: str, learning_rate: float | None) -> None:
    """Write PLAN, a file of Plan.save, as a standalone script that needs only OneFlow and NumPy."""
    from autoddl import load

    load(plan).codegen(output, learning_rate=learning_rate)
