"""AMP's price by hand and by the paper's numbers, its search against all strategies and cuts."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from autoddl.sbp.mesh import Cluster
from autoddl.search.rivals.amp.estimate import AmpEstimate, LayerChain
from autoddl.search.rivals.amp.strategies import Strategy, degrees, megatron_stages, tilings

GBIT = 1e9 / 8
LAYERS = LayerChain(
    {"fast": np.array([0.1, 0.2, 0.3]), "slow": np.array([0.2, 0.4, 0.6])},
    np.array([1e6, 2e6, 3e6]), np.array([1e5, 2e5, 1e6]), np.array([1e6, 1e6, 1e6]),
)  # fmt: skip


def mixed(layers: LayerChain = LAYERS, batch: int = 8) -> AmpEstimate:
    inside, outside = {"fast": 20 * GBIT, "slow": 5 * GBIT}, {"fast": GBIT, "slow": 5 * GBIT}
    return AmpEstimate(Cluster.parse("1*fastx2 + 1*slowx2"), inside, outside, layers, batch)


@pytest.mark.parametrize(("rate", "expected"), [(50, 0.427), (10, 2.133)])
def test_gradients_of_gpt_on_sixteen_devices(rate: float, expected: float) -> None:
    parameters = np.array([24 * 12 * 1024**2 + 52256 * 1024.0])
    layers = LayerChain({"t4": np.array([0.409])}, parameters, np.zeros(1), np.zeros(1))
    strategy = Strategy(1, 16, 2, megatron_stages(16, 1, 16))
    nodes = Cluster.parse(" + ".join(["1*t4x4"] * 4))
    estimate = AmpEstimate(nodes, {"t4": 50 * GBIT}, {"t4": rate * GBIT}, layers, 32)
    found = estimate.synchronised_s(strategy, strategy.stages[0], 0, 1)
    assert found == pytest.approx(expected, abs=5e-4)


def test_a_pipeline_of_unlike_stages_by_hand() -> None:
    estimate = mixed()
    strategy = Strategy(1, 2, 1, ((0, 1), (2, 3)))  # dp inside each node, 4 micro-batches
    bounds = (0, 2, 3)
    stages = 0.3, 0.6
    transfer = 4 * 2e5 / GBIT  # the fast node's link is the slower one
    synced = max(4 * 3e6 / (20 * GBIT), 4 * 3e6 / (5 * GBIT))
    expected = 3 * stages[1] + sum(stages) + transfer + synced
    assert estimate.step_s(strategy, bounds) == pytest.approx(expected)
    other = replace(strategy, stages=((2, 3), (0, 1)))  # the slow node first
    swapped = 3 * 0.6 + 0.6 + 0.3 + transfer + max(4 * 3e6 / (5 * GBIT), 4 * 3e6 / (20 * GBIT))
    assert estimate.step_s(other, bounds) == pytest.approx(swapped)


def test_tensor_parallel_groups_reduce_over_their_slowest_link() -> None:
    estimate = mixed()
    strategy = Strategy(2, 2, 2, ((0, 1, 2, 3),))
    seconds = estimate.seconds(strategy)  # at the pace of the slow node, whose link reduces too
    per_layer = [2 * (s / 2 + 4 * 1e6 / (5 * GBIT)) for s in (0.2, 0.4, 0.6)]
    assert seconds.tolist() == [pytest.approx(per_layer)]
    across = replace(strategy, stages=((0, 2, 1, 3),))  # a domino that lies
    per_layer = [2 * (s / 2 + 4 * 1e6 / GBIT) for s in (0.2, 0.4, 0.6)]
    assert estimate.seconds(across).tolist() == [pytest.approx(per_layer)]


@pytest.mark.parametrize("seed", range(2))
def test_no_placement_and_no_cut_is_better(seed: int) -> None:
    """Without gradients to synchronise, of which the program for the cut does not know."""
    rng = np.random.default_rng(seed)
    pace = rng.exponential(0.1, 4)
    layers = LayerChain(
        {"fast": pace, "slow": 2 * pace},
        np.zeros(4), rng.exponential(1e6, 4), rng.exponential(1e6, 4),
    )  # fmt: skip
    estimate, best = mixed(layers, batch=4), {}
    for tmp, dp, mbs in degrees(2, 2, 4):
        prices = [
            estimate.step_s(Strategy(tmp, dp, mbs, stages), (0, *inner, 4))
            for stages in tilings(2, 2, tmp, dp)
            for inner in combinations(range(1, 4), len(stages) - 1)
        ]
        if prices:
            best[tmp, dp, mbs] = min(prices)
    found = estimate.search(len(best) + 1)
    assert [one.step_s for one in found] == pytest.approx(sorted(best.values()))
    for step_s, strategy, bounds in found:
        assert step_s == pytest.approx(best[strategy.tmp, strategy.dp, strategy.mbs])
        assert step_s == estimate.step_s(strategy, bounds)
    assert estimate.search(3) == found[:3]
