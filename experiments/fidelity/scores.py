"""Hold predictions against the clock: errors, ranks, the best plan; the figure.

A frame has one row for each plan on a testbed: bed, model, plan, `predicted_s`, `measured_s` of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.lib import figures
from experiments.lib.frames import Row

BAND = 0.15  # what is grey in the figure


def score(frame: pd.DataFrame) -> Row:
    """Return how well the steps of these plans are predicted; the best plan is chosen within each model.

    `regret` is how much slower the plan predicted best ran than the best one, the worst model's.
    `scaled_error` is the mean error if predictions of each model are scaled to the same geometric mean
    as what was measured: a machine that was slower in the calibration has no part in it.
    """
    ratio = frame.predicted_s / frame.measured_s
    logarithms = pd.Series(np.log(ratio), index=ratio.index)
    scale = np.exp(logarithms.groupby(frame.model).transform("mean"))
    error = ratio - 1
    mine = frame.reset_index(drop=True)  # a plan each
    chosen = mine.loc[mine.groupby("model").predicted_s.idxmin()].set_index("model").measured_s
    return {
        "plans": len(frame),
        "spearman": frame.predicted_s.corr(frame.measured_s, method="spearman"),
        "mean_error": error.abs().mean(),
        "scaled_error": (ratio / scale - 1).abs().mean(),
        "worst_error": error.abs().max(),
        "bias": error.median(),
        "regret": (chosen / mine.groupby("model").measured_s.min()).max() - 1,
    }


def repeats(plans: Sequence[Sequence[float]]) -> Row:
    """Return how well one pass of plans tells another: no prediction can be expected to do better.

    `plans` has each plan's seconds in each pass; the last ones are left out where others have fewer. Two
    passes of 1, 2, 3 and 2, 1, 3 s: rank correlation 0.5, mean error of the first 50 % (-50, 100, 0).
    With more passes it is the mean of all pairs of them; of a single pass there is nothing to say.
    """
    passes = np.array([mine[: min(map(len, plans))] for mine in plans], dtype=float).T
    both = list(combinations(map(pd.Series, passes), 2))
    if not both:
        return {}
    return {
        "repeat_spearman": np.mean([a.corr(b, method="spearman") for a, b in both]),
        "repeat_error": np.mean([(a / b - 1).abs().mean() for a, b in both]),
    }


def draw(frame: pd.DataFrame, file: Path) -> None:
    """Draw predicted against measured steps (AutoDDL fig. 4), a panel for each testbed; ±15 % is grey."""
    beds = frame.groupby("bed", sort=False)
    figure, (row,) = figures.panels(1, beds.ngroups)
    for axis, (bed, mine) in zip(row, beds, strict=True):
        figures.against(axis, mine, "measured_s", "predicted_s", ["model"], BAND)
        axis.set(title=bed, xlabel="measured step (s)", ylabel="predicted step (s)")
    figures.save(figure, file)
