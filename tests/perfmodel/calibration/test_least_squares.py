"""Non-negative least squares against all sets of unknowns that are not 0."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from autoddl.perfmodel.calibration.least_squares import Floats, r2, solve, tells_apart


def by_all_sets(rows: Floats, seconds: Floats) -> float:
    """The least sum of squared errors over seconds, of any set of unknowns."""
    spreads = np.sqrt(seconds)
    scaled, least = rows / spreads[:, None], float(seconds.sum())
    for count in range(1, rows.shape[1] + 1):
        for used in map(list, combinations(range(rows.shape[1]), count)):
            norms = np.linalg.norm(scaled[:, used], axis=0)
            x = np.linalg.lstsq(scaled[:, used] / norms, spreads, rcond=None)[0]
            if (x >= 0).all():
                off = scaled[:, used] / norms @ x - spreads
                least = min(least, float(off @ off))
    return least


@pytest.mark.parametrize("seed", range(60))
def test_no_other_set_of_unknowns_is_nearer(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(5):
        points, unknowns = int(rng.integers(4, 20)), int(rng.integers(2, 5))
        rows = rng.random((points, unknowns)) * 10.0 ** rng.integers(-9, 3, unknowns)
        truth = np.maximum(rng.normal(size=unknowns), 0.0) / rows.max(axis=0)
        seconds = np.maximum(rows @ truth, 1e-9) * np.exp(0.2 * rng.normal(size=points))
        if not tells_apart(rows, seconds):
            continue
        found = solve(rows, seconds)
        off = (rows @ found - seconds) / np.sqrt(seconds)
        assert (found >= 0).all()
        assert off @ off <= by_all_sets(rows, seconds) * (1 + 1e-9) + 1e-15 * seconds.sum()


def test_points_of_one_size_do_not_tell_two_unknowns_apart() -> None:
    rows = np.array([[1.0, 8.0], [2.0, 16.0], [3.0, 24.0]])
    assert not tells_apart(rows, rows[:, 0])
    other = rows + np.array([[0, 0], [0, 1], [0, 0]])
    assert tells_apart(other, rows[:, 0])


def test_explained_variance() -> None:
    seconds = np.array([1.0, 2.0, 3.0])
    assert r2(seconds, seconds) == 1
    assert r2(np.full(3, 2.0), seconds) == 0
    assert r2(np.full(3, 5.0), np.full(3, 5.0)) == 1
