"""What is timed of an order of ops: the same plan with it and without it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.timeline import predict
from experiments.fidelity import gains
from tests.support.clusters import cluster
from tests.support.programs import transformer


def test_plans_that_gain_by_an_order(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    cluster().save(file)
    found = list(gains.order(transformer(), gains.BEDS["2x1-500mbit"], file))
    assert found
    profile = profiles.load(file)
    for _, free, ordered, told in found:
        assert not free.layout.after and ordered.layout.after
        assert free.signatures == ordered.signatures
        assert free.redistributions == ordered.redistributions
        said = [predict(one.mesh, profile, one.layout).step_s for one in (free, ordered)]
        assert said[1] < (1 - gains.LEAST) * said[0]
        assert told == pytest.approx(said) and said[1] == pytest.approx(ordered.estimate.step_s)


def test_all_plans_of_all_pairs_are_scored() -> None:
    rows = [
        {"bed": "a", "model": "m", "first_predicted_ms": 10.0, "first_ms": 10.0,
         "second_predicted_ms": 9.0, "second_ms": 12.0},
        {"bed": "b", "model": "m", "first_predicted_ms": 20.0, "first_ms": 25.0,
         "second_predicted_ms": 30.0, "second_ms": 30.0},
    ]  # fmt: skip
    found = gains.scored_plans(pd.DataFrame(rows)).set_index("bed")
    assert found.loc[["a", "b", "all"], "plans"].tolist() == [2, 2, 4]
    assert found.loc["a", "mean_error"] == pytest.approx((0 + 0.25) / 2)
    assert found.loc["all", "mean_error"] == pytest.approx((0 + 0.25 + 0.2 + 0) / 4)
    # of bed a the second is predicted best, but the first one is; of bed b the first is both
    assert found["regret"].tolist() == pytest.approx([0.2, 0.0, 0.2])
    assert found.loc["all", "worst_error"] == pytest.approx(0.25)
