"""The fit of α and β: exact on exact points, robust to noise and one wild point, never negative."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoddl.errors import AutoDDLError
from autoddl.perfmodel import collectives
from autoddl.perfmodel.calibration.alpha_beta import (
    DRAWS,
    AlphaBeta,
    Point,
    fit_alpha_beta,
    fit_envelope,
    fit_envelopes,
    fit_sharing,
)
from autoddl.perfmodel.collectives import COLLECTIVES

SIZES = (1 << 14, 1 << 17, 1 << 20, 1 << 22)
ALPHA, BETA = 100e-6, 1e-9  # 100 µs, 1 GB/s

alphas = st.floats(1e-7, 1e-2)
betas = st.floats(1e-12, 1e-7)
some = settings(max_examples=min(30, settings().max_examples))  # each fits some hundred times


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
        points.append(Point(collective, "gpu", group_size, size, seconds * factor))
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


@some
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


@some
@given(st.lists(st.floats(1e-6, 1.0), min_size=4, max_size=8))
def test_never_negative(times: list[float]) -> None:
    points = [Point("all_gather", "gpu", 2, 1 << (12 + i), t) for i, t in enumerate(times)]
    fit = fit_alpha_beta(points)
    assert fit.alpha_s >= 0
    assert fit.beta_s_per_byte >= 0
    assert math.isfinite(fit.mean_error)


@some
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
    points = [Point("all_gather", "gpu", 2, 1 << i, 1e-6 * 3.0 ** (i - 12)) for i in range(12, 20)]
    fit = fit_alpha_beta(points)
    assert fit.dropped == 0
    assert fit.mean_error > 0.25


def test_time_that_falls_with_size_gives_beta_zero() -> None:
    fit = fit_alpha_beta(
        [Point("all_gather", "gpu", 2, 100, 2e-3), Point("all_gather", "gpu", 2, 1000, 1e-3)]
    )
    assert fit.beta_s_per_byte == 0
    # The constant with the least Σ (α − t)²/t is the harmonic mean.
    assert fit.alpha_s == pytest.approx(2 / (500 + 1000))


def test_time_proportional_to_size_gives_alpha_zero() -> None:
    fit = fit_alpha_beta(
        [Point("all_gather", "gpu", 2, 100, 1e-6), Point("all_gather", "gpu", 2, 1000, 1.1e-5)]
    )
    assert fit.alpha_s == 0
    assert fit.beta_s_per_byte > 0


def test_one_pair_may_serve_several_collectives() -> None:
    points = [p for c in COLLECTIVES for p in line(ALPHA, BETA, collective=c, sizes=SIZES[:1])]
    points += line(ALPHA, BETA, collective="all_to_all", group_size=2)
    fit = fit_alpha_beta(points)
    assert (fit.alpha_s, fit.beta_s_per_byte) == pytest.approx((ALPHA, BETA))


def test_short_messages_are_not_wild_because_most_are_long() -> None:
    """Seventy sizes, two of them short, whose latency the long ones say nothing of."""
    sizes = [2 << 20, 5 << 20, *((40 + 50 * i) << 20 for i in range(68))]
    factors = [1.0, 1.0, *(1.05 if i < 30 else 1.0 for i in range(68))]
    alpha, beta = 20e-6, 1 / 40e9
    fit = fit_alpha_beta(line(alpha, beta, group_size=2, sizes=sizes, factors=factors))
    assert fit.dropped == 0


NOISES = st.integers(0, 10**6)


@some
@given(alphas, betas, NOISES)
def test_noise_and_a_fifth_of_wild_points(alpha: float, beta: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = [1 << (10 + i) for i in range(20)]
    factors = rng.uniform(0.95, 1.05, len(sizes))
    wild = rng.choice(len(sizes), 4, replace=False)
    factors[wild] *= rng.choice([0.1, 5.0, 20.0], 4)
    fit = fit_alpha_beta(line(alpha, beta, sizes=sizes, factors=list(factors)))
    assert fit.dropped == 4
    for size in sizes:
        args = ("all_reduce", 4, size)
        want = collectives.seconds(*args, alpha_s=alpha, beta_s_per_byte=beta)
        got = collectives.seconds(*args, alpha_s=fit.alpha_s, beta_s_per_byte=fit.beta_s_per_byte)
        # Over 20 octaves the noise of the longest messages sways α, which short ones mostly are.
        assert got == pytest.approx(want, rel=0.15 if size >= 1 << 15 else 0.5)


def test_long_messages_are_not_missed_where_short_ones_take_no_longer() -> None:
    """A shaped link lets 16 KiB through at once; relative errors alone would miss 4 MiB by 20 %."""
    # ms, of all-reduces of 1 KiB to 4 MiB
    measured = (0.774, 0.712, 0.782, 1.836, 6.845, 28.39, 127.8)
    points = [
        Point("all_reduce", "node", 2, 1024 << 2 * i, 1e-3 * t) for i, t in enumerate(measured)
    ]
    fit = fit_alpha_beta(points)
    longest_s = collectives.seconds(
        "all_reduce", 2, 4 << 20, alpha_s=fit.alpha_s, beta_s_per_byte=fit.beta_s_per_byte
    )
    assert longest_s == pytest.approx(0.1278, rel=0.05)


def test_intervals_hold_the_planted_parameters() -> None:
    """Of 50 fits to noisy points at least 42 intervals of each parameter hold its true value."""
    held = np.zeros(2)
    for seed in range(50):
        rng = np.random.default_rng(seed)
        sizes = [1 << (12 + i) for i in range(12)]
        factors = list(1 + 0.05 * rng.standard_normal(len(sizes)))
        fit = fit_alpha_beta(line(ALPHA, BETA, sizes=sizes, factors=factors), seed=seed)
        assert fit.alpha_interval_s is not None and fit.beta_interval_s_per_byte is not None
        held += [
            fit.alpha_interval_s[0] <= ALPHA <= fit.alpha_interval_s[1],
            fit.beta_interval_s_per_byte[0] <= BETA <= fit.beta_interval_s_per_byte[1],
        ]
        assert fit.alpha_interval_s[0] <= fit.alpha_s <= fit.alpha_interval_s[1]
        assert fit.alpha_interval_s[1] < 1.5 * ALPHA  # and say something
    assert (held >= 42).all(), held


def test_the_bootstrap_is_seeded() -> None:
    points = line(ALPHA, BETA, factors=[1.02, 0.97, 1.05, 0.99])
    assert fit_alpha_beta(points, seed=3) == fit_alpha_beta(points, seed=3)
    assert fit_alpha_beta(points, seed=3) != fit_alpha_beta(points, seed=4)


# --- one β for several group sizes ------------------------------------------------------------


def noisy(group_size: int, alpha: float, beta: float) -> list[Point]:
    rng = np.random.default_rng(group_size)
    sizes = [1 << (14 + i) for i in range(10)]
    factors = list(rng.uniform(0.93, 1.07, len(sizes)))
    return line(alpha, beta, group_size=group_size, sizes=sizes, factors=factors)


def test_group_sizes_share_beta_where_it_is_the_same() -> None:
    planted = {2: 50e-6, 4: 80e-6, 8: 200e-6}
    fits = fit_sharing({p: noisy(p, alpha, BETA) for p, alpha in planted.items()})
    (beta,) = {fit.beta_s_per_byte for fit in fits.values()}
    assert beta == pytest.approx(BETA, rel=0.05)
    for p, alpha in planted.items():
        assert fits[p].alpha_s == pytest.approx(alpha, rel=0.2)
        low, high = fits[p].beta_interval_s_per_byte or (0, 0)
        assert low <= beta <= high


def test_group_sizes_keep_their_own_beta_where_it_differs() -> None:
    """As on eight V100s, whose NVLinks serve larger groups better: 40, 78 and 131 GB/s."""
    planted = {2: (23e-6, 1 / 40e9), 4: (10e-6, 1 / 78e9), 8: (7e-6, 1 / 131e9)}
    points = {p: noisy(p, *values) for p, values in planted.items()}
    fits = fit_sharing(points)
    for p in planted:
        assert fits[p] == fit_alpha_beta(points[p])


@pytest.mark.parametrize(
    ("group_size", "alpha_us", "rate"), [(2, 23, 40e9), (4, 10, 78e9), (8, 7, 131e9)]
)
def test_v100_lines_rounded_as_published_are_found_again(
    group_size: int, alpha_us: float, rate: float
) -> None:
    """Times made of the fits to Aceso's V100 database, at its sizes (MiB) and resolution (1 µs).

    Its one wild point, 2 MiB on 8 GPUs in 258 µs, is among them.
    """
    sizes = [n << 20 for n in (2, 5, 7, 10, 15, 20, 30, 40, 60, 80, 120, 160, 320, 640, 1280, 3840)]
    points = line(1e-6 * alpha_us, 1 / rate, group_size=group_size, sizes=sizes)
    points = [replace(p, seconds=round(p.seconds, 6)) for p in points]
    if group_size == 8:
        points[0] = replace(points[0], seconds=258e-6)
    fit = fit_alpha_beta(points)
    assert fit.alpha_s == pytest.approx(1e-6 * alpha_us, rel=0.05)
    assert 1 / fit.beta_s_per_byte == pytest.approx(rate, rel=0.05)
    assert fit.dropped == (group_size == 8)


# --- what is doubtful -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("points", "warning"),
    [
        (line(ALPHA, BETA, sizes=SIZES[:2]), "only 2 message sizes"),
        (line(ALPHA, BETA, factors=[1, 3, 0.4, 2.5]), "miss the measured times by"),
        (line(ALPHA, 1e-13, factors=[1, 1.1, 0.8, 1.2]), "R² is"),
        (line(ALPHA, BETA, factors=[0.2, 1.4, 1.5, 0.8]), "is uncertain: "),
    ],
)
def test_doubtful_fits_say_so(points: list[Point], warning: str) -> None:
    assert any(warning in text for text in fit_alpha_beta(points).warnings)


def test_good_fits_say_nothing() -> None:
    fit = fit_alpha_beta(line(ALPHA, BETA, factors=[1.02, 0.98, 1.01, 0.99]))
    assert fit.warnings == ()
    assert fit.alpha_interval_s is not None
    assert DRAWS >= 100


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([], "0 points do not tell α from β; measure at least two message sizes"),
        ([Point("all_gather", "gpu", 2, 8, 1.0)], "1 points do not tell"),
        ([Point("all_gather", "gpu", 2, 8, 1.0)] * 3, "3 points do not tell"),
        ([Point("all_gather", "gpu", 1, 8, 1.0)] * 2, "group_size of a all_gather point is 1"),
        ([Point("all_gather", "gpu", 2, 0, 1.0)] * 2, "size_bytes .* is 0; allowed are finite"),
        ([Point("all_gather", "gpu", 2, 8, -1.0)] * 2, "seconds .* is -1.0"),
        ([Point("all_gather", "gpu", 2, 8, math.nan)] * 2, "seconds .* is nan"),
        ([Point("all_gather", "gpu", 2, math.inf, 1.0)] * 2, "size_bytes .* is inf"),
        ([Point("gossip", "gpu", 2, 8, 1.0)] * 2, "collective: got 'gossip'"),
    ],
)
def test_bad_points(points: list[Point], message: str) -> None:
    with pytest.raises(AutoDDLError, match=message) as error:
        fit_alpha_beta(points)
    assert "\n" not in str(error.value)


MANY = tuple(1 << i for i in range(3, 34))
LINES = ((1e-6, 3e-11), (4e-6, 6e-12), (1.2e-5, 2e-12))  # of NCCL's LL, LL128 and Simple, about


def least(
    lines: Sequence[tuple[float, float]], *, factors: Sequence[float] | None = None
) -> list[Point]:
    """Return points on the least of some lines, each multiplied by its factor."""
    every = [line(alpha, beta, sizes=MANY) for alpha, beta in lines]
    found = [min(points, key=lambda point: point.seconds) for points in zip(*every, strict=True)]
    return [
        replace(point, seconds=point.seconds * factor)
        for point, factor in zip(found, factors or [1.0] * len(found), strict=True)
    ]


@pytest.mark.parametrize("lines", [LINES[:1], LINES[:2], LINES[1:], LINES])
def test_an_envelope_comes_back(lines: Sequence[tuple[float, float]]) -> None:
    """As many lines as there are, in any order of the points, each with how well it is known."""
    found = fit_envelope(least(lines)[::-1])
    assert [(fit.alpha_s, fit.beta_s_per_byte) for fit in found] == [
        pytest.approx(each, rel=1e-3) for each in lines
    ]
    assert all(fit.mean_error < 1e-3 and fit.r2 > 0.999 for fit in found)


def test_an_envelope_survives_noise_and_wild_points() -> None:
    rng = np.random.default_rng(1)
    factors = np.exp(0.03 * rng.standard_normal(len(MANY)))
    factors[[0, 9, 20]] *= (5.0, 3.0, 20.0)  # a first launch, congestion
    found = fit_envelope(least(LINES[::2], factors=factors.tolist()))
    for fit, (alpha, beta) in zip(found, LINES[::2], strict=True):
        assert fit.alpha_s == pytest.approx(alpha, rel=0.1)
        assert fit.beta_s_per_byte == pytest.approx(beta, rel=0.1)
        assert fit.alpha_interval_s is not None
        assert fit.alpha_interval_s[0] < alpha < fit.alpha_interval_s[1]


@pytest.mark.parametrize("spread", [0.0, 0.05, 0.15])
def test_where_one_line_will_do_it_is_the_robust_one(spread: float) -> None:
    rng = np.random.default_rng(2)
    factors = np.exp(spread * rng.standard_normal(len(MANY))).tolist()
    points = {p: line(ALPHA, BETA, group_size=p, sizes=MANY, factors=factors) for p in (2, 4)}
    assert fit_envelopes(points) == {p: [fit] for p, fit in fit_sharing(points).items()}


def test_few_sizes_have_one_line() -> None:
    points = least(LINES)[::8]
    assert fit_envelope(points) == [fit_alpha_beta(points)]
