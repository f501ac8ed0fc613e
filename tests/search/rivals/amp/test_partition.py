"""AMP's dynamic program against all cuts."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.pipeline.part_graph import part_graph
from autoddl.perfmodel.pipeline.placed_cut import NO_LIMIT, Chains, place
from autoddl.search.rivals.amp.partition import Floats, partition, pipeline_s


def every_cut(stages: int, layers: int) -> list[tuple[int, ...]]:
    return [(0, *inner, layers) for inner in combinations(range(1, layers), stages - 1)]


def step_s(bounds: tuple[int, ...], seconds: Floats, transfer_s: Floats, count: int) -> float:
    """Equation 4 without synchronisation, written out."""
    stages, moved = [], 0.0
    for stage in range(len(bounds) - 1):
        stages.append(sum(seconds[stage][bounds[stage] : bounds[stage + 1]]))
        if stage + 2 < len(bounds):
            moved += transfer_s[stage][bounds[stage + 1] - 1]
    return float((count - 1) * max(stages) + sum(stages) + moved)


@pytest.mark.parametrize("seed", range(300))
def test_no_cut_is_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    stages = int(rng.integers(1, 5))
    layers, count = int(rng.integers(stages, 9)), int(rng.integers(1, 9))
    classes = rng.uniform(0.5, 3.0, 3)  # unlike devices: each layer at the pace of its stage's
    seconds = rng.exponential(1.0, layers) * classes[rng.integers(0, 3, stages)][:, None]
    transfer_s = rng.exponential(rng.choice([0.01, 0.3, 3.0]), (max(stages - 1, 0), layers - 1))
    found = partition(seconds, transfer_s, count)
    best = min(step_s(c, seconds, transfer_s, count) for c in every_cut(stages, layers))
    assert pipeline_s(found, seconds, transfer_s, count) == pytest.approx(best, rel=1e-12)
    assert step_s(found, seconds, transfer_s, count) == pytest.approx(best, rel=1e-12)


def test_equal_devices_are_cut_as_pipelines_are() -> None:
    """The planner's own branch and bound knows memory and more; without it is the same problem."""
    rng = np.random.default_rng(7)
    for _ in range(20):
        row, between = rng.exponential(1.0, 9), rng.exponential(0.3, 8)
        parts, nothing = part_graph([(1,)], [3], [3], 3).of(3), np.zeros((1, 10))
        sums, sent = np.cumsum([0.0, *row])[None], np.array([[np.inf, *between, np.inf]])
        none = nothing.astype(np.int64)
        chains = Chains(sums, sums, nothing, none, none, np.array([NO_LIMIT]), sent)
        found_cut = place(chains, parts.graph, 4)
        assert found_cut is not None
        wanted = found_cut.bounds
        seconds, transfer_s = np.tile(row, (3, 1)), np.tile(between, (2, 1))
        found = partition(seconds, transfer_s, 4)
        assert pipeline_s(found, seconds, transfer_s, 4) == pytest.approx(
            pipeline_s(wanted, seconds, transfer_s, 4)
        )


def test_fewer_layers_than_stages_are_one_line() -> None:
    with pytest.raises(AutoDDLError, match="pipeline of 3 stages: 2 layers; give at least one"):
        partition(np.ones((3, 2)), np.ones((2, 1)), 4)


def test_a_stage_may_not_be_empty() -> None:
    seconds = np.array([[1.0, 1.0, 1.0], [99.0, 99.0, 9.0], [9.0, 9.0, 9.0]])
    for count in (1, 5):
        assert partition(seconds, np.zeros((2, 2)), count) == (0, 1, 2, 3)
