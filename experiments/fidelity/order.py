"""What an order of ops gains, on real ranks: `python -m experiments.fidelity.order`.

A testbed of two nodes of one rank each is calibrated; plans whose ops go in another order than that in
which they are ready train there with this order and without it, by turns. What is gained is printed
beside what the simulation says.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import click
import pandas as pd

from autoddl.api import Plan
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.timeline import predict
from autoddl.plan.value import PlanValue
from autoddl.planner.assemble import make_plan
from autoddl.sbp.program import Program
from autoddl.search.baselines import assignments
from autoddl.search.network import builder
from experiments.fidelity import measure
from experiments.fidelity.workload import MODELS, Bed
from experiments.lib import cli, frames
from experiments.lib.frames import Row
from experiments.lib.programs import captured

BED = Bed("2x1-500mbit", 2, 1, "500mbit")
SIZES = ("--minbytes", "1K", "--maxbytes", "4M")
LEAST = 0.02  # predicted gains below this are not worth a measurement
COLUMNS: frames.Formats = {
    "model": "{}", "plan": "{}", "predicted_ms": "{:.1f}", "predicted_gain": "{:.1%}",
    "free_ms": "{:.1f}", "ordered_ms": "{:.1f}", "gain": "{:.1%}",
}  # fmt: skip


@click.command(help=__doc__)
@cli.listed("--models", MODELS, ("gpt", "bert_moe"))
@click.option("--repetitions", default=4, show_default=True, help="of each plan, by turns")
@cli.folder("out/order")
def command(models: Sequence[str], repetitions: int, folder: Path) -> None:
    """Calibrate the testbed, time the plans in both ways; print and write the table."""
    rows: list[Row] = []
    with measure.running(BED) as (run, made):
        profile = measure.calibrate(BED, made, folder, SIZES)
        for model in models:
            program = captured(folder / f"{model}.json", model, "toy", **MODELS[model])
            for name, plan in plans(program, profile):
                files = _files(folder / f"{model} {name}".replace(" ", "-"), plan)
                steps: list[list[float]] = [[], []]
                for number in range(repetitions):
                    for which in (0, 1) if number % 2 else (1, 0):
                        found = measure.step_s(run, model, MODELS[model], files[which])
                        steps[which].append(found)
                free, ordered = map(median, steps)
                said = [
                    predict(p.mesh, profiles.load(profile), p.layout).step_s for p in both(plan)
                ]
                rows.append({
                    "model": model, "plan": name, "predicted_ms": 1e3 * said[0],
                    "predicted_gain": 1 - said[1] / said[0], "free_ms": 1e3 * free,
                    "ordered_ms": 1e3 * ordered, "gain": 1 - ordered / free,
                })  # fmt: skip
                print(f"order: {model} {name}: gain {rows[-1]['gain']:.1%}", file=sys.stderr)
    frame = pd.DataFrame(rows)
    print(frames.text(frame, COLUMNS))
    frames.save(frame, folder, "order")


def plans(program: Program, profile: Path) -> Iterator[tuple[str, PlanValue]]:
    """Yield the baselines' plans that gain by an order, as predicted."""
    network = builder.build(program, BED.mesh, profiles.load(profile))
    for name, assignment in assignments(network).items():
        plan = make_plan(network, network.result(name, assignment))
        free_s, ordered_s = (predict(p.mesh, network.profile, p.layout).step_s for p in both(plan))
        if ordered_s < (1 - LEAST) * free_s:
            yield name, plan


def both(plan: PlanValue) -> tuple[PlanValue, PlanValue]:
    """Return a plan without its order, and with it."""
    (part,) = plan.parts
    return replace(plan, parts=(replace(part, layout=replace(part.layout, after={})),)), plan


def _files(stem: Path, plan: PlanValue) -> list[Path]:
    files = [stem.with_name(f"{stem.name}-{what}.json") for what in ("free", "ordered")]
    for file, one in zip(files, both(plan), strict=True):
        Plan.of(one).save(file)
    return files


if __name__ == "__main__":
    sys.exit(cli.run(command, "order"))
