"""What the clock says of plans: a row for each, what ours is to the others, bars, tables, figures.

Ratios are to ours. Where data parallelism is predicted to communicate
for 30 % of its step or more a workload counts as bound by bandwidth. Plans that train something else, by
their losses, are not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.fidelity import scores
from experiments.figures.clock.clock_runs import ClockRuns, Samples, Turn
from experiments.figures.clock.clock_workloads import ClockWorkload
from experiments.figures.clock.contestants import DATA, EXPERTS, OURS, PEER, Contestant
from experiments.figures.clock.ratios import Ratio, geometric_mean, median_s, ratio
from experiments.lib import cli, figures, frames
from experiments.lib.frames import Row

BANDWIDTH_BOUND = 0.3
# What has to be reached: of each workload; of the means of those bound by bandwidth; of predictions.
OF_BEST, OVER_EXPERT, OVER_DATA, OVER_PEER = 1.03, 1.3, 1.8, 1.3
SPEARMAN, MEAN_ERROR = 0.98, 0.10
PARITY = 1e-4  # of losses to those of one device, relative
# From which on a plan trains something else and is not compared: OneFlow's auto-parallel gives each rank
# batch statistics of its own, others are off by rounding that grows with the steps.
OTHER_TRAINING = 0.02
COLUMNS: frames.Formats = {
    "workload": "{}", "plan": "{}", "mesh": "{}", "predicted_s": "{:.3f}", "measured_s": "{:.3f}",
    "error": "{:+.0%}", "ratio": "{:.2f}", "interval": "{}", "loss_error": "{:.0e}", "note": "{}",
}  # fmt: skip
MEANS: frames.Formats = {
    "over": "{}", "workloads": "{}", "mean": "{:.2f}", "predicted": "{:.2f}", "most": "{:.2f}",
    "bar": "{}",
}  # fmt: skip


def rows(
    one: ClockWorkload, bed: str, plans: Sequence[Contestant], runs: ClockRuns, profile: str
) -> list[Row]:
    """Return a row for each contestant: what is predicted, and what was measured."""
    ours, found = runs.samples(OURS), []
    for each in plans:
        row: Row = {
            "figure": one.figure, "workload": one.key, "model": one.model, "bed": bed,
            "plan": ", ".join(each.names), "mesh": each.mesh, "profile": profile, **runs.of(each.key),
        }  # fmt: skip
        if each.file is not None:
            plan = each.plan()
            cost = plan.estimate
            row |= {
                "predicted_s": cost.step_s, "compute_s": cost.compute_s,
                "communication_s": cost.communication_s, "bound_s": plan.search.lower_bound_s,
            }  # fmt: skip
        taken = runs.samples(each.key)
        if taken:
            in_order = [median_s([taken[key] for key in same]) for same in _by_number(taken)]
            row |= {"measured_s": median_s([*taken.values()]), "passes_s": in_order}
        if (row["loss_error"] or 0.0) <= OTHER_TRAINING:
            row |= _of_pairs(taken, ours)
        found.append(row)
    return found


def _by_number(keys: Iterable[Turn]) -> list[list[Turn]]:
    """Return the turns of each pass."""
    return [[*same] for _, same in groupby(sorted(keys), key=lambda turn: turn[0])]


def _of_pairs(plan: Samples, ours: Samples) -> Row:
    """Return how many times as long as ours a plan takes, where both took turns; nothing if nowhere."""
    both = sorted(plan.keys() & ours.keys())
    if not both:
        return {}
    if plan == ours:
        return Ratio(1.0, 1.0, 1.0)._asdict()
    return ratio([plan[turn] for turn in both], [ours[turn] for turn in both])._asdict()


def report(frame: pd.DataFrame, folder: Path, reasons: Mapping[str, str]) -> int | None:
    """Print, write and draw; return the exit code. `reasons` say what could not be measured."""
    for name in ("measured_s", "ratio", "low", "high"):
        frame[name] = frame.get(name, pd.Series(dtype=float)).astype(float)
    shown = frame.assign(
        error=frame.predicted_s / frame.measured_s - 1,
        interval=[_interval(a, b) for a, b in zip(frame.low, frame.high, strict=True)],
        note=frame.error,
    )
    print(frames.text(shown, COLUMNS))
    bound = bandwidth_bound(frame)
    said = means(frame, bound)
    print(frames.text(said, MEANS))
    known, scored = frame.dropna(subset=["predicted_s", "measured_s"]), Row()
    told = "Nothing was measured: " + "; ".join(reasons.values())
    if len(known):
        scored = scores.score(known.assign(model=known.workload))
        scored |= scores.repeats(known.passes_s.tolist())
        told = (
            f"Predicted steps are {scored['mean_error']:.1%} off on average "
            f"({scored['scaled_error']:.1%} if one number scales all of a workload), rank correlation "
            f"{scored['spearman']:.3f}, over {scored['plans']} plans."
        )
    print(told)
    missed = _missed(frame, said, scored)
    for line in missed:
        print(f"missed: {line}")
    facts = {
        "scores": scored, "means": said.to_dict("records"), "missed": missed,
        "not_measured": dict(reasons), "bandwidth_bound": sorted(bound),
    }  # fmt: skip
    told += "".join(f"\n- missed: {line}" for line in missed)
    over = "How many times as long as ours, geometric means of the workloads bound by bandwidth:"
    tables = [(told, shown, COLUMNS), (over, said, MEANS)]
    frames.save(shown.drop(columns=["passes_s"], errors="ignore"), folder, "clock", tables, **facts)
    for figure, mine in frame.groupby("figure", sort=False):
        draw(mine, folder / str(figure))
    return cli.MISSED if missed else None


def _interval(low: Any, high: Any) -> str:
    return f"{low:.2f} to {high:.2f}" if pd.notna(low) else ""


def _named(frame: pd.DataFrame, *names: str) -> pd.DataFrame:
    """Return the rows of plans that have one of these names."""
    has_one = frame.plan.map(lambda plan: not set(names).isdisjoint(plan.split(", ")))
    return frame[has_one.astype(bool)]


def bandwidth_bound(frame: pd.DataFrame) -> set[str]:
    """Return the workloads in which data parallelism is predicted to wait for links so much."""
    data = _named(frame, DATA)
    return set(data.workload[data.communication_s >= BANDWIDTH_BOUND * data.predicted_s])


def means(frame: pd.DataFrame, bound: set[str]) -> pd.DataFrame:
    """Return the geometric means of how many times as long as ours the others take.

    Of the workloads bound by bandwidth: the best expert's plan, data parallelism, OneFlow's own. Beside
    what was measured are what is `predicted`, and the `most` that any plan could gain by the proven
    bounds of the step (of plans without stages).
    """
    mine = frame[frame.workload.isin(bound)]
    experts = _named(mine, *EXPERTS)
    ours = mine[mine.plan.str.startswith(OURS)].set_index("workload")
    peers = mine[mine.plan.str.startswith(PEER)]
    kinds = [
        ("the best expert", experts, OVER_EXPERT),
        (DATA, _named(mine, DATA), OVER_DATA),
        ("OneFlow's auto-parallel", peers, OVER_PEER),
    ]
    found = []
    for name, of, bar in kinds:
        run = of.dropna(subset=["ratio"]).groupby("workload")
        best, least_s, to = run.ratio.min(), run.predicted_s.min(), ours.loc[[*run.groups]]
        found.append({
            "over": name, "workloads": len(best), "mean": geometric_mean(best.tolist()),
            "predicted": geometric_mean((least_s / to.predicted_s).tolist()),
            "most": geometric_mean((least_s / to.bound_s).tolist()), "bar": bar,
        })  # fmt: skip
    return pd.DataFrame(found)


def _missed(frame: pd.DataFrame, said: pd.DataFrame, scored: Row) -> list[str]:
    """Return in words which bars are missed by what was measured."""
    found = []
    for workload, mine in frame.dropna(subset=["ratio"]).groupby("workload", sort=False):
        best, faster = mine.loc[mine.ratio.idxmin()], 1 / mine.ratio.min()
        if faster > OF_BEST:
            found.append(f"{workload}: {best.plan} is faster, {faster:.3f} times (bar {OF_BEST})")
    low = said[said["mean"] < said.bar]
    found += [f"mean over {r.over}: {r.mean:.2f} (bar {r.bar})" for r in low.itertuples()]
    off: list[Any] = [*frame[frame.loss_error > PARITY].itertuples()]
    for row in off:
        other = ", so it is not compared" * (row.loss_error > OTHER_TRAINING)
        found.append(f"{row.workload}: losses of {row.plan} are off by {row.loss_error:.1e}{other}")
    dead = frame[frame.error != ""].itertuples()
    found += [f"{row.workload}: {row.plan} did not run: {row.error}" for row in dead]
    if scored and scored["mean_error"] > MEAN_ERROR:
        found.append(f"mean error {scored['mean_error']:.1%} (bar {MEAN_ERROR:.0%})")
    if scored and scored["spearman"] < SPEARMAN:
        found.append(f"rank correlation {scored['spearman']:.3f} (bar {SPEARMAN})")
    return found


def draw(frame: pd.DataFrame, file: Path) -> None:
    """Draw the steps of a figure: bars as measured; predictions as diamonds."""
    workloads = list(dict.fromkeys(frame.workload))
    figure, (axes,) = figures.panels(1, len(workloads), (2.6, 3.9))
    for axis, workload in zip(axes, workloads, strict=True):
        mine = frame[frame.workload == workload]
        places = range(len(mine))
        axis.bar(places, mine.measured_s, color=figures.COLOURS[0], label="measured")
        axis.plot(places, mine.predicted_s, "kD", markersize=4, label="predicted")
        for place in (n for n, error in enumerate(mine.error) if error):
            axis.text(place, 0.0, " did not run", rotation=90, ha="center", va="bottom", fontsize=7)
        axis.set_xticks(places, mine.plan, rotation=90, fontsize=8)
        axis.set(title=workload, ylabel="step (s)")
    known = axes[0].get_legend_handles_labels()
    figure.legend(*known, loc="outside upper center", ncols=2, frameon=False, fontsize=7)
    figures.save(figure, file)
