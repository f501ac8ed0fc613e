"""Steps of plans that ran by turns: medians, and ratios of two plans with bootstrap intervals.

Each pass is a set of processes of its own, in which plans take turns after each step: a resample draws
passes, then rounds of each, the same ones of both plans, so that a slow phase of the machine hits both. A
single pass has no interval: that of its rounds leaves out by how much passes differ, which is more.

Source: B. Efron, R. Tibshirani, An introduction to the bootstrap, 1993 (percentile interval, two stages).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

RESAMPLES = 2000
CONFIDENCE = 0.99
LEAST_PASSES = 2  # with an interval: passes differ more than the steps of one

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]
Passes = Sequence[Sequence[float]]
"""Seconds of the timed steps, by pass."""


class Ratio(NamedTuple):
    """Of the medians of two plans, and its interval, NaN where there is none."""

    ratio: float
    low: float
    high: float


def median_s(passes: Passes) -> float:
    """Return the median over passes of each pass's median step."""
    return float(np.median([np.median(steps) for steps in passes]))


def ratio(plan: Passes, ours: Passes, seed: int = 0) -> Ratio:
    """Return how many times as long a plan takes as ours; passes are pairs, and so are their rounds.

    Passes of 1.0 and 1.2 s against 0.8 and 0.8 s: medians of 1.1 and 0.8 s, 1.375.
    """
    value = median_s(plan) / median_s(ours)
    if len(plan) < LEAST_PASSES:
        return Ratio(value, math.nan, math.nan)
    rng = np.random.default_rng(seed)
    chosen = rng.integers(0, len(plan), (RESAMPLES, len(plan)))
    rounds = [
        rng.integers(0, min(map(len, both)), ((chosen == number).sum(), min(map(len, both))))
        for number, both in enumerate(zip(plan, ours, strict=True))
    ]
    drawn = _drawn_s(plan, chosen, rounds) / _drawn_s(ours, chosen, rounds)
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Ratio(value, float(low), float(high))


def _drawn_s(passes: Passes, chosen: Numbers, rounds: Sequence[Numbers]) -> Floats:
    """Return the median of each resample: a row of numbers of passes, each with its drawn rounds."""
    found = np.empty(chosen.shape)
    for number, (steps, drawn) in enumerate(zip(passes, rounds, strict=True)):
        found[chosen == number] = np.median(np.asarray(steps)[drawn], axis=1)
    medians: Floats = np.median(found, axis=1)
    return medians


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean; NaN of none."""
    return float(np.exp(np.mean(np.log(values)))) if len(values) else float("nan")
