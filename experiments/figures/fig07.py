"""How soon each solver finds how good a plan (AutoDDL, figure 7): `python -m experiments.figures.fig07`.

Every model is searched by every solver with several seeds. Relative run time is the cost of the best
plan so far divided by that of the best one that any solver found; lines are medians over the seeds,
bands the range. Each finished search is a line of runs.jsonl at once: a run that is cut off goes on
from there. Solvers for which a model is too large are named and left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from math import inf
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd

from autoddl.errors import InfeasibleError
from autoddl.perfmodel import profile as profiles
from autoddl.sbp.mesh import Mesh
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.result import SearchOptions
from autoddl.search.solvers.named import SOLVERS
from experiments.lib import cli, figures, frames
from experiments.lib import oneflow_problems as builder
from experiments.lib.frames import Row, RowStore
from experiments.lib.programs import captured

# Name here: the zoo's model and its size.
MODELS = {
    "alexnet": ("alexnet", "alexnet"),
    "vgg": ("vgg13", "vgg13"),
    "gpt": ("gpt", "gpt2_small"),
    "dlrm": ("dlrm", "kaggle"),
}
# The paper's searches and exact; the ILP is a check of the others, fast is exact that ends earlier.
COMPARED = tuple(name for name in SOLVERS if name not in ("astar", "fast", "hap", "hidup", "ilp"))
THIN = 1e-4  # relative; of a trace those improvements are kept that are larger
WITHIN = 0.03  # of the best cost: the paper's figure for coordinate descent
POINTS = 200  # of a curve
COLUMNS: frames.Formats = {
    "model": "{}", "solver": "{}", "seeds": "{}", "relative": "{:.4f}", "low": "{:.4f}",
    "high": "{:.4f}", "within_s": lambda s: "never" if s == inf else f"{s:.2f}",
    "evaluations": "{:,.0f}",
}  # fmt: skip


@click.command(help=__doc__)
@click.option("--models", default=",".join(MODELS), show_default=True)
@click.option("--mesh", default="2x4", show_default=True)
@click.option("--seconds", default=20.0, show_default=True, help="for each search")
@click.option("--seeds", default=3, show_default=True, help="0 to N − 1")
@cli.listed("--solvers", SOLVERS, COMPARED)
@click.option("--profile", default="v100-8x", show_default=True, help="file or bundled name")
@cli.folder("out/fig07")
def command(
    models: str, mesh: str, seconds: float, seeds: int, solvers: Sequence[str], profile: str, folder: Path
) -> None:  # fmt: skip
    """Run what is missing, print the table, write and draw it."""
    kept, runs = RowStore(folder / "runs.jsonl"), list[Row]()
    for model in models.split(","):
        program = captured(folder / "programs" / f"{model}.json", *MODELS.get(model, (model,)))
        known = profiles.load(profile, device_type=program.device)
        where = Mesh.parse(mesh, known.levels)
        problem = cache(partial(builder.build, program, where, known))
        for solver in solvers:
            for seed in range(seeds):
                key = {
                    "model": model, "program": program.fingerprint, "mesh": str(where),
                    "profile": known.name, "budget_s": seconds, "solver": solver, "seed": seed,
                }  # fmt: skip
                runs.append(kept.once(key, partial(_searched, problem, key)))
                if runs[-1]["error"]:  # what is too large for a solver is so with every seed
                    break
    report(runs, folder)


def _searched(problem: Callable[[], CostNetwork], key: Row) -> Row:
    """Return one search: its trace has (seconds since start, best cost so far in seconds)."""
    head = "{model} [{mesh}] {solver}, seed {seed}".format(**key)
    options = SearchOptions(budget=key["budget_s"], seed=key["seed"])
    try:
        found = SOLVERS[key["solver"]](problem(), options)
    except InfeasibleError as error:
        print(f"{head}: left out: {error}", flush=True)
        return {"error": str(error), "evaluations": 0, "trace": []}
    print(f"{head}: {found.cost_s * 1e3:.4g} ms, {found.evaluations:,} evaluations", flush=True)
    return {"error": "", "evaluations": found.evaluations, "trace": thinned(found.trace)}


def thinned(trace: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Return the first pair, those that improve by more than 0.01 %, and the last one."""
    kept: list[tuple[float, float]] = []
    pairs = list(trace)
    for number, pair in enumerate(pairs):
        edge = number in (0, len(pairs) - 1)
        if edge or pair[1] < kept[-1][1] * (1 - THIN):
            kept.append(pair)
    return tuple(kept)


def searches(runs: Sequence[Row]) -> pd.DataFrame:
    """Return the searches that ended with a plan; costs are relative to the model's best one."""
    frame = pd.DataFrame([r for r in runs if not r["error"]])
    frame["cost_s"] = [trace[-1][1] for trace in frame.trace]
    frame["best_s"] = frame.groupby("model").cost_s.transform("min")
    frame["relative"] = frame.cost_s / frame.best_s
    near = frame.best_s * (1 + WITHIN)
    frame["within_s"] = [
        next((t for t, cost in trace if cost <= level), inf)
        for trace, level in zip(frame.trace, near, strict=True)
    ]
    return frame


def summaries(frame: pd.DataFrame) -> pd.DataFrame:
    """Return where each solver's searches of a model ended, and when they were near the best cost."""
    named = {
        "seeds": ("seed", "size"), "relative": ("relative", "median"), "low": ("relative", "min"),
        "high": ("relative", "max"), "within_s": ("within_s", "median"),
        "evaluations": ("evaluations", "median"),
    }  # fmt: skip
    return frame.groupby(["model", "solver"], sort=False).agg(**named).reset_index()


def curve(frame: pd.DataFrame) -> pd.DataFrame:
    """Return how one solver gets better, from its first plan on; infinite while nothing is known."""
    first = max(1e-6, min(trace[0][0] for trace in frame.trace))
    last = max(*(trace[-1][0] for trace in frame.trace), frame.budget_s.iloc[0])
    times = np.geomspace(first, last, POINTS)
    times[-1] = last  # not just below, where the last plan is not known yet
    values: list[Any] = []
    for trace, best_s in zip(frame.trace, frame.best_s, strict=True):
        seconds, costs = np.array(trace).T
        known = np.concatenate([[inf], costs / best_s])
        values.append(known[np.searchsorted(seconds, times, side="right")])
    middle, low, high = (f(values, axis=0) for f in (np.median, np.min, np.max))
    return pd.DataFrame({"search_s": times, "median": middle, "low": low, "high": high})


def report(runs: Sequence[Row], folder: Path) -> None:
    """Print the table; write fig07.csv and .json (summaries), and the figure."""
    frame, found = searches(runs), summaries(searches(runs))
    print(frames.text(found, COLUMNS))
    refused = [[row["model"], row["solver"], row["error"]] for row in runs if row["error"]]
    for row in refused:
        print(f"left out: {': '.join(row)}")
    frames.save(found, folder, "fig07", [("", found, COLUMNS)], left_out=refused)
    groups = frame.groupby(["model", "solver"], sort=False)
    curves = pd.concat({key: curve(group) for key, group in groups}, names=["model", "solver"])
    draw(curves.reset_index(level=[0, 1]), folder / "fig07")


def draw(curves: pd.DataFrame, file: Path) -> None:
    """Draw one panel for each model: relative run time against search time, both logarithmic."""
    figure, axes = figures.panels(1, curves.model.nunique())
    look = {name: figures.curve(number) for number, name in enumerate(curves.solver.unique())}
    known = curves.replace(inf, np.nan)
    for axis, (model, mine) in zip(axes.flat, known.groupby("model", sort=False), strict=True):
        for solver, c in mine.groupby("solver", sort=False):
            axis.plot(c.search_s, c["median"], label=solver, **look[solver])
            axis.fill_between(c.search_s, c.low, c.high, color=look[solver]["color"], alpha=0.2)
        axis.axhline(1 + WITHIN, color="black", linewidth=0.8, label="3 % above")
        axis.set(xscale="log", yscale="log", title=model, xlabel="search time (s)")
        axis.legend(frameon=False)
    axes[0, 0].set_ylabel("run time / best found by any solver")
    figures.save(figure, file)


if __name__ == "__main__":
    sys.exit(cli.run(command, "figures.fig07"))
