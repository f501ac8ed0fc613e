"""Fit α and β of a collective to measured points: relative least squares that survives outliers.

A point off by 1 ms counts as much as its share of the time it was measured at, so that short and
long messages weigh the same. Both parameters stay non-negative. Up to a quarter of the points may
be wild (another process took the core): they are recognised by their distance to the line through
the majority, left out of the fit and still counted in its mean error.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoddl.errors import AutoDDLError
from autoddl.perfmodel import collectives

Floats = npt.NDArray[np.float64]

_WILD_FACTOR = 2.0  # a point is wild if it is off the line by more than this factor …
_WILD_SPREADS = 5.0  # … and by more than so many times the spread of the majority


@dataclass(frozen=True)
class Point:
    """One measurement: the collective over `group_size` devices took `seconds`.

    `size_bytes` is the n of perfmodel.collectives, whose meaning differs between collectives.
    """

    collective: str
    group_size: int
    size_bytes: float
    seconds: float


@dataclass(frozen=True)
class AlphaBeta:
    """A fitted line: seconds = a·alpha_s + b·beta_s_per_byte, with (a, b) of collectives.py.

    `r2` is the share of the variance of the fitted points' seconds that the line explains;
    `mean_error` the mean of |predicted − measured| / measured over all points, `dropped` ones too.
    """

    alpha_s: float
    beta_s_per_byte: float
    r2: float
    mean_error: float
    dropped: int = 0


def fit_alpha_beta(points: Sequence[Point]) -> AlphaBeta:
    """Return the α, β >= 0 that minimise the squared relative errors of the points.

    The points may mix collectives and group sizes if one pair is to serve them all.

    Raises:
        AutoDDLError: a number is not finite and positive, or the points do not tell α from β.
    """
    rows = np.array([_row(point) for point in points], dtype=np.float64).reshape(-1, 2)
    seconds = np.array([point.seconds for point in points], dtype=np.float64)
    if not _tells_apart(rows, seconds):
        raise AutoDDLError(
            f"fit: {len(points)} points do not tell α from β; measure at least two message sizes"
        )
    keep = _tame(rows, seconds)
    solution = _solve(rows[keep], seconds[keep])
    predicted = rows @ solution
    return AlphaBeta(
        alpha_s=float(solution[0]),
        beta_s_per_byte=float(solution[1]),
        r2=_r2(predicted[keep], seconds[keep]),
        mean_error=float(np.mean(np.abs(predicted - seconds) / seconds)),
        dropped=int(np.sum(~keep)),
    )


def _row(point: Point) -> tuple[float, float]:
    for name in ("group_size", "size_bytes", "seconds"):
        value = getattr(point, name)
        least = 2 if name == "group_size" else 0
        if not math.isfinite(value) or value < least or value == 0:
            raise AutoDDLError(
                f"fit: {name} of a {point.collective} point is {value!r}; allowed are finite "
                f"numbers {'>= 2' if least else '> 0'}; measure that point again"
            )
    return collectives.coefficients(point.collective, point.group_size, point.size_bytes)


def _scale(rows: Floats) -> Floats:
    """Return the size of each column, so that α (seconds) and β (seconds/byte) compare."""
    scale: Floats = np.max(rows, axis=0)
    return scale


def _solve(rows: Floats, seconds: Floats) -> Floats:
    """Return the non-negative least squares of (rows·x − seconds)/seconds over two unknowns."""
    scale = _scale(rows)
    a = rows / scale / seconds[:, None]
    one = np.ones(len(a))
    free = np.linalg.lstsq(a, one, rcond=None)[0]
    if np.all(free >= 0):
        return np.asarray(free / scale)
    # One bound is active, since a positive vector is fitted by non-negative columns.
    edges = np.diag([a[:, j] @ one / (a[:, j] @ a[:, j]) for j in range(2)])
    best = min(edges, key=lambda x: float(np.sum((a @ x - one) ** 2)))
    return np.asarray(best / scale)


def _tame(rows: Floats, seconds: Floats) -> npt.NDArray[np.bool_]:
    """Return which points are not wild: near the line that the majority of the points agree on.

    The line is the one through two of the points whose (n/2 + 1)-th smallest distance to all points
    is least (least quantile of squares); distances are |log(predicted/measured)|.
    """
    count = len(seconds)
    quantile = min(count - 1, count // 2)
    best, distances = math.inf, np.zeros(count)
    for pair in itertools.combinations(range(count), 2):
        chosen = list(pair)
        line = rows @ _solve(rows[chosen], seconds[chosen])
        off = np.abs(np.log(np.maximum(line, 1e-300) / seconds))
        spread = float(np.sort(off)[quantile])
        if spread < best:
            best, distances = spread, off
    keep: npt.NDArray[np.bool_] = distances <= max(math.log(_WILD_FACTOR), _WILD_SPREADS * best)
    if np.sum(~keep) > count // 4 or not _tells_apart(rows[keep], seconds[keep]):
        return np.ones(count, dtype=bool)  # not wild points but a line that does not fit
    return keep


def _tells_apart(rows: Floats, seconds: Floats) -> bool:
    """Tell whether the points determine both unknowns."""
    if len(rows) < 2:
        return False
    return int(np.linalg.matrix_rank(rows / _scale(rows) / seconds[:, None] * seconds[0])) == 2


def _r2(predicted: Floats, seconds: Floats) -> float:
    total = float(np.sum((seconds - np.mean(seconds)) ** 2))
    rest = float(np.sum((seconds - predicted) ** 2))
    if total == 0.0:
        return 1.0 if rest == 0.0 else 0.0
    return 1.0 - rest / total
