"""Exact search, coordinate descent, baselines on the zoo: `python -m experiments.bench.zoo`.

Every model at a size of its paper, on every mesh: how far the bound of exact search is from its least
sum of compute and communication, and how much dearer coordinate descent's is; how far the step that
`autoddl.optimize` finds is from its bound, and how much longer that of the best baseline takes. Each
finished row is a line of rows.jsonl at once: a run that is cut off goes on from there. The exit code is
1 where a baseline is better than the plan.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pandas as pd

import autoddl
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import Profile
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.search.baselines import assignments
from autoddl.search.network import builder
from autoddl.search.result import SearchOptions
from autoddl.search.solvers import coordinate
from experiments.bench.frozen.suite import MESHES, PROFILE, ROOMY
from experiments.bench.frozen.suite import ZOO as FROZEN
from experiments.lib import cli, frames
from experiments.lib.frames import RowStore
from experiments.lib.programs import captured

SIZES = {**FROZEN, "transgan": "transgan"}  # of the last of which there is no record
LEVEL = 1e-9  # relative; steps within it take equally long
COLUMNS = {
    "model": "{}", "mesh": "{}", "ops": "{:,}", "exact_s": "{:.1f}", "gap": "{:.4%}",
    "coordinate_s": "{:.1f}", "above": "{:+.2%}", "plan_s": "{:.1f}", "step_gap": "{:.2%}",
    "baseline": "{}", "slower": "{:+.2%}",
}  # fmt: skip


@click.command(help=__doc__)
@cli.listed("--models", SIZES)
@click.option("--meshes", default=",".join(MESHES), show_default=True)
@click.option(
    "--profile",
    default=PROFILE,
    show_default=False,
    help="file or bundled name; by default the A100 of experiments.bench.frozen",
)
@click.option("--budget", default=20.0, show_default=True, help="seconds for each search")
@cli.folder("out/zoo")
def command(models: Sequence[str], meshes: str, profile: str, budget: float, folder: Path) -> int:
    """Run what is missing, print the table and write it as CSV."""
    known, rows = profiles.load(profile), RowStore(folder / "rows.jsonl")
    found = []
    for model in models:
        program = captured(folder / "programs" / f"{model}.json", model, SIZES[model])
        for mesh in meshes.split(","):
            where = Mesh.parse(mesh, known.levels)
            found.append(row(rows, model, program, where, known, budget))
    return report(pd.DataFrame(found), folder)


def row(
    rows: RowStore, model: str, program: Program, mesh: Mesh, profile: Profile, budget: float
) -> frames.Row:
    """Return the row of a model on a mesh, the kept one if there is one."""
    key = {
        "model": model, "mesh": str(mesh), "profile": profile.name,
        "fingerprint": program.fingerprint, "budget_s": budget,
    }  # fmt: skip
    return rows.once(key, lambda: planned(model, program, mesh, profile, budget))


def planned(
    model: str, program: Program, mesh: Mesh, profile: Profile, budget: float
) -> dict[str, Any]:
    """Plan a program for the step and for the sum, and search it again by coordinate descent.

    `cost_s` is the sum of compute and communication, `step_s` what a step takes with what overlaps.
    """
    options: dict[str, Any] = {"profile": profile, "memory": ROOMY, "budget": budget}
    begin = time.perf_counter()
    plan = autoddl.optimize(program, mesh=mesh, **options)
    plan_s = time.perf_counter() - begin
    begin = time.perf_counter()
    exact = autoddl.optimize(program, mesh=mesh, objective="sum", **options).search
    exact_s = time.perf_counter() - begin
    problem = builder.build(program, mesh, profile)
    begin = time.perf_counter()
    descended = coordinate.search(
        problem, SearchOptions(budget=budget, starts=assignments(problem).values())
    )
    coordinate_s = time.perf_counter() - begin
    best = min(plan.baselines, key=lambda estimate: estimate.step_s)
    seconds = f"{exact_s:.1f} s, gap {exact.gap:.2e}; step: {plan_s:.1f} s, {plan.search.gap:.2%}"
    print(f"{model} {mesh}: {seconds}", flush=True)
    return {
        "ops": len(program.ops),
        "exact_s": exact_s,
        "cost_s": exact.lower_bound_s / (1 - exact.gap),
        "lower_bound_s": exact.lower_bound_s,
        "plan_s": plan_s,
        "step_gap": plan.search.gap,
        "coordinate_s": coordinate_s,
        "coordinate_cost_s": descended.cost_s,
        "step_s": plan.estimate.step_s,
        "baseline": best.name,
        "baseline_step_s": best.step_s,
        "solver": plan.search.solver,
    }


def report(frame: pd.DataFrame, folder: Path) -> int:
    """Print the table and its extremes; write all of it; return the exit code."""
    frame["gap"] = 1 - frame.lower_bound_s / frame.cost_s
    frame["above"] = frame.coordinate_cost_s / frame.cost_s - 1
    frame["slower"] = frame.baseline_step_s / frame.step_s - 1
    print(frames.text(frame, COLUMNS))
    print(
        f"proven: {(frame.gap <= LEVEL).sum()} of {len(frame)}, largest gap {frame.gap.max():.4%}"
    )
    within = [f"{(frame.step_gap <= gap).sum()} within {gap:.0%}" for gap in (0.02, 0.05)]
    print(f"steps: {', '.join(within)} of their bounds, largest gap {frame.step_gap.max():.1%}")
    worst, least = frame.loc[frame.above.idxmax()], frame.loc[frame.slower.idxmin()]
    met = bool(least.slower >= -LEVEL)
    print(f"coordinate descent: {worst.above:+.2%} at most ({worst.model} on {worst.mesh})")
    print(
        f"best baseline: {least.slower:+.2%} at least ({least.model} on {least.mesh}; never below 0: "
        f"{'met' if met else 'MISSED'})"
    )
    frames.save(frame, folder, "zoo")
    return 0 if met else cli.MISSED


if __name__ == "__main__":
    sys.exit(cli.run(command, "bench.zoo"))
