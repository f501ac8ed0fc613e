"""Draws by part against the whole, and against the distributions that they are of."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from autoddl.engine.oneflow.capture.draws import Draw, values

UNIFORM = Draw("uniform", (-0.5, 0.25), key=(7, 1))
NORMAL = Draw("normal", (1.0, 2.0), key=(7, 2))
CLAMPED = Draw("clamped", (0.0, 1.0, -1.0, 0.5), key=(7, 3))
CONSTANT = Draw("constant", (3.0,), key=(7, 4), factor=0.5)


def whole(draw: Draw, *shape: int) -> np.ndarray:
    found: np.ndarray = values(draw, shape, [slice(0, n) for n in shape], np.float32)
    return found


@pytest.mark.parametrize("draw", [UNIFORM, NORMAL, CLAMPED, CONSTANT])
@pytest.mark.parametrize(
    "slices",
    [
        (slice(2, 5), slice(0, 6), slice(0, 7)), (slice(0, 9), slice(3, 6), slice(0, 7)),
        (slice(0, 9), slice(0, 6), slice(1, 3)), (slice(4, 8), slice(2, 4), slice(5, 7)),
        (slice(0, 9), slice(0, 6), slice(0, 7)), (slice(3, 3), slice(0, 6), slice(0, 7)),
    ],
)  # fmt: skip
def test_a_part_is_that_of_the_whole(draw: Draw, slices: tuple[slice, ...]) -> None:
    np.testing.assert_array_equal(
        values(draw, (9, 6, 7), slices, np.float32), whole(draw, 9, 6, 7)[slices]
    )


def test_long_runs_are_drawn_piece_by_piece_and_alike() -> None:
    count = (1 << 18) + 5
    np.testing.assert_array_equal(whole(NORMAL, 2, count)[1], whole(NORMAL, 2 * count)[count:])


def test_scalars_and_other_dtypes() -> None:
    assert values(CONSTANT, (), (), np.float64) == 1.5
    assert values(NORMAL, (3,), (slice(0, 3),), np.float64).dtype == np.float64


def test_values_are_of_their_distributions() -> None:
    uniform, normal = whole(UNIFORM, 300, 300).ravel(), whole(NORMAL, 300, 300).ravel()
    assert stats.kstest(uniform, stats.uniform(-0.5, 0.75).cdf).pvalue > 0.01
    assert stats.kstest(normal, stats.norm(1.0, 2.0).cdf).pvalue > 0.01
    clamped = whole(CLAMPED, 300, 300)
    assert (clamped.min(), clamped.max()) == (-1.0, 0.5)
    assert (clamped == 0.5).mean() == pytest.approx(stats.norm.sf(0.5), abs=0.01)


@pytest.mark.parametrize("key", [(7, 3), (8, 2)])
def test_other_keys_draw_what_has_nothing_to_do_with_it(key: tuple[int, int]) -> None:
    other = Draw("normal", (1.0, 2.0), key=key)
    pair = whole(NORMAL, 10_000), whole(other, 10_000)
    assert abs(np.corrcoef(*pair)[0, 1]) < 4 / math.sqrt(10_000)
    neighbours = pair[0][:-1], pair[0][1:]
    assert abs(np.corrcoef(*neighbours)[0, 1]) < 4 / math.sqrt(10_000)


def test_factors_multiply() -> None:
    half = Draw("normal", (1.0, 2.0), key=(7, 2), factor=0.5)
    np.testing.assert_allclose(whole(half, 50), whole(NORMAL, 50) / 2, rtol=1e-6)
