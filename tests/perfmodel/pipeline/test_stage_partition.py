"""Cuts into stages: equal to brute force, the least limit, preferred places, closed form."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from autoddl.errors import AutoDDLError, InfeasibleError
from autoddl.perfmodel.pipeline.stage_partition import UnitChain, cut, strict_in_flight

RANDOM = 200


def random_case(seed: int) -> tuple[UnitChain, int, int]:
    """Return an uneven chain, a number of stages and of micro-batches; odd seeds have many ties."""
    rng = np.random.default_rng(seed)
    units = int(rng.integers(1, 11))

    def draw(count: int, scale: float) -> tuple[float, ...]:
        if seed % 2:
            return tuple(float(v) for v in rng.integers(0, 4, count))
        return tuple((scale * rng.random(count) ** 2).tolist())

    transfers = np.array(draw(units - 1, rng.choice([0.1, 1.0, 10.0])))
    transfers[rng.random(units - 1) < 0.2] = np.inf
    chain = UnitChain(
        draw(units, 1.0),
        draw(units, rng.choice([0.0, 1.0, 10.0])),
        tuple(transfers.tolist()),
        tuple(rng.integers(0, 9, units).tolist()),
        tuple(rng.integers(0, 5, units).tolist()),
        draw(units, rng.choice([0.0, 0.1, 1.0])),
    )
    return chain, int(rng.integers(1, min(units, 4) + 1)), int(rng.integers(1, 9))


def step_s(chain: UnitChain, bounds: tuple[int, ...], micro_batches: int) -> float:
    stages = list(itertools.pairwise(bounds))
    times = [math.fsum(chain.seconds[a:b] + chain.waiting_s[a:b]) for a, b in stages]
    times[-1] = math.fsum(chain.seconds[slice(*stages[-1])])
    once = [math.fsum(chain.once_s[a:b]) for a, b in stages]
    transfers = math.fsum(chain.transfer_s[b - 1] for b in bounds[1:-1])
    return (micro_batches - 1) * max(times) + math.fsum(times) + transfers + max(once)


def peak(chain: UnitChain, bounds: tuple[int, ...], in_flight: tuple[int, ...]) -> int:
    return max(
        sum(chain.held_bytes[a:b]) + count * sum(chain.active_bytes[a:b])
        for (a, b), count in zip(itertools.pairwise(bounds), in_flight, strict=True)
    )


def allowed_cuts(chain: UnitChain, stages: int) -> list[tuple[int, ...]]:
    places = [p for p in range(1, len(chain.seconds)) if chain.transfer_s[p - 1] < math.inf]
    return [(0, *inner, len(chain.seconds)) for inner in itertools.combinations(places, stages - 1)]


@pytest.mark.parametrize("seed", range(RANDOM))
@pytest.mark.parametrize("much_once", [False, True])
def test_equals_brute_force(seed: int, much_once: bool) -> None:
    chain, stages, micro_batches = random_case(seed)
    if much_once:  # so that the two maxima pull in different directions
        once_s = 50 * np.random.default_rng(seed).random(len(chain.seconds))
        chain = replace(chain, once_s=tuple(once_s.tolist()))
    in_flight = tuple(min(micro_batches, stages - i) for i in range(stages))
    cuts = allowed_cuts(chain, stages)
    if not cuts:
        with pytest.raises(InfeasibleError, match="too few places"):
            cut(chain, stages, micro_batches)
        return
    peaks = sorted({peak(chain, bounds, in_flight) for bounds in cuts})
    for limit in (None, *peaks[:: max(1, len(peaks) // 3)]):
        fit = [b for b in cuts if limit is None or peak(chain, b, in_flight) <= limit]
        found = cut(chain, stages, micro_batches, limit_bytes=limit)
        best = min(step_s(chain, bounds, micro_batches) for bounds in fit)
        assert found.bounds in fit
        assert found.seconds == pytest.approx(best, rel=1e-9)
        assert found.seconds == pytest.approx(step_s(chain, found.bounds, micro_batches))
        assert max(found.memory_bytes) == peak(chain, found.bounds, in_flight)
    with pytest.raises(InfeasibleError, match=re.escape(f"at least {peaks[0]} bytes")):
        cut(chain, stages, micro_batches, limit_bytes=peaks[0] - 1)


@pytest.mark.parametrize("seed", range(0, RANDOM, 4))
def test_any_in_flight_counts(seed: int) -> None:
    chain, stages, micro_batches = random_case(seed)
    rng = np.random.default_rng(seed)
    in_flight = tuple(rng.integers(1, 9, stages).tolist())
    cuts = allowed_cuts(chain, stages)
    if cuts:
        least = min(peak(chain, bounds, in_flight) for bounds in cuts)
        found = cut(chain, stages, micro_batches, limit_bytes=least, in_flight=in_flight)
        fit = [bounds for bounds in cuts if peak(chain, bounds, in_flight) == least]
        best = min(step_s(chain, bounds, micro_batches) for bounds in fit)
        assert found.seconds == pytest.approx(best, rel=1e-9)
        with pytest.raises(InfeasibleError, match=f"at least {least} bytes"):
            cut(chain, stages, micro_batches, limit_bytes=least - 1, in_flight=in_flight)


@pytest.mark.parametrize("seed", range(RANDOM))
def test_preferred_places_win_within_the_tolerance(seed: int) -> None:
    chain, stages, micro_batches = random_case(seed)
    rng = np.random.default_rng(seed)
    preferred = {p for p in range(1, len(chain.seconds)) if rng.random() < 0.5}
    tolerance = float(rng.choice([1e-9, 1e-3, 0.1, 1.0]))
    cuts = allowed_cuts(chain, stages)
    if not cuts:
        return
    seconds = {bounds: step_s(chain, bounds, micro_batches) for bounds in cuts}
    others = {bounds: len(set(bounds[1:-1]) - preferred) for bounds in cuts}
    found = cut(chain, stages, micro_batches, preferred=preferred, tolerance=tolerance)
    best = min(seconds.values())
    assert seconds[found.bounds] <= best * (1 + tolerance) * (1 + 1e-9)
    assert found.seconds == pytest.approx(seconds[found.bounds])
    ties = [bounds for bounds in cuts if seconds[bounds] <= best * (1 + 1e-12)]
    assert others[found.bounds] <= min(others[bounds] for bounds in ties)
    within = [b for b in cuts if others[b] == 0 and seconds[b] <= best * (1 + 0.999 * tolerance)]
    assert not within or others[found.bounds] == 0


def test_as_many_preferred_places_as_the_tolerance_pays_for() -> None:
    more = 0.01 * 1.2  # of the fastest cut, at 1 and 3
    transfers = (0.1, 0.1 + 0.45 * more, 0.1, 0.1 + 0.7 * more)
    chain = UnitChain((1.0, 0.0, 0.0, 0.0, 0.0), (0.0,) * 5, transfers, (0,) * 5, (0,) * 5)
    assert cut(chain, 3, 1).bounds == (0, 1, 3, 5)
    places = cut(chain, 3, 1, preferred=(2, 4), tolerance=0.01).bounds[1:-1]
    assert 2 in places and 4 not in places
    assert cut(chain, 3, 1, preferred=(2, 4), tolerance=0.012).bounds == (0, 2, 4, 5)


@pytest.mark.parametrize(("stages", "each"), [(1, 7), (4, 1), (16, 60)])
def test_equal_units_have_a_closed_form(stages: int, each: int) -> None:
    units, micro_batches = stages * each, 64
    chain = UnitChain(
        (0.25,) * units, (0.5,) * units, (0.125,) * (units - 1), (8,) * units, (2,) * units
    )
    found = cut(chain, stages, micro_batches)
    seconds = (micro_batches - 1 + stages) * each * 0.25 + (stages - 1) * 0.125 + each * 0.5
    assert found.seconds == seconds
    assert found.bounds == tuple(range(0, units + 1, each))
    assert found.memory_bytes == tuple(each * (8 + 2 * (stages - i)) for i in range(stages))


def test_strict_1f1b_in_flight() -> None:
    assert strict_in_flight(4, 2) == (2, 2, 2, 1)
    assert strict_in_flight(3, 8) == (3, 2, 1)


def test_one_line_for_bad_input() -> None:
    good = UnitChain((1.0, 2.0), (0.0, 0.0), (0.5,), (1, 1), (1, 1))
    with pytest.raises(AutoDDLError, match="2 units: 2 transfer_s; give 1, one per place"):
        UnitChain((1.0, 2.0), (0.0, 0.0), (0.5, 0.5), (1, 1), (1, 1))
    with pytest.raises(AutoDDLError, match="nan in seconds"):
        UnitChain((1.0, math.nan), (0.0, 0.0), (0.5,), (1, 1), (1, 1))
    with pytest.raises(AutoDDLError, match=r"0\.5 in held_bytes; give whole numbers"):
        UnitChain((1.0, 2.0), (0.0, 0.0), (0.5,), cast(Any, (1, 0.5)), (1, 1))
    with pytest.raises(AutoDDLError, match="without units"):
        UnitChain((), (), (), (), ())
    with pytest.raises(AutoDDLError, match="0 stages"):
        cut(good, 0, 1)
    with pytest.raises(AutoDDLError, match=r"in_flight is \(1,\)"):
        cut(good, 2, 1, in_flight=(1,))
    with pytest.raises(InfeasibleError, match="3 stages of 2 units"):
        cut(good, 3, 1)
