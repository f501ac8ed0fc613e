"""What is timed of an order of ops: the same plan with it and without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.timeline import predict
from experiments.fidelity import order
from tests.support.clusters import cluster
from tests.support.programs import transformer


def test_plans_that_gain_by_an_order(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    cluster().save(file)
    found = list(order.plans(transformer(), file))
    assert found
    profile = profiles.load(file)
    for _, plan in found:
        free, ordered = order.both(plan)
        assert ordered == plan and not free.layout.after and plan.layout.after
        assert free.signatures == plan.signatures and free.redistributions == plan.redistributions
        said = [predict(one.mesh, profile, one.layout).step_s for one in (free, ordered)]
        assert said[1] < (1 - order.LEAST) * said[0]
        assert said[1] == pytest.approx(plan.estimate.step_s)
