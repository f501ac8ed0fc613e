"""What is timed of an order of ops: the same plan with it and without it."""

from __future__ import annotations

from pathlib import Path

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
