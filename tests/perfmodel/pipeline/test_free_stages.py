"""Stages of random graphs: equal to brute force over all assignments that keep the order of data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoddl.errors import AutoDDLError, InfeasibleError
from autoddl.perfmodel.pipeline.free_stages import fastest, fewest_bytes, least_tolerance
from autoddl.perfmodel.pipeline.placed_cut import NO_LIMIT
from autoddl.perfmodel.pipeline.stage_graph import (
    SentTensor,
    StageGraph,
    contiguous,
    orders,
    stage_ranges,
)
from experiments.rhino.stage_toys import AllStages, bounds_row, optimum_row, random_graph

RANDOM, BOUNDED = 40, 60  # `python -m experiments.rhino.free_stages_study proofs` has 300 and 600
EQUAL = 1e-6


def in_turns() -> StageGraph:
    """Return a1 b1 a2 b2 c of 1 s each: two branches in turns, which join; a tensor takes 0.5 s."""
    ones, none = np.ones(5), np.zeros(5)
    sent = tuple(SentTensor(*ends) for ends in ((0, (2,)), (1, (3,)), (2, (4,)), (3, (4,))))
    nothing = none.astype(np.int64)
    return StageGraph(ones, none, none, nothing, nothing, sent, np.full((4, 2), 0.5), np.ones(4), 5)


@pytest.mark.parametrize("seed", range(RANDOM))
def test_the_fastest_stages_are_those_of_brute_force(seed: int) -> None:
    row = optimum_row(seed)
    for name in ("tightened_s", "told_s", "plain_s"):
        assert row[name] == pytest.approx(row["best_s"], rel=EQUAL), name
    assert row["contiguous_s"] is None or row["told_s"] <= row["contiguous_s"]
    assert row["gap"] <= EQUAL


def test_bounds_cut_off_no_balanced_stages_and_the_printed_ones_do() -> None:
    rows = [bounds_row(seed) for seed in range(BOUNDED)]
    lost = {name: sum(row[name] for row in rows) for name in ("derived", "printed", "repaired")}
    assert lost["derived"] == 0
    assert 0 < lost["repaired"] < lost["printed"]


@pytest.mark.parametrize("seed", range(12))
def test_the_fewest_bytes_are_those_of_brute_force(seed: int) -> None:
    graph = random_graph(seed, forward=True)
    every, mean_s = AllStages.of(graph), graph.seconds.sum() / graph.stages
    load = every.sums(graph.seconds).max(axis=1) / mean_s - 1
    sent = every.sent(np.repeat(graph.sent_bytes[:, None], graph.stages, axis=1))
    tolerance = float(np.sort(load)[len(load) // 3]) + 1e-4
    for tightened in (True, False):
        found = fewest_bytes(graph, tolerance, tightened=tightened)
        assert found.value == sent[load <= tolerance].min() == sent[every.row(found.stage_of)]
    assert least_tolerance(graph) == pytest.approx(load.min(), abs=EQUAL)


def test_branches_captured_in_turns_part() -> None:
    graph = in_turns()
    found = fastest(graph, 4)
    assert found is not None
    assert (found.value, found.contiguous) == (9 + 5.5, 9 + 5.5)  # another order has this cut
    cut = [0, 0, 0, 1, 1]
    assert graph.step_s(cut, 4) == 9 + 6


def test_bounds_by_hand() -> None:
    """Four nodes of 1 s in a row, 2 stages of at most 2.2 s; of at most 3 s the middle ones are free."""
    sent = tuple(SentTensor(n, (n + 1,)) for n in range(3))
    graph = replace(
        in_turns(), sent=sent, sent_s=np.zeros((3, 2)), sent_bytes=np.ones(3), units=4,
        **{name: np.ones(4) for name in ("seconds", "once_s", "waiting_s", "held", "active")},
    )  # fmt: skip
    low, high = stage_ranges(graph, 2.2)
    assert (low.tolist(), high.tolist()) == ([0, 0, 1, 1], [0, 0, 1, 1])
    low, high = stage_ranges(graph, 3.0)
    assert (low.tolist(), high.tolist()) == ([0, 0, 0, 1], [0, 1, 1, 1])


@pytest.mark.parametrize("seed", range(8))
def test_cuts_are_the_best_of_a_chain(seed: int) -> None:
    """A tensor that takes long to arrive in one stage, there and back, does not in another."""
    rng, count = np.random.default_rng(seed), 8
    sent = tuple(
        SentTensor(n + back, (n + 1 - back,), back > 0) for n in range(7) for back in (0, 1)
    )
    seconds, once_s, waiting_s = rng.random((3, count))
    held, active = rng.integers(0, 5, (2, count))
    graph = StageGraph(
        seconds, once_s, waiting_s, held, active, sent, rng.random((14, 3)), np.ones(14), count
    )
    for limit in (NO_LIMIT, 24):
        cut, found = contiguous(graph, 3, limit), fastest(graph, 3, limit=limit, tightened=False)
        assert (cut is None) is (found is None)
        if cut is not None and found is not None:
            assert graph.step_s(cut, 3) == pytest.approx(found.value, rel=EQUAL)


def test_orders_are_topological_and_unlike() -> None:
    found = list(orders(in_turns().edges, 5))
    assert found[0] == [0, 1, 2, 3, 4]
    assert [0, 2, 1, 3, 4] in found or [1, 3, 0, 2, 4] in found
    for order in found:
        assert sorted(order) == [0, 1, 2, 3, 4]
        assert order.index(0) < order.index(2)
        assert order.index(1) < order.index(3)


def test_what_fits_nowhere_is_none() -> None:
    graph = replace(in_turns(), held=np.full(5, 3))
    assert contiguous(graph, 2, limit=8) is None
    assert fastest(graph, 2, limit=8) is None
    found = fastest(graph, 2, limit=9)
    assert found is not None
    assert max(graph.stage_bytes(found.stage_of, 2)) == 9


def test_one_stage_has_all() -> None:
    graph = replace(in_turns(), sent_s=np.zeros((4, 1)))
    found = fastest(graph, 3)
    assert found is not None
    assert (found.stage_of, found.value) == ((0,) * 5, 15.0)


@pytest.mark.parametrize("tolerance", [0.0, -1.0, float("nan")])
def test_a_tolerance_that_is_none(tolerance: float) -> None:
    with pytest.raises(AutoDDLError, match="allowed are numbers above 0"):
        fewest_bytes(in_turns(), tolerance)


def test_no_stages_as_balanced_as_that() -> None:
    with pytest.raises(InfeasibleError, match=r"got 0\.1, .* the least is 0\.2$"):
        fewest_bytes(in_turns(), 0.1)
