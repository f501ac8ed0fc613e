"""Orders of tasks keep to the memory of the devices, and use what is there."""

from __future__ import annotations

from typing import Any

import pytest

import autoddl
from autoddl.api import Plan
from tests.support.clusters import cluster
from tests.support.programs import mlp

PROGRAM = mlp(64, (64, 8, 512, 512, 64))


def planned(**options: Any) -> Plan:
    return autoddl.optimize(
        PROGRAM, mesh="1", pipeline=3, micro_batches=8, profile=cluster(), engine="script",
        recompute="none", budget=0.5, **options,
    )  # fmt: skip


def test_more_is_in_flight_only_where_it_fits() -> None:
    plain = planned(schedule="1f1b")
    free = planned(schedule="searched")
    most = [min(8, part.in_flight + 2) for part in plain.parts]
    assert all(p.in_flight <= n for p, n in zip(free.parts, most, strict=True))
    assert free.estimate.step_s <= plain.estimate.step_s
    memory = max(part.memory_bytes for part in plain.parts)
    tight = planned(schedule="searched", memory=memory)
    assert max(part.memory_bytes for part in tight.parts) <= memory
    assert free.estimate.step_s <= tight.estimate.step_s <= plain.estimate.step_s
    for plan in (plain, free, tight):
        assert plan.tasks.in_flight == tuple(part.in_flight for part in plan.parts)
        assert plan.timeline.step_s == pytest.approx(plan.estimate.step_s)
        assert plan.recost(cluster(), again=False, cluster="1x3").now == plan.estimate
