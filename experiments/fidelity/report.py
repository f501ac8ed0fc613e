"""Hold predictions against the clock: errors, ranks, the best plan; CSV and PNG."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Row:
    """One plan on one testbed, in seconds; the last two are measured, the others predicted.

    `predicted_s` is that of the step, less than compute plus communication where they overlap;
    `measured_communication_s` that of the redistributions by themselves, one after another.
    """

    bed: str
    model: str
    plan: str
    name: str
    compute_s: float
    communication_s: float
    uncertainty_s: float
    predicted_s: float
    measured_s: float
    measured_communication_s: float

    @property
    def error(self) -> float:
        """Return (predicted − measured) / measured of the step."""
        return self.predicted_s / self.measured_s - 1.0

    @property
    def communication_error(self) -> float | None:
        """Return the same of the communication; None where there is none."""
        measured_s = self.measured_communication_s
        return self.communication_s / measured_s - 1.0 if measured_s else None


@dataclass(frozen=True)
class Score:
    """How well the plans of a testbed are predicted.

    Errors are those of the step, but for `communication_error`, the mean one of the communication.
    `covered` is the share of plans that took what was predicted ± its uncertainty; `regret` how much
    slower the plan predicted best ran than the best one, the worst model's.
    """

    bed: str
    plans: int
    spearman: float
    mean_error: float
    communication_error: float
    worst_error: float
    bias: float
    covered: float
    regret: float


def scores(rows: Sequence[Row]) -> list[Score]:
    """Return a score for each testbed."""
    return [
        score(name, [r for r in rows if r.bed == name]) for name in _unique(r.bed for r in rows)
    ]


def score(name: str, rows: Sequence[Row]) -> Score:
    """Return the score of these plans together; the best plan is chosen within each model."""
    errors = np.array([row.error for row in rows])
    models = _unique(row.model for row in rows)
    return Score(
        name,
        len(rows),
        spearman([row.predicted_s for row in rows], [row.measured_s for row in rows]),
        float(np.mean(np.abs(errors))),
        _mean([abs(e) for row in rows if (e := row.communication_error) is not None]),
        float(np.max(np.abs(errors))),
        float(np.median(errors)),
        float(np.mean([abs(r.predicted_s - r.measured_s) <= r.uncertainty_s for r in rows])),
        max(regret([row for row in rows if row.model == model]) for model in models),
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def regret(rows: Sequence[Row]) -> float:
    """Return measured(plan predicted best) / measured(best plan) − 1."""
    chosen = min(rows, key=lambda row: row.predicted_s)
    return chosen.measured_s / min(row.measured_s for row in rows) - 1.0


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the rank correlation; ties share their mean rank."""
    if len(a) < 2:
        return float("nan")
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    array = np.asarray(values, dtype=float)
    below = (array[:, None] > array[None, :]).sum(axis=1)
    ties = (array[:, None] == array[None, :]).sum(axis=1)
    ranks: np.ndarray[tuple[int], np.dtype[np.float64]] = below + (ties + 1) / 2
    return ranks


def _unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def write_csv(rows: Sequence[Row], file: Path) -> None:
    """Write one line for each plan, seconds in full."""
    names = [field.name for field in fields(Row)] + ["error"]
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, names)
        writer.writeheader()
        for row in rows:
            writer.writerow({**asdict(row), "error": row.error})


def draw(rows: Sequence[Row], file: Path) -> None:
    """Draw predicted against measured times (AutoDDL fig. 4): above steps, below communication.

    One column for each testbed; ±15 % is grey.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    beds = _unique(row.bed for row in rows)
    colours = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")  # Okabe and Ito, told apart by all
    figure, axes = pyplot.subplots(2, len(beds), figsize=(4.2 * len(beds), 8.0), squeeze=False)
    kinds = (
        ("step", "measured_s", "predicted_s"),
        ("communication", "measured_communication_s", "communication_s"),
    )
    panels = ((kind, bed) for kind in kinds for bed in beds)
    for axis, ((what, measured, predicted), bed) in zip(axes.flat, panels, strict=True):
        here = [row for row in rows if row.bed == bed and getattr(row, measured) > 0]
        points = {
            model: [(getattr(r, measured), getattr(r, predicted)) for r in here if r.model == model]
            for model in _unique(row.model for row in here)
        }
        for (model, pairs), colour in zip(points.items(), colours, strict=False):
            axis.scatter(*zip(*pairs, strict=True), s=18, color=colour, label=model, alpha=0.8)
        values = [value for pairs in points.values() for pair in pairs for value in pair]
        if not values:
            continue
        limits = [0.8 * min(values), 1.25 * max(values)]
        axis.plot(limits, limits, color="black", linewidth=0.8)
        axis.fill_between(
            limits, [0.85 * v for v in limits], [1.15 * v for v in limits], color="0.9", zorder=0
        )
        axis.set(xscale="log", yscale="log", xlim=limits, ylim=limits, title=bed)
        axis.set(xlabel=f"measured {what} (s)", ylabel=f"predicted {what} (s)")
        axis.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(file, dpi=130)
    pyplot.close(figure)
