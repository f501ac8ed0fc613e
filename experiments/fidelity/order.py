"""What an order of ops gains, on real ranks: `python -m experiments.fidelity.order`.

A testbed of two nodes of one rank each is calibrated; plans whose ops go in another order than that in
which they are ready train there without this order and with it, by turns. What is gained is printed
beside what the simulation says.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click

from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.timeline import predict
from autoddl.plan.value import PlanValue
from autoddl.planner.assemble import make_plan
from autoddl.sbp.program import Program
from autoddl.search.baselines import assignments
from autoddl.search.network import builder
from experiments.fidelity import pairs
from experiments.fidelity.workload import MODELS, Bed
from experiments.lib import cli

BED = Bed("2x1-500mbit", 2, 1, "500mbit")
LEAST = 0.02  # predicted gains below this are not worth a measurement


@click.command(help=__doc__)
@cli.listed("--models", MODELS, ("gpt", "bert_moe"))
@click.option("--repetitions", default=4, show_default=True, help="of each plan, by turns")
@cli.folder("out/order")
def command(models: Sequence[str], repetitions: int, folder: Path) -> None:
    """Calibrate the testbed, time the plans in both ways; print and write the table."""
    pairs.shown(pairs.timed(ordered, [BED], models, repetitions, folder), folder, "order")


def ordered(program: Program, bed: Bed, profile: Path) -> Iterator[pairs.Pair]:
    """Yield the baselines' plans that gain by an order, as predicted: without it, and with it."""
    network = builder.build(program, bed.mesh, profiles.load(profile))
    for name, assignment in assignments(network).items():
        plan = make_plan(network, network.result(name, assignment))
        free_s, ordered_s = (predict(p.mesh, network.profile, p.layout).step_s for p in both(plan))
        if ordered_s < (1 - LEAST) * free_s:
            yield name, *both(plan), (free_s, ordered_s)


def both(plan: PlanValue) -> tuple[PlanValue, PlanValue]:
    """Return a plan without its order, and with it."""
    (part,) = plan.parts
    return replace(plan, parts=(replace(part, layout=replace(part.layout, after={})),)), plan


if __name__ == "__main__":
    sys.exit(cli.run(command, "order"))
