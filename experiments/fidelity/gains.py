"""What halves, orders and the step as objective gain: `python -m experiments.fidelity.gains`.

On testbeds of two nodes, with links of several rates, two plans of a model train by turns, and what the
second gains is printed beside what the simulation says: the best plan of the whole batch and that of its
halves in turn, likewise each baseline's (halves); the baselines' plans as their ops become ready and in
the order that was found for them (order); the plans of the least sum and of the shortest step
(objective). All plans together tell how well steps are predicted under the measured overlap.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pandas as pd

from autoddl.api import optimize
from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.timeline import predict
from autoddl.plan.value import PlanValue
from autoddl.planner.assemble import make_plan
from autoddl.sbp.program import Program
from autoddl.search.baselines import assignments
from experiments.fidelity import pairs, scores
from experiments.fidelity.workload import Bed
from experiments.lib import cli, frames
from experiments.lib import oneflow_problems as builder

BEDS = {
    bed.name: bed
    for ranks in (1, 2)
    for rate in ("200mbit", "500mbit", "1gbit")
    for bed in [Bed(f"2x{ranks}-{rate}", 2, ranks, rate)]
}
MODELS = ("mlp", "gpt", "bert_moe")
SEARCHES = ("exact", "Megatron", "expert parallel", "data parallel")
BUDGET_S = 10.0
LEAST = 0.02  # orders that are predicted to gain less are not worth a measurement
SCORES: frames.Formats = {
    "bed": "{}", "plans": "{}", "spearman": "{:.3f}", "mean_error": "{:.1%}", "worst_error": "{:.0%}",
    "bias": "{:+.1%}", "regret": "{:.1%}",
}  # fmt: skip


def halves(program: Program, bed: Bed, profile: Path) -> Iterator[pairs.Pair]:
    """Yield plans of the whole batch, and of two halves in turn, found by the same search."""
    for search in SEARCHES:
        options = _options(bed, profile, search=search)
        try:
            plans = optimize(program, **options), optimize(program, **options, duplex=True)
        except AutoDDLError:
            continue  # a baseline that does not apply
        yield search, *plans, _steps(plans)


def order(program: Program, bed: Bed, profile: Path) -> Iterator[pairs.Pair]:
    """Yield the baselines' plans that gain by an order, as predicted: without it, and with it."""
    network = builder.build(program, bed.mesh, profiles.load(profile))
    for name, assignment in assignments(network).items():
        plan = make_plan(network, network.result(name, assignment))
        plans = without_order(plan), plan
        free_s, ordered_s = (predict(p.mesh, network.profile, p.layout).step_s for p in plans)
        if ordered_s < (1 - LEAST) * free_s:
            yield name, *plans, (free_s, ordered_s)


def objective(program: Program, bed: Bed, profile: Path) -> Iterator[pairs.Pair]:
    """Yield the plan of the least sum, and that of the shortest step, if that is another one."""
    options = _options(bed, profile)
    plans = optimize(program, **options, objective="sum"), optimize(program, **options)
    if plans[0].signatures != plans[1].signatures:
        yield "exact", *plans, _steps(plans)


WHAT = {"halves": halves, "order": order, "objective": objective}


@click.command(help=__doc__)
@cli.listed("--what", WHAT)
@cli.listed("--beds", BEDS)
@cli.listed("--models", MODELS)
@click.option("--repetitions", default=3, show_default=True, help="of each plan, by turns")
@cli.folder("out/gains")
def command(
    what: Sequence[str], beds: Sequence[str], models: Sequence[str], repetitions: int, folder: Path
) -> None:
    """Calibrate the testbeds, time both plans of each pair; print and write the tables."""
    makes = {name: WHAT[name] for name in what}
    frame = pairs.timed(makes, [BEDS[name] for name in beds], models, repetitions, folder)
    frame["sign"] = (frame["gain"] > 0) == (frame["predicted_gain"] > 0)
    print(frames.text(frame, pairs.COLUMNS))
    error = (frame["gain"] - frame["predicted_gain"]).abs()
    print(
        f"{frame['sign'].sum()} of {len(frame)} gains have the predicted sign; they are off by "
        f"{error.mean():.1%} of the step on average, at most {error.max():.1%}"
    )
    scored = scored_plans(frame)
    print(frames.text(scored, SCORES))
    frames.save(frame, folder, "gains", scores=scored.to_dict("records"))


def scored_plans(frame: pd.DataFrame) -> pd.DataFrame:
    """Return how well the steps of all plans are predicted: of each testbed, and of all together."""
    plans = pd.concat(
        frame[["bed", "model"]].assign(
            predicted_s=1e-3 * frame[f"{which}_predicted_ms"],
            measured_s=1e-3 * frame[f"{which}_ms"],
        )
        for which in ("first", "second")
    )
    every = plans.assign(model=plans.bed + plans.model)
    rows = [{"bed": bed, **scores.of_steps(mine)} for bed, mine in plans.groupby("bed", sort=False)]
    return pd.DataFrame([*rows, {"bed": "all", **scores.of_steps(every)}])


def without_order(plan: PlanValue) -> PlanValue:
    """Return a plan whose ops go as they become ready."""
    (part,) = plan.parts
    return replace(plan, parts=(replace(part, layout=replace(part.layout, after={})),))


def _options(bed: Bed, profile: Path, **others: Any) -> dict[str, Any]:
    return {"mesh": bed.mesh, "profile": profile, "budget": BUDGET_S, **others}


def _steps(plans: tuple[PlanValue, PlanValue]) -> tuple[float, float]:
    return plans[0].estimate.step_s, plans[1].estimate.step_s


if __name__ == "__main__":
    sys.exit(cli.run(command, "fidelity.gains"))
