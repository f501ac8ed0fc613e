"""Plans with pins: what these cost, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import autoddl
from autoddl.api import Plan
from autoddl.engine import engines
from autoddl.plan import codec
from autoddl.search.budget import Budget
from tests.support.clusters import cluster
from tests.support.programs import mlp

PROFILE = cluster()
PROGRAM = mlp(batch=64, sizes=(512, 2048, 512), bias=False)


def plan(pin: dict[str, str] | None = None, **options: Any) -> Plan:
    options = {"mesh": "4", "pipeline": 1, "budget": Budget(evaluations=2e4), **options}
    return autoddl.optimize(PROGRAM, profile=PROFILE, pin=pin, **options)


def test_pins_that_cost_are_told_with_what_the_plan_without_them_takes() -> None:
    free = plan()
    as_it_is = {"*.fc2.weight": str(free.variables["model.fc2.weight"])}
    found = plan({"*.fc1.weight": "B", **as_it_is})
    (cost,) = found.search.pins
    assert cost.pin == "pin '*.fc1.weight': B"
    assert cost.without_s == pytest.approx(free.estimate.step_s)
    assert free.estimate.step_s * 1.01 < found.estimate.step_s
    (line,) = [line for line in str(found).splitlines() if line.startswith("pin ")]
    assert line.startswith("pin '*.fc1.weight': B costs") and "without it a step takes" in line
    assert Plan.of(codec.decode(codec.encode(found), "plan", engines.model)) == found
    assert plan(as_it_is).search.pins == () == free.search.pins
