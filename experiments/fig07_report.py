"""What figure 7 shows of the searches: curves, when they get near the best plan, CSV, JSON and PNG."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import inf, isinf
from pathlib import Path

import numpy as np

import autoddl
from autoddl.search.solvers import SOLVERS

WITHIN = 0.03  # of the best cost: the paper's figure for coordinate descent
POINTS = 200  # of a curve
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito


@dataclass(frozen=True)
class Setting:
    """What is searched, and for how many seconds; `program` is the fingerprint."""

    model: str
    program: str
    mesh: str
    profile: str
    budget_s: float


@dataclass(frozen=True)
class Run:
    """One search: `trace` has (seconds since start, best cost so far in seconds).

    `error` says why there is none.
    """

    setting: Setting
    solver: str
    seed: int
    evaluations: int = 0
    trace: tuple[tuple[float, float], ...] = ()
    error: str = ""

    @property
    def cost_s(self) -> float:
        """Return the cost of the plan found."""
        return self.trace[-1][1] if self.trace else inf

    def until_s(self, cost_s: float) -> float:
        """Return the seconds until a plan of at most this cost was known, infinity for never."""
        return next((t for t, cost in self.trace if cost <= cost_s), inf)


@dataclass(frozen=True)
class Group:
    """The runs of one solver on one model, and the best cost that any solver found for it."""

    model: str
    solver: str
    runs: tuple[Run, ...]
    best_s: float


@dataclass(frozen=True)
class Curve:
    """Relative run time over search time, over the seeds; infinite while nothing is known."""

    model: str
    solver: str
    seconds: tuple[float, ...]
    median: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Summary:
    """Medians over the seeds of one solver on one model, and the range of the relative run time.

    `within_s` is when the search was within 3 % of the best cost, infinite for never.
    """

    model: str
    solver: str
    seeds: int
    relative: float
    low: float
    high: float
    within_s: float
    evaluations: float


def groups(runs: Iterable[Run]) -> list[Group]:
    """Return the searches that ended with a plan, by model and solver."""
    found = [r for r in runs if not r.error]
    kinds = dict.fromkeys((r.setting.model, r.solver) for r in found)
    return [
        Group(
            model,
            solver,
            tuple(r for r in found if (r.setting.model, r.solver) == (model, solver)),
            min(r.cost_s for r in found if r.setting.model == model),
        )
        for model, solver in kinds
    ]


def curve(group: Group) -> Curve:
    """Return how a solver gets better, from its first plan on."""
    runs = group.runs
    first = max(1e-6, min(r.trace[0][0] for r in runs))
    last = max(*(r.trace[-1][0] for r in runs), runs[0].setting.budget_s)
    times = np.geomspace(first, last, POINTS)
    times[-1] = last  # not just below, where the last plan is not known yet
    values = []
    for r in runs:
        seconds, costs = np.array(r.trace).T
        known = np.concatenate([[inf], costs / group.best_s])
        values.append(known[np.searchsorted(seconds, times, side="right")])
    middle, low, high = np.median(values, axis=0), np.min(values, axis=0), np.max(values, axis=0)
    return Curve(
        group.model, group.solver, *(tuple(row.tolist()) for row in (times, middle, low, high))
    )


def summary(group: Group) -> Summary:
    """Return where a solver's searches ended, and when they were near the best cost."""
    relative = [r.cost_s / group.best_s for r in group.runs]
    near = [r.until_s(group.best_s * (1 + WITHIN)) for r in group.runs]
    return Summary(
        group.model,
        group.solver,
        len(group.runs),
        float(np.median(relative)),
        min(relative),
        max(relative),
        float(np.median(near)),
        float(np.median([r.evaluations for r in group.runs])),
    )


def report(runs: Sequence[Run], folder: Path) -> None:
    """Print the table; write fig07.csv (curves), fig07.json (settings, summaries) and fig07.png."""
    by_solver = groups(runs)
    curves, rows = [curve(g) for g in by_solver], [summary(g) for g in by_solver]
    for line in table(rows):
        print(line)
    refused = [r for r in runs if r.error]
    for r in refused:
        print(f"left out: {r.setting.model}: {r.error}")
    write_csv(folder / "fig07.csv", curves)
    data = {
        "versions": {"autoddl": autoddl.__version__, "numpy": np.__version__},
        "settings": [asdict(s) for s in dict.fromkeys(r.setting for r in runs)],
        "seeds": sorted({r.seed for r in runs}),
        "summaries": [
            asdict(s) | {"within_s": None if isinf(s.within_s) else s.within_s} for s in rows
        ],
        "left_out": [[r.setting.model, r.solver] for r in refused],
    }
    (folder / "fig07.json").write_text(json.dumps(data, indent=1) + "\n")
    draw(folder / "fig07.png", curves)
    print(f"wrote {folder}/fig07.csv, fig07.json, fig07.png")


def table(rows: Sequence[Summary]) -> Iterator[str]:
    """Yield one line per model and solver."""
    yield (
        f"{'model':12} {'solver':12} {'seeds':>5} {'relative run time (range)':>27} "
        f"{'s to within 3 %':>15} {'evaluations':>12}"
    )
    for s in rows:
        spread = f"{s.relative:.4f} ({s.low:.4f} to {s.high:.4f})"
        within = "never" if isinf(s.within_s) else f"{s.within_s:.2f}"
        yield (
            f"{s.model:12} {s.solver:12} {s.seeds:5} {spread:>27} {within:>15} {s.evaluations:12,.0f}"
        )


def write_csv(file: Path, curves: Iterable[Curve]) -> None:
    """Write every point of every curve; times in seconds, run times relative to the best."""
    with file.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["model", "solver", "search_s", "median", "low", "high"])
        for c in curves:
            for row in zip(c.seconds, c.median, c.low, c.high, strict=True):
                writer.writerow([c.model, c.solver, *(f"{value:.6g}" for value in row)])


def draw(file: Path, curves: Sequence[Curve]) -> None:
    """Draw one panel for each model: relative run time against search time, both logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    models = list(dict.fromkeys(c.model for c in curves))
    colour = dict(zip(SOLVERS, COLOURS * len(SOLVERS), strict=False))
    figure, axes = pyplot.subplots(
        1, max(1, len(models)), figsize=(4.2 * max(1, len(models)), 3.8), squeeze=False
    )
    for axis, model in zip(axes.flat, models, strict=False):
        for c in (c for c in curves if c.model == model):
            middle, low, high = (
                np.where(np.isinf(v), np.nan, v) for v in (c.median, c.low, c.high)
            )
            axis.plot(c.seconds, middle, color=colour[c.solver], label=c.solver)
            axis.fill_between(c.seconds, low, high, color=colour[c.solver], alpha=0.2)
        axis.axhline(1 + WITHIN, color="black", linewidth=0.8, linestyle=":", label="3 % above")
        axis.set(xscale="log", yscale="log", title=model, xlabel="search time (s)")
        axis.legend(frameon=False)
    axes[0, 0].set_ylabel("run time / best found by any solver")
    figure.tight_layout()
    figure.savefig(file, dpi=150)
    pyplot.close(figure)
