"""What a graph holds beside parameters and inputs is on all ranks what it is on one device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.autoddl.engine.oneflow.run.captured_cases import (
    ROWS,
    SPARSE,
    STEPS,
    linear,
    records,
    sparse_training,
)
from tests.support.on_ranks import Launched, seen_by

pytestmark = [pytest.mark.oneflow, pytest.mark.ranks]


@pytest.fixture(scope="module")
def seen(launched: Launched) -> Any:
    """Return what both ranks saw."""
    return seen_by(2, launched("captured", ranks=2))


def test_copies_agree_where_each_rank_draws_seeds_of_its_own(seen: Any) -> None:
    one, other = (rank["noisy"] for rank in seen)
    assert one == other
    assert len(set(one["losses"])) == 3


def test_a_saved_plan_runs_with_another_seed(seen: Any) -> None:
    one, other = (rank["noisy"] for rank in seen)
    assert one["reseeded"] == other["reseeded"] != one["losses"]


def test_constants_that_differ_are_those_of_rank_0(seen: Any) -> None:
    for rank in seen:
        assert rank["drawn by each"] == rank["drawn by rank 0"] == seen[0]["drawn by rank 0"]


@pytest.mark.parametrize(("kind", "pin"), SPARSE)
def test_sparse_updates_are_those_of_the_rows(kind: str, pin: str, seen: Any) -> None:
    losses, table = sparse_training(kind)
    for rank in seen:
        found = rank["sparse"][f"{kind} {pin}"]
        assert found["losses"] == pytest.approx(losses, abs=1e-5)
        np.testing.assert_allclose(found["table"], table, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("ranks", "plan"), [(2, "cut"), (2, "whole"), (4, "cut twice"), (4, "cut once")]
)
def test_graphs_read_the_batches_of_one_device(ranks: int, plan: str, launched: Launched) -> None:
    weight, bias = (array.astype(np.float64) for array in linear())
    features, expected = records(), []
    for step in range(STEPS):
        x, y = (features[name][step * ROWS : (step + 1) * ROWS] for name in ("x", "y"))
        error = x @ weight.T + bias - y
        expected.append((float((error**2).mean()), y.ravel()))
        weight = weight - 0.1 * 2 * error.T @ x / ROWS
        bias = bias - 0.1 * 2 * error.mean(axis=0)
    for rank in seen_by(ranks, launched("captured", ranks=ranks)):
        for (loss, labels), (right, wanted) in zip(rank["reading"][plan], expected, strict=True):
            assert loss == pytest.approx([right], abs=1e-5)
            assert labels == pytest.approx(wanted.tolist())
