"""Hold predictions against the clock: errors, ranks, the best plan; the figure.

A frame has one row for each plan on a testbed (bed, model, plan, name), in seconds: `predicted_s` of the
step, less than `compute_s` plus `communication_s` where they overlap, give or take `uncertainty_s`;
`measured_s`, and `measured_communication_s` of the redistributions by themselves, one after another.
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


def with_errors(frame: pd.DataFrame) -> pd.DataFrame:
    """Add (predicted − measured) / measured of the step and, where there is any, the communication."""
    sent_s = frame.measured_communication_s.where(frame.measured_communication_s > 0)
    return frame.assign(
        error=frame.predicted_s / frame.measured_s - 1,
        communication_error=frame.communication_s / sent_s - 1,
    )


def of_steps(frame: pd.DataFrame) -> Row:
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


def repeated(score: Row) -> str:
    """Say how passes repeat, to be written behind what predictions are; nothing of a single pass."""
    if "repeat_spearman" not in score:
        return ""
    return (
        f"; one pass tells another with Spearman {score['repeat_spearman']:.3f}, mean error "
        f"{score['repeat_error']:.1%}"
    )


def score(frame: pd.DataFrame) -> Row:
    """Return how well steps are predicted, and their communication by itself.

    `communication_error` is the mean one; `covered` is the share of plans that took what was predicted ±
    its uncertainty.
    """
    found = with_errors(frame)
    off = (found.predicted_s - found.measured_s).abs()
    return {
        **of_steps(frame),
        "communication_error": found.communication_error.abs().mean(),  # NaN where there is none
        "covered": (off <= found.uncertainty_s).mean(),
    }


def draw(frame: pd.DataFrame, file: Path) -> None:
    """Draw predicted against measured times (AutoDDL fig. 4): above steps, below communication.

    One column for each testbed; ±15 % is grey.
    """
    beds = frame.groupby("bed", sort=False)
    figure, axes = figures.panels(2, beds.ngroups)
    kinds = (
        ("step", "measured_s", "predicted_s"),
        ("communication", "measured_communication_s", "communication_s"),
    )
    for row, (what, measured, predicted) in zip(axes, kinds, strict=True):
        for axis, (bed, mine) in zip(row, beds, strict=True):
            figures.against(axis, mine[mine[measured] > 0], measured, predicted, ["model"], BAND)
            axis.set(title=bed, xlabel=f"measured {what} (s)", ylabel=f"predicted {what} (s)")
    figures.save(figure, file)
