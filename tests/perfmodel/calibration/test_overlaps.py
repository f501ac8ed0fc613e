"""Overlap and interference: what time-sharing makes of known ones has to give these back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoddl.perfmodel.calibration.overlaps import Delays, attributed, delays, overhead_s


def together_s(boxings_s: float, ops_s: float, overlap: float, interference: float) -> float:
    """Step through both chains: of each second of boxings a part on the device, then the link."""
    boxings, ops, now = boxings_s, ops_s, 0.0
    while ops > 1e-12 and boxings > 1e-12:
        # both get on in proportion: the device part is shared half and half with ops
        wall = overlap + 2 * (1 - overlap)
        work = overlap / (1 + interference) + (1 - overlap)
        seconds = min(boxings, ops / work)
        boxings, ops, now = boxings - seconds, ops - seconds * work, now + seconds * wall
    return now + boxings + ops


@given(st.floats(0.1, 1.0), st.floats(0.0, 3.0))
def test_known_ones_come_back(overlap: float, interference: float) -> None:
    many, few = 200.0, 5.0
    found = delays(
        20.0, many, together_s(20.0, many, overlap, interference), few,
        together_s(20.0, few, overlap, interference),
    )  # fmt: skip
    if found.hidden < 0.05:
        return
    back = attributed([found])
    assert back.overlap == pytest.approx(overlap, abs=1e-6)
    assert back.interference == pytest.approx(interference, abs=1e-5)


@pytest.mark.parametrize(
    ("walls", "expected"),
    [
        ((10.0, 20.0, 30.0, 5.0, 15.0), (0.0, 0.0)),  # one after the other
        ((10.0, 20.0, 20.0, 5.0, 10.0), (1.0, 0.0)),  # nobody waits
        ((10.0, 20.0, 22.0, 5.0, 10.0), (1.0, 0.25)),  # ops alone are slower
        ((10.0, 20.0, 22.0, 5.0, 11.0), (0.8, 0.0)),  # both wait for the device
        ((10.0, 20.0, 18.0, 5.0, 9.0), (1.0, 0.0)),  # noise
        ((10.0, 20.0, 40.0, 5.0, 30.0), (0.0, 0.0)),
    ],
)
def test_by_hand(walls: tuple[float, ...], expected: tuple[float, float]) -> None:
    assert attributed([delays(*walls)]) == pytest.approx(expected)


def test_the_median_of_primitives_counts() -> None:
    wild = Delays(0.1, 0.9)
    assert attributed([Delays(0.8, 0.0), wild, Delays(0.8, 0.0)]) == pytest.approx((1.0, 0.25))


@pytest.mark.parametrize(
    ("walls", "expected"),
    [
        ((6.0, 20.0, 24.0), 0.5),
        ((3.0, 20.0, 24.0), 0.375),  # no longer than alone
        ((6.0, 20.0, 19.0), 0.0),  # noise
    ],
)
def test_short_messages_keep_the_device(walls: tuple[float, ...], expected: float) -> None:
    assert overhead_s(*walls, messages=8) == pytest.approx(expected)
