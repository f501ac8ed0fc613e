"""What repeated calls on all ranks say of one collective, or of one op; NumPy only."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from autoddl.calibrate.network.link_cases import CollectiveCase, Timing

Floats = npt.NDArray[np.float64]


def timing_of(case: CollectiveCase, size_bytes: float, taken: Floats) -> Timing:
    """Return the row of repeated calls; `taken` is [repetitions, 2], seconds of chain and twin."""
    each = (taken[:, 0] - taken[:, 1]) / case.steps
    typical = typical_of(each)
    least, middle, most = (float(x) for x in np.quantile(each, (0, 0.5, 1)))
    return Timing(case, size_bytes, len(each), typical, least, middle, most)


def typical_of(values: Floats) -> float:
    """Return the Hodges–Lehmann estimate, the median of the means of all pairs of values.

    A third may be wild, and it repeats nearly as well as the mean. (Of two halves of a measurement
    on crowded cores, it differed by 17 %, the median by 21 %, quartiles by more.)
    """
    first, second = np.triu_indices(len(values))
    return float(np.median((values[first] + values[second]) / 2))


def in_step(seconds: Floats, calls_s: Floats) -> Floats:
    """Return what ops take in a step whose ranks wait for each other.

    `seconds` is [ranks, ops], `calls_s` [ranks, calls]: all ops of each call together. An op takes the
    mean of all ranks, times how much longer the slowest rank of a call takes than the mean one.
    """
    wait = float(calls_s.max(0).sum() / calls_s.mean(0).sum())
    taken: Floats = seconds.mean(0) * wait
    return taken
