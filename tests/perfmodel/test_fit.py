"""The fit of α and β: exact on exact points, robust to noise and one wild point, never negative."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoddl.errors import AutoDDLError
from autoddl.perfmodel import collectives
from autoddl.perfmodel.fit import AlphaBeta, Point, fit_alpha_beta
from autoddl.sbp.boxing import COLLECTIVES

SIZES = (1 << 14, 1 << 17, 1 << 20, 1 << 22)
ALPHA, BETA = 100e-6, 1e-9  # 100 µs, 1 GB/s

alphas = st.floats(1e-7, 1e-2)
betas = st.floats(1e-12, 1e-7)


def line(
    alpha: float,
    beta: float,
    *,
    collective: str = "all_reduce",
    group_size: int = 4,
    sizes: Sequence[int] = SIZES,
    factors: Sequence[float] | None = None,
) -> list[Point]:
    """Return points on the line, each multiplied by its factor."""
    points = []
    for size, factor in zip(sizes, factors or [1.0] * len(sizes), strict=True):
        seconds = collectives.seconds(
            collective, group_size, size, alpha_s=alpha, beta_s_per_byte=beta
        )
        points.append(Point(collective, group_size, size, seconds * factor))
    return points


def close(fit: AlphaBeta, alpha: float, beta: float, share: float) -> bool:
    """Tell whether the fit predicts every size within a share of the line's own time."""
    for size in SIZES:
        args = ("all_reduce", 4, size)
        want = collectives.seconds(*args, alpha_s=alpha, beta_s_per_byte=beta)
        got = collectives.seconds(*args, alpha_s=fit.alpha_s, beta_s_per_byte=fit.beta_s_per_byte)
        if abs(got - want) > share * want:
            return False
    return True


@given(alphas, betas, st.sampled_from(COLLECTIVES), st.integers(2, 64))
def test_exact_points_give_exact_parameters(
    alpha: float, beta: float, collective: str, group_size: int
) -> None:
    fit = fit_alpha_beta(line(alpha, beta, collective=collective, group_size=group_size))
    latency, transfer = alpha, beta * SIZES[-1]
    if latency > 1e-6 * transfer:
        assert fit.alpha_s == pytest.approx(alpha, rel=1e-4)
    if transfer > 1e-6 * latency:
        assert fit.beta_s_per_byte == pytest.approx(beta, rel=1e-4)
    assert fit.mean_error < 1e-6
    assert fit.r2 > 1 - 1e-6
    assert fit.dropped == 0


@given(st.lists(st.floats(1e-6, 1.0), min_size=4, max_size=8))
def test_never_negative(times: list[float]) -> None:
    points = [Point("all_gather", 2, 1 << (12 + i), t) for i, t in enumerate(times)]
    fit = fit_alpha_beta(points)
    assert fit.alpha_s >= 0
    assert fit.beta_s_per_byte >= 0
    assert math.isfinite(fit.mean_error)


@given(st.lists(st.floats(0.9, 1.1), min_size=4, max_size=4))
def test_ten_percent_noise(factors: list[float]) -> None:
    fit = fit_alpha_beta(line(ALPHA, BETA, factors=factors))
    assert close(fit, ALPHA, BETA, 0.2)
    assert fit.mean_error <= 1 / 0.9 - 1  # the true line has no larger error


@pytest.mark.parametrize("factor", [10.0, 0.1])
@pytest.mark.parametrize("place", range(7))
def test_one_wild_point_among_seven(place: int, factor: float) -> None:
    rng = np.random.default_rng(place)
    sizes = [1 << (12 + 2 * i) for i in range(7)]
    factors = list(rng.uniform(0.95, 1.05, len(sizes)))
    factors[place] *= factor
    fit = fit_alpha_beta(line(ALPHA, BETA, sizes=sizes, factors=factors))
    assert fit.dropped == 1
    assert close(fit, ALPHA, BETA, 0.1)


@pytest.mark.parametrize("place", range(4))
def test_one_wild_point_among_four(place: int) -> None:
    factors = [1.02, 0.98, 1.01, 0.99]
    factors[place] *= 10
    fit = fit_alpha_beta(line(ALPHA, BETA, factors=factors))
    assert fit.dropped == 1
    assert close(fit, ALPHA, BETA, 0.2)


def test_a_dropped_point_counts_in_the_error() -> None:
    fit = fit_alpha_beta(line(ALPHA, BETA, factors=[1, 1, 10, 1]))
    assert fit.mean_error == pytest.approx(0.9 / 4)


def test_a_curve_is_not_taken_for_wild_points() -> None:
    points = [Point("all_gather", 2, 1 << i, 1e-6 * 3.0 ** (i - 12)) for i in range(12, 20)]
    fit = fit_alpha_beta(points)
    assert fit.dropped == 0
    assert fit.mean_error > 0.25


def test_time_that_falls_with_size_gives_beta_zero() -> None:
    fit = fit_alpha_beta([Point("all_gather", 2, 100, 2e-3), Point("all_gather", 2, 1000, 1e-3)])
    assert fit.beta_s_per_byte == 0
    # Relative least squares of a constant: Σ(1/t) / Σ(1/t²).
    assert fit.alpha_s == pytest.approx((500 + 1000) / (500**2 + 1000**2))


def test_time_proportional_to_size_gives_alpha_zero() -> None:
    fit = fit_alpha_beta([Point("all_gather", 2, 100, 1e-6), Point("all_gather", 2, 1000, 1.1e-5)])
    assert fit.alpha_s == 0
    assert fit.beta_s_per_byte > 0


def test_one_pair_may_serve_several_collectives() -> None:
    points = [p for c in COLLECTIVES for p in line(ALPHA, BETA, collective=c, sizes=SIZES[:1])]
    points += line(ALPHA, BETA, collective="all_to_all", group_size=2)
    fit = fit_alpha_beta(points)
    assert (fit.alpha_s, fit.beta_s_per_byte) == pytest.approx((ALPHA, BETA))


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([], "0 points do not tell α from β; measure at least two message sizes"),
        ([Point("all_gather", 2, 8, 1.0)], "1 points do not tell"),
        ([Point("all_gather", 2, 8, 1.0)] * 3, "3 points do not tell"),
        ([Point("all_gather", 1, 8, 1.0)] * 2, "group_size of a all_gather point is 1"),
        ([Point("all_gather", 2, 0, 1.0)] * 2, "size_bytes .* is 0; allowed are finite"),
        ([Point("all_gather", 2, 8, -1.0)] * 2, "seconds .* is -1.0"),
        ([Point("all_gather", 2, 8, math.nan)] * 2, "seconds .* is nan"),
        ([Point("all_gather", 2, math.inf, 1.0)] * 2, "size_bytes .* is inf"),
        ([Point("gossip", 2, 8, 1.0)] * 2, "collective: got 'gossip'"),
    ],
)
def test_bad_points(points: list[Point], message: str) -> None:
    with pytest.raises(AutoDDLError, match=message) as error:
        fit_alpha_beta(points)
    assert "\n" not in str(error.value)
