"""Non-negative least squares of measured times, outliers, and the bootstrap; plain arrays only.

The model is seconds = rows · x with x >= 0, where rows (points × unknowns) hold how often each unknown
counts in each point. What delays a point comes at some rate per second, so the variance of its time
grows with that time: the sum of (rows·x − seconds)²/seconds is least. Where a line does not fit all
sizes this is a middle way: where links let the first bytes of each message through at once, least
relative errors missed those of 4 MiB, which steps consist of, by 14 and 22 % (44 steps by 11 %, these
weights by 7 %), and least absolute ones those of 1 KiB by up to 87 %. Rows (1, 8) and (1, 80) that took
18 s and 90 s give x = (10, 1).
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt
from scipy.optimize import lsq_linear

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

WILD_FACTOR = 2.0  # a point is wild if it is off the line by more than this factor …
WILD_SPREADS = 5.0  # … and by more than so many times the spread of the majority
_MOST_PAIRS = 20_000
_ROUNDS = 10


def solve(rows: Floats, seconds: Floats, scale_s: Floats | None = None) -> Floats:
    """Return the x >= 0 with the least squares of (rows·x − seconds)/√scale_s, by default the seconds.

    Columns are normalised first: seconds per byte are 10⁻⁹ of seconds per message. (`nnls` of scipy
    1.15 stops short of the least in 1 of 1,000 random systems, bounded least squares does not.)

    Source: Stark, Parker, Bounded-Variable Least-Squares, Computational Statistics 10, 1995.
    """
    scale = np.maximum(np.max(rows, axis=0), 1e-300)
    spreads = np.sqrt(seconds if scale_s is None else scale_s)
    a, b = rows / scale / spreads[:, None], seconds / spreads
    x = np.linalg.lstsq(a, b, rcond=-1)[0]  # so does lsq_linear begin, but four times as slowly
    if (x < 0).any():
        x = lsq_linear(a, b, (0, np.inf), method="bvls", tol=1e-15).x
    return np.asarray(x / scale)


def tells_apart(rows: Floats, seconds: Floats) -> bool:
    """Tell whether the points determine all unknowns."""
    if len(rows) < rows.shape[1]:
        return False
    scaled = rows / np.max(rows, axis=0) / seconds[:, None] * seconds[0]
    return int(np.linalg.matrix_rank(scaled)) == rows.shape[1]


def tame(rows: Floats, seconds: Floats) -> Mask:
    """Return which points are not wild: near the line that the majority of the points agree on.

    The search starts from the line through two points whose (n/2 + 1)-th smallest distance to all
    points is least (least quantile of squares; distances are |log(predicted/measured)|). Points near
    it are fitted, and points near that fit taken in again, until nothing changes: a majority of long
    messages tells α badly, so that short ones may look wild at first. More than a quarter of
    wild points mean that the line does not fit at all; then all are kept.
    """
    count = len(seconds)
    every = np.ones(count, dtype=bool)
    off, spread = _through_two(rows, seconds)
    limit = max(math.log(WILD_FACTOR), WILD_SPREADS * spread)
    keep = off <= limit
    for _ in range(_ROUNDS):
        if not tells_apart(rows[keep], seconds[keep]):
            return every
        again = distances(rows @ solve(rows[keep], seconds[keep]), seconds) <= limit
        if np.array_equal(again, keep):
            break
        keep = again
    if np.sum(~keep) > count // 4 or not tells_apart(rows[keep], seconds[keep]):
        return every
    return keep


def distances(predicted: Floats, seconds: Floats) -> Floats:
    """Return |log(predicted/measured)|."""
    return np.asarray(np.abs(np.log(np.maximum(predicted, 1e-300) / seconds)))


def _through_two(rows: Floats, seconds: Floats) -> tuple[Floats, float]:
    """Return the distances from the best line through two points, and their middle one."""
    count = len(seconds)
    a = rows / np.max(rows, axis=0) / seconds[:, None]
    pairs = np.array(list(itertools.combinations(range(count), 2)))
    if len(pairs) > _MOST_PAIRS:
        pairs = np.random.default_rng(0).choice(pairs, _MOST_PAIRS, replace=False)
    first, second = a[pairs[:, 0]], a[pairs[:, 1]]
    both = np.stack([first, second], axis=1)  # pairs × 2 points × 2 unknowns
    determinant = np.linalg.det(both)
    good = np.abs(determinant) > 1e-12 * np.max(np.abs(both), axis=(1, 2)) ** 2
    lines = np.zeros((len(pairs), 2))
    lines[good] = np.linalg.solve(both[good], np.ones((int(good.sum()), 2, 1)))[..., 0]
    flat = ~good | (lines < 0).any(axis=1)  # through both only with one unknown 0, and not quite
    edges = both.sum(axis=1) / (both**2).sum(axis=1)
    errors = ((both * edges[:, None, :] - 1) ** 2).sum(axis=1)
    better = errors[:, 0] <= errors[:, 1]
    lines[flat] = (edges * np.stack([better, ~better], axis=1))[flat]
    off = distances(lines @ a.T, np.ones(count))
    middle = np.sort(off, axis=1)[:, min(count - 1, count // 2)]
    best = int(np.argmin(middle))
    return off[best], float(middle[best])


def bootstrap(rows: Floats, seconds: Floats, *, draws: int, seed: int) -> Floats | None:
    """Return draws × unknowns: solutions for times made up from the fit and its own errors.

    Each draw multiplies every predicted time by 1 + a relative error drawn from those of all points,
    enlarged by √(n/(n − k)) since k unknowns were fitted to them. Drawing points instead would
    often leave too few message sizes. None where no points are left over to tell errors from.
    """
    count, unknowns = rows.shape
    if count <= unknowns:
        return None
    predicted = rows @ solve(rows, seconds)
    errors = (seconds - predicted) / predicted
    # Their mean stays: dividing by the measured time favours lines below, then as now.
    errors = np.mean(errors) + (errors - np.mean(errors)) * math.sqrt(count / (count - unknowns))
    drawn = np.random.default_rng(seed).choice(errors, (draws, count))
    times = predicted * np.maximum(1 + drawn, 0.01)
    return np.array([solve(rows, row) for row in times])


def r2(predicted: Floats, seconds: Floats) -> float:
    """Return the share of the variance of `seconds` that `predicted` explains."""
    total = float(np.sum((seconds - np.mean(seconds)) ** 2))
    rest = float(np.sum((seconds - predicted) ** 2))
    if total == 0.0:
        return 1.0 if rest == 0.0 else 0.0
    return 1.0 - rest / total
