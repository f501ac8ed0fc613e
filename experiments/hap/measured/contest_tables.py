"""What came of the turns: ratios beside our plan, the scan of share vectors, aims, the figure.

A frame has a row for each plan of a model on a bed: what was predicted, the median of its steps, and how
many times as long as ours it takes, with the interval of that (experiments.demo.gains).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.demo.gains import gain
from experiments.hap.measured.contest_plans import EVEN, OURS, PARTS, VECTOR, VIRTUAL
from experiments.hap.measured.contest_runs import ModelRuns
from experiments.lib import figures
from experiments.lib.frames import Formats, Row

EVEN_SCRIPT = f"{VECTOR}1/1"
ALIKE = 1e-3  # losses of the first steps, by rounding
OVER_EVEN, SLOWER = 1.4, 3.0  # aims: where the slow node takes more than so many times as long
OVER_PARTS, WORTH = 1.05, 1.1  # where ideal is so many times as fast
OF_BEST, NEAREST = 1.03, 5  # of the vectors nearest to the rates, even ones not counted

GAINS: Formats = {
    "bed": "{}", "model": "{}", "rates": "{:.2f}", "slower": "{:.2f}", "mesh": "{}",
    "ours_s": "{:.3f}", "even": "{}", "even script": "{}", "parts": "{}", "ideal over parts": "{:.2f}",
    "virtual ranks": "{}", "best of scan": "{}", "losses apart": "{:.0e}", "missed": "{}",
}  # fmt: skip
SCANS: Formats = {
    "bed": "{}", "model": "{}", "vectors": "{}", "spearman": "{:.3f}", "fastest": "{}",
    "predicted fastest": "{}",
}  # fmt: skip
STEPS: Formats = {
    "bed": "{}", "model": "{}", "plan": "{}", "predicted_s": "{:.3f}", "measured_s": "{:.3f}",
    "times": "{:.2f}", "low": "{:.2f}", "high": "{:.2f}",
}  # fmt: skip


def rows(runs: ModelRuns) -> Iterator[Row]:
    """Yield the rows of a model's plans that have been run."""
    samples, losses = dict[str, list[float]](), dict[str, list[float]]()
    for row in runs.kept.having(rounds=runs.study.rounds):
        samples.setdefault(row["plan"], []).extend(row["samples_s"])
        losses[row["plan"]] = row["losses"]
    ours = next((row["runs"] for row in runs.plans if row["plan"] == OURS), "")
    for row in runs.plans:
        if row["runs"] in samples and ours in samples:
            mine = samples[row["runs"]]
            beside = gain(samples[ours], mine, same=row["runs"] == ours)
            yield {
                "bed": runs.bed.name, "model": runs.model, "plan": row["plan"], "mesh": row["mesh"],
                "predicted_s": row["predicted_s"], "measured_s": float(np.median(mine)),
                "times": beside.times, "low": beside.low, "high": beside.high,
                "apart": float(np.abs(np.subtract(losses[row["runs"]], losses[ours])).max()),
                "ideal_s": row["ideal_s"], "slower": row["slower"],
                "rates": runs.faster, "samples_s": mine,
            }  # fmt: skip


def gains(frame: pd.DataFrame) -> pd.DataFrame:
    """Return for each model on each bed how many times as long as ours others take, and what misses."""
    found = []
    for (bed, model), mine in frame.groupby(["bed", "model"], sort=False):
        plan = mine.set_index("plan")
        ours, scan = plan.loc[OURS], scanned(mine)
        best = scan[scan.measured_s == scan.measured_s.min()].iloc[0]
        worth = plan.predicted_s[PARTS] / ours.ideal_s
        told = {
            name: _ratio(plan.loc[name]) for name in (EVEN, PARTS, VIRTUAL) if name in plan.index
        }
        found.append({
            "bed": bed, "model": model, "rates": ours.rates, "slower": ours.slower, "mesh": ours.mesh,
            "ours_s": ours.measured_s, **told, "even script": _ratio(plan.loc[EVEN_SCRIPT]),
            "ideal over parts": worth, "best of scan": f"{_ratio(best)} {_vector(best.plan)}",
            "losses apart": mine.apart.max(), "missed": ", ".join(missed(mine)),
        })  # fmt: skip
    return pd.DataFrame(found, columns=[*GAINS])


def missed(mine: pd.DataFrame) -> list[str]:
    """Return which aims the plans of one model on one bed miss."""
    plan = mine.set_index("plan")
    ours, times = plan.loc[OURS], plan.times
    even = min(times[name] for name in (EVEN, EVEN_SCRIPT) if name in times)
    nearest = [name for name in plan.index if name.startswith(VECTOR) and name != EVEN_SCRIPT]
    found = {
        "losses": mine.apart.max() > ALIKE,
        "over even": ours.slower > SLOWER and even < OVER_EVEN,
        "over parts": plan.predicted_s[PARTS] / ours.ideal_s >= WORTH and times[PARTS] < OVER_PARTS,
        "best of scan": any(times[name] < 1 / OF_BEST for name in nearest[:NEAREST]),
    }
    return [aim for aim, failed in found.items() if failed]


def scans(frame: pd.DataFrame) -> pd.DataFrame:
    """Return how well the order of share vectors is predicted, by Spearman's rank correlation."""
    found = []
    for (bed, model), mine in frame.groupby(["bed", "model"], sort=False):
        scan = scanned(mine).set_index("plan")
        fastest, predicted = scan.measured_s.idxmin(), scan.predicted_s.idxmin()
        found.append({
            "bed": bed, "model": model, "vectors": len(scan),
            "spearman": scan.predicted_s.corr(scan.measured_s, method="spearman"),
            "fastest": _vector(fastest), "predicted fastest": _vector(predicted),
        })  # fmt: skip
    return pd.DataFrame(found, columns=[*SCANS])


def scanned(mine: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of share vectors, the least share of the fast node first."""
    scan = mine[mine.plan.str.startswith(VECTOR)]
    return scan.assign(share=scan.plan.map(_share)).sort_values("share")


def draw(frame: pd.DataFrame, file: Path) -> None:
    """Draw steps over the fast node's share, predicted and measured, beside even plans and parts."""
    beds, models = [*dict.fromkeys(frame.bed)], [*dict.fromkeys(frame.model)]
    figure, axes = figures.panels(len(models), len(beds))
    for (bed, model), mine in frame.groupby(["bed", "model"], sort=False):
        axis, scan = axes[models.index(model)][beds.index(bed)], scanned(mine)
        axis.plot(scan.share, scan.predicted_s, **figures.curve(0), label="predicted")
        axis.plot(scan.share, scan.measured_s, "o", color=figures.COLOURS[1], label="measured")
        others = mine[mine.plan.isin((EVEN, PARTS, VIRTUAL))]
        for number, row in enumerate(others.itertuples(), start=2):
            axis.axhline(row.measured_s, **figures.curve(number), label=f"{row.plan}, measured")
        axis.set(title=f"{model}, {bed}", xlabel="share of the fast node", ylabel="step (s)")
        axis.set_ylim(bottom=0)
        axis.legend(frameon=False)
    figures.save(figure, file)


def _ratio(row: Any) -> str:
    return f"{row.times:.2f} ({row.low:.2f}–{row.high:.2f})"


def _vector(name: Any) -> str:
    return str(name).removeprefix(VECTOR)


def _share(name: str) -> float:
    fast, slow = map(int, _vector(name).split("/"))
    return fast / (fast + slow)


def joined(runs: Sequence[ModelRuns]) -> pd.DataFrame:
    """Return the frame of all models on all beds."""
    return pd.DataFrame([row for each in runs for row in rows(each)])
