"""How much faster one plan is than others, from steps that they took by turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import binom

CONFIDENCE = 0.95
LEAST = 0.01  # a ratio nearer to 1 is nobody's gain, however sure it is


class Gain(NamedTuple):
    """How many times as fast: the median over turns, and the interval that the true median lies in."""

    times: float
    low: float
    high: float
    certain: bool
    """Whether one of the two is faster, beyond the spread of the turns."""
    same: bool = False
    """Whether search and expert have found one plan."""

    def __str__(self) -> str:
        """Return it in words that go before the other's name; no number is within the spread."""
        if self.same:
            return "the same plan as"
        return f"{self.times:.2f} times as fast as" if self.certain else "as fast as"


def gain(ours_s: Sequence[float], theirs_s: Sequence[float], *, same: bool = False) -> Gain:
    """Return how many times as fast ours is; the steps of a turn are a pair, as slow phases hit both.

    The interval is from the k-th smallest to the k-th largest ratio, with the greatest k for which it
    misses the median with a chance of 5 % at most, whatever the distribution of ratios is. Fewer than six
    turns have no such k, and nothing is certain.

    Source: B. Arnold, N. Balakrishnan, H. Nagaraja, A first course in order statistics, 1992, §7.1.
    """
    ratios = np.sort(np.asarray(theirs_s) / np.asarray(ours_s))
    k = int(binom.ppf((1 - CONFIDENCE) / 2, len(ratios), 0.5))
    low, times, high = (
        float(ratios[max(k, 1) - 1]),
        float(np.median(ratios)),
        float(ratios[-max(k, 1)]),
    )
    certain = k > 0 and not low <= 1 <= high and abs(times - 1) >= LEAST
    return Gain(times, low, high, certain and not same, same)


def gain_text(gains: Mapping[str, Gain]) -> str:
    """Return in a line how fast ours is beside others: "ours is 1.50 times as fast as ZeRO 2"."""
    return "ours is " + ", ".join(f"{one} {name}" for name, one in gains.items())
