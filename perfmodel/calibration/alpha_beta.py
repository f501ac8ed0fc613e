"""Fit α and β of collectives to measured points: weighted least squares that survives outliers.

The square of what a point is off by counts in proportion to 1/seconds, between relative errors, which
long messages would hardly sway, and absolute ones, which short messages would not (least_squares).
Both parameters stay non-negative. Up to a quarter of the points may be wild (another process took the
core): they are recognised by their distance to the line through the majority, left out of the fit and
still counted in its mean error. Group sizes of one collective share a β where that hardly changes how
well each is fitted, since it is known better from more points.

Where a collective changes its algorithm with the size, as NCCL does, the least of several lines is
fitted (fit_envelope), each to the sizes of one range.

Sends of 1 kB, 1 MB and 10 MB that took 10.1 µs, 110 µs and 1.01 ms give α = 10 µs and β = 0.1 ns/byte.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from scipy.linalg import block_diag

from autoddl.errors import AutoDDLError
from autoddl.perfmodel import collectives
from autoddl.perfmodel.calibration import least_squares
from autoddl.perfmodel.calibration.least_squares import Floats, Mask

BAD_ERROR = 0.25  # mean errors above, and
BAD_R2 = 0.9  # explained variances below are reported
FEWEST_SIZES = 3  # so many message sizes do not say how good the fit is
SHARED_RISE = 0.01  # sharing β may raise a mean error by so much, or by a tenth of itself
MOST_LINES = 3  # of an envelope: NCCL has as many protocols
MORE_LINES = 0.6  # one more has to lower the mean error to so much of itself, and by SHARED_RISE
CUTS = 32  # so many sizes at most may begin a range; more would take quadratically longer
DRAWS = 200  # of the bootstrap
_QUANTILES = (0.025, 0.975)
_COUNTS_FROM = 0.1  # a parameter that never makes up so much of the time need not be known well

Interval = tuple[float, float]


@dataclass(frozen=True)
class Point:
    """One measurement: the collective took `seconds` in groups as perfmodel.profile.Link describes.

    `size_bytes` is the n of perfmodel.collectives, whose meaning differs between collectives.
    """

    collective: str
    level: str
    group_size: int
    size_bytes: float
    seconds: float
    inner: int = 1
    groups: int = 1


@dataclass(frozen=True)
class AlphaBeta:
    """A fitted line: seconds = a·alpha_s + b·beta_s_per_byte, with (a, b) of collectives.py.

    `r2` is the share of the variance of the fitted points' seconds that the line explains;
    `mean_error` the mean of |predicted − measured| / measured over all points, `dropped` ones too. The
    intervals are 95 % of a seeded bootstrap over the points' errors (least_squares.bootstrap), None
    where two points leave no error. `warnings` say what makes the fit doubtful.
    """

    alpha_s: float
    beta_s_per_byte: float
    r2: float
    mean_error: float
    dropped: int = 0
    alpha_interval_s: Interval | None = None
    beta_interval_s_per_byte: Interval | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Table:
    """The points of one line as arrays, and which of them are not wild."""

    rows: Floats
    seconds: Floats
    keep: Mask

    @property
    def kept(self) -> tuple[Floats, Floats]:
        return self.rows[self.keep], self.seconds[self.keep]


def fit_alpha_beta(points: Sequence[Point], *, seed: int = 0) -> AlphaBeta:
    """Return the α, β >= 0 that minimise the squared errors of the points, each over its seconds.

    The points may mix collectives and group sizes if one pair is to serve them all.

    Raises:
        AutoDDLError: a number is not finite and positive, or the points do not tell α from β.
    """
    table = _table(points)
    rows, seconds = table.kept
    draws = least_squares.bootstrap(rows, seconds, draws=DRAWS, seed=seed)
    return _judged(table, least_squares.solve(rows, seconds), draws)


def fit_sharing(points: Mapping[int, Sequence[Point]], *, seed: int = 0) -> dict[int, AlphaBeta]:
    """Return the fit of each group size (the keys), with one β for all where the errors allow it.

    They do where no mean error rises by more than SHARED_RISE, or a tenth of itself.

    Raises:
        AutoDDLError: as fit_alpha_beta, of any of the sizes.
    """
    own = {size: fit_alpha_beta(members, seed=seed) for size, members in points.items()}
    if len(points) < 2:
        return own
    tables = {size: _table(members) for size, members in points.items()}
    kept = [table.kept for table in tables.values()]
    alphas = block_diag(*(rows[:, :1] for rows, _ in kept))  # one of each size
    rows = np.hstack((alphas, np.vstack([rows[:, 1:] for rows, _ in kept])))
    seconds = np.concatenate([seconds for _, seconds in kept])
    solution = least_squares.solve(rows, seconds)
    draws = least_squares.bootstrap(rows, seconds, draws=DRAWS, seed=seed)
    joint = {
        size: _judged(table, solution[[i, -1]], None if draws is None else draws[:, [i, -1]])
        for i, (size, table) in enumerate(tables.items())
    }
    if any(
        joint[size].mean_error > fit.mean_error + max(SHARED_RISE, 0.1 * fit.mean_error)
        for size, fit in own.items()
    ):
        return own
    return joint


def fit_envelopes(points: Mapping[int, Sequence[Point]]) -> dict[int, list[AlphaBeta]]:
    """Return the lines of each group size (the keys); where one line each will do, as fit_sharing.

    Raises:
        AutoDDLError: as fit_alpha_beta, of any of the sizes.
    """
    found = {size: fit_envelope(members) for size, members in points.items()}
    if all(len(lines) == 1 for lines in found.values()):
        return {size: [fit] for size, fit in fit_sharing(points).items()}
    return found


def fit_envelope(points: Sequence[Point], *, seed: int = 0) -> list[AlphaBeta]:
    """Return the lines, from the least α to the least β, whose minimum is nearest to the points.

    Each has the least squares of relative errors over a range of sizes; the ranges are those of the least
    mean error. A size that took more than twice as long as a larger one is wild.

    Raises:
        AutoDDLError: as fit_alpha_beta.
    """
    table = _table(points)
    order = np.argsort(table.rows[:, 1], kind="stable")
    rows, seconds = table.rows[order], table.seconds[order]
    tame = seconds <= least_squares.WILD_FACTOR * np.minimum.accumulate(seconds[::-1])[::-1]
    rows, seconds = rows[tame], seconds[tame]
    chosen = _ranges(rows, seconds)
    if len(chosen) == 1:
        return [fit_alpha_beta(points, seed=seed)]
    found = []
    for part in chosen:
        # Over their seconds all weigh alike, which makes errors relative ones.
        relative, ones = rows[part] / seconds[part, None], np.ones(len(seconds[part]))
        solution = least_squares.solve(relative, ones)
        draws = least_squares.bootstrap(relative, ones, draws=DRAWS, seed=seed)
        every = np.ones(len(ones), dtype=bool)
        found.append(_fitted(_Table(rows[part], seconds[part], every), solution, draws))
    return found


def _ranges(rows: Floats, seconds: Floats) -> list[slice]:
    """Return which points, by ascending size, are of which line: as few lines as will do."""
    starts = np.unique(rows[:, 1], return_index=True)[1]
    cuts = starts[np.unique(np.linspace(0, len(starts) - 1, CUTS).astype(int))][1:].tolist()

    @cache
    def line(begin: int, end: int) -> Floats | None:
        if np.sum((begin <= starts) & (starts < end)) < FEWEST_SIZES:
            return None
        return least_squares.solve(rows[begin:end], seconds[begin:end], seconds[begin:end] ** 2)

    best, least = [slice(0, len(rows))], math.inf
    for count in range(1, MOST_LINES + 1):
        errors = {}
        for inside in itertools.combinations(cuts, count - 1):
            ranges = tuple(itertools.pairwise((0, *inside, len(rows))))
            lines = [found for each in ranges if (found := line(*each)) is not None]
            if len(lines) == count and all(
                a[0] < b[0] and a[1] > b[1] for a, b in itertools.pairwise(lines)
            ):
                fastest = np.min(rows @ np.array(lines).T, axis=1)
                errors[ranges] = float(np.mean(np.abs(fastest - seconds) / seconds))
        ranges = min(errors, key=errors.__getitem__, default=())
        if ranges and errors[ranges] < min(MORE_LINES * least, least - SHARED_RISE):
            best, least = [slice(*each) for each in ranges], errors[ranges]
    return best


def _table(points: Sequence[Point]) -> _Table:
    rows = np.array([_row(point) for point in points], dtype=np.float64).reshape(-1, 2)
    seconds = np.array([point.seconds for point in points], dtype=np.float64)
    if not len(points) or not least_squares.tells_apart(rows, seconds):
        raise AutoDDLError(
            f"fit: {len(points)} points do not tell α from β; measure at least two message sizes"
        )
    return _Table(rows, seconds, least_squares.tame(rows, seconds))


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


def _judged(table: _Table, solution: Floats, draws: Floats | None) -> AlphaBeta:
    """Return the line with its errors, intervals and what is doubtful of it."""
    fit = _fitted(table, solution, draws)
    return replace(fit, warnings=tuple(_warnings(fit, table, table.rows @ solution)))


def _fitted(table: _Table, solution: Floats, draws: Floats | None) -> AlphaBeta:
    predicted = table.rows @ solution
    intervals: list[Interval] | list[None] = [None, None]
    if draws is not None:
        intervals = [(low, high) for low, high in np.quantile(draws, _QUANTILES, axis=0).T.tolist()]
    return AlphaBeta(
        alpha_s=float(solution[0]),
        beta_s_per_byte=float(solution[1]),
        r2=least_squares.r2(predicted[table.keep], table.seconds[table.keep]),
        mean_error=float(np.mean(np.abs(predicted - table.seconds) / table.seconds)),
        dropped=int(np.sum(~table.keep)),
        alpha_interval_s=intervals[0],
        beta_interval_s_per_byte=intervals[1],
    )


def _warnings(fit: AlphaBeta, table: _Table, predicted: Floats) -> list[str]:
    """Say what is doubtful: few sizes, large errors, little explained, wide intervals."""
    found = []
    sizes = len(np.unique(table.rows[:, 1]))
    if sizes < FEWEST_SIZES:
        found.append(f"only {sizes} message sizes")
    if fit.mean_error > BAD_ERROR:
        found.append(f"α and β miss the measured times by {100 * fit.mean_error:.0f} % on average")
    if fit.r2 < BAD_R2:
        found.append(f"R² is {fit.r2:.2f}")
    values = (fit.alpha_s, fit.beta_s_per_byte)
    rows = (
        ("α", "µs", 1e6, fit.alpha_interval_s),
        ("β", "ns/byte", 1e9, fit.beta_interval_s_per_byte),
    )
    shares = np.max(table.rows * values / np.maximum(predicted, 1e-300)[:, None], axis=0)
    for (name, unit, factor, interval), value, share in zip(rows, values, shares, strict=True):
        if interval is not None and share > _COUNTS_FROM and interval[1] - interval[0] > value:
            low, high = (factor * bound for bound in interval)
            found.append(f"{name} is uncertain: {low:.3g} to {high:.3g} {unit}")
    return found
