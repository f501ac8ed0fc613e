"""`python -m autoddl diff`: what differs between two plans of one program."""

from __future__ import annotations

import click

from autoddl.cli.options import JSON, example, written


@click.command("diff", epilog=example("diff plan.json other.json"))
@click.argument("first", metavar="PLAN")
@click.argument("second", metavar="OTHER")
@JSON
def command(first: str, second: str, as_json: bool) -> None:
    """Say what differs between PLAN and OTHER, files of Plan.save of one program.

    Mesh, stages, micro-batches and options; the states of layers, with seconds and bytes; predictions.
    """
    from autoddl import load

    written(load(first).diff(load(second)), as_json=as_json)
