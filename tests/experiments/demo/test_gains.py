"""Gains that are told, from seconds that were made up."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from experiments.demo.gains import gain, gain_text

OURS = [1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0, 1.02, 0.98, 1.0]


def times(factors: list[float]) -> list[float]:
    return [own * factor for own, factor in zip(OURS, factors, strict=True)]


def test_a_gain_beyond_the_spread_is_told() -> None:
    found = gain(OURS, times([1.8, 1.9, 1.95, 2.0, 2.0, 2.0, 2.05, 2.1, 2.2, 9.0]))
    assert found.times == pytest.approx(2.0)
    assert (found.low, found.high) == pytest.approx((1.9, 2.2))  # second from either end
    assert str(found) == "2.00 times as fast as"


def test_slow_phases_that_hit_both_plans_do_not_matter() -> None:
    """Seconds of the two overlap by far; those of a turn do not."""
    phases = np.linspace(1.0, 3.0, 10)
    assert str(gain(phases, phases * 1.2)) == "1.20 times as fast as"
    assert str(gain(phases, phases[::-1] * 1.2)) == "as fast as"


@pytest.mark.parametrize(
    "factors",
    [
        [0.9, 0.95, 1.02, 1.03, 1.04, 1.05, 1.06, 1.1, 1.2, 1.3],  # two of ten turns are lost
        [0.7, 0.8, 0.9, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5],
        [1.005] * 10,  # sure, and nothing
        [0.995] * 10,
    ],
)
def test_no_number_is_told_within_the_spread(factors: list[float]) -> None:
    found = gain(OURS, times(factors))
    assert str(found) == "as fast as"
    assert gain_text({"ZeRO 2": found}) == "ours is as fast as ZeRO 2"


def test_a_loss_is_told_too() -> None:
    assert str(gain(OURS, times([0.8] * 10))) == "0.80 times as fast as"


def test_few_turns_say_nothing() -> None:
    assert not gain([1.0] * 5, [2.0] * 5).certain
    assert gain([1.0] * 6, [2.0] * 6).certain


def test_one_plan_is_never_faster_than_itself() -> None:
    same = gain([1.0] * 10, [2.0] * 10, same=True)
    assert not same.certain
    gains = {"data parallel": gain([1.0] * 10, [1.5] * 10), "Megatron": same}
    assert gain_text(gains) == (
        "ours is 1.50 times as fast as data parallel, the same plan as Megatron"
    )


@pytest.mark.parametrize("turns", [6, 9, 10])
def test_the_interval_misses_the_median_once_in_twenty_times_at_most(turns: int) -> None:
    """All ways in which turns may lie on either side of a true ratio of 1, which are equally likely."""
    sides = np.array([*itertools.product([0.5, 2.0], repeat=turns)])
    wrong = np.mean([gain([1.0] * turns, side).certain for side in sides])
    assert 0.01 < wrong <= 0.05  # the next k would miss it more often
