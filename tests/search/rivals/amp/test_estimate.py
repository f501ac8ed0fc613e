"""AMP's price by hand and by the issue's oracle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoddl.errors import AutoDDLError
from autoddl.search.rivals.amp.estimate import AmpEstimate, LayerChain, UnlikeNodes
from autoddl.search.rivals.amp.strategies import Strategy, megatron_stages

GBIT = 1e9 / 8
MIXED = UnlikeNodes(
    ("fast", "slow"), 2, {"fast": 20 * GBIT, "slow": 5 * GBIT}, {"fast": GBIT, "slow": 5 * GBIT}
)
LAYERS = LayerChain(
    {"fast": (0.1, 0.2, 0.3), "slow": (0.2, 0.4, 0.6)},
    parameters=(1e6, 2e6, 3e6), passed=(1e5, 2e5, 1e6), reduced=(1e6, 1e6, 1e6),
)  # fmt: skip


@pytest.mark.parametrize(("rate", "expected"), [(50, 0.427), (10, 2.133)])
def test_gradients_of_gpt_on_sixteen_devices(rate: float, expected: float) -> None:
    parameters = 24 * 12 * 1024**2 + 52256 * 1024
    nodes = UnlikeNodes(("t4",) * 4, 4, {"t4": 50 * GBIT}, {"t4": rate * GBIT})
    layers = LayerChain({"t4": (0.409,)}, (float(parameters),), (0.0,), (0.0,))
    strategy = Strategy(1, 16, 2, megatron_stages(4, 4, 1, 16))
    estimate = AmpEstimate(nodes, layers, 32)
    found = estimate.synchronised_s(strategy, strategy.stages[0], 0, 1)
    assert found == pytest.approx(expected, abs=5e-4)


def test_a_pipeline_of_unlike_stages_by_hand() -> None:
    estimate = AmpEstimate(MIXED, LAYERS, 8)
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
    estimate = AmpEstimate(MIXED, LAYERS, 8)
    strategy = Strategy(2, 2, 2, ((0, 1, 2, 3),))
    seconds = estimate.seconds(strategy)  # at the pace of the slow node, whose link reduces too
    per_layer = [2 * (s / 2 + 4 * 1e6 / (5 * GBIT)) for s in (0.2, 0.4, 0.6)]
    assert seconds.tolist() == [pytest.approx(per_layer)]
    across = replace(strategy, stages=((0, 2, 1, 3),))  # a domino that lies
    per_layer = [2 * (s / 2 + 4 * 1e6 / GBIT) for s in (0.2, 0.4, 0.6)]
    assert estimate.seconds(across).tolist() == [pytest.approx(per_layer)]


def test_what_is_missing_is_one_line() -> None:
    with pytest.raises(
        AutoDDLError, match="nodes of kind 't4': no inside rate; give bytes/s above 0"
    ):
        UnlikeNodes(("t4",), 4, {}, {"t4": 1.0})
    with pytest.raises(AutoDDLError, match=r"layers: counts of \[2, 3\]; give one number for each"):
        replace(LAYERS, passed=(1.0, 2.0))
