"""Several plans of one request: of unlike states, within memory, the best one first."""

from __future__ import annotations

from typing import Any

import pytest

from autoddl.plan.value import PlanValue
from autoddl.planner import choose
from autoddl.sbp.program import Program
from autoddl.search.budget import Budget
from experiments.lib.oneflow_problems import read
from tests.support.clusters import cluster, of_two_kinds
from tests.support.programs import mlp, transformer

ASKED: dict[str, tuple[Program, dict[str, Any]]] = {
    "a mesh": (mlp(64, (32, 64, 32)), {"mesh": "4"}),
    "any stages": (mlp(64, (256, 512, 256)), {"cluster": "1x4", "pipeline": "auto"}),
    "stages": (transformer(layers=2, width=32), {"mesh": "2", "pipeline": 2}),
    "kinds": (mlp(4, (64, 128, 64)), {"cluster": "1*fastx2 + 1*slowx2"}),
    "halves": (mlp(64, (256, 512, 256)), {"mesh": "4", "duplex": "auto"}),
}


def best(name: str, count: int, **options: Any) -> tuple[PlanValue, ...]:
    program, asked = ASKED[name]
    profile = of_two_kinds(cluster(), slower=3.0) if name == "kinds" else cluster()
    budget = Budget(evaluations=1e3)
    return choose.best(read(program, profile=profile, budget=budget, **asked, **options), count)


@pytest.mark.parametrize("name", ASKED)
def test_the_first_is_what_one_alone_is(name: str) -> None:
    (alone,) = best(name, 1)
    first, *others = best(name, 4)
    assert first.states == alone.states
    assert first.estimate.step_s == pytest.approx(alone.estimate.step_s, rel=1e-3)
    assert others
    steps = [plan.estimate.step_s for plan in others]
    assert steps == sorted(steps) and first.estimate.step_s <= steps[0] * (1 + 1e-3)
    assert len({plan.states for plan in (first, *others)}) == 1 + len(others) <= 4


def test_other_stages_are_among_them() -> None:
    plans = best("any stages", 6)
    assert len({(len(plan.parts), plan.micro_batches) for plan in plans}) > 1


def test_all_fit_into_memory() -> None:
    roomy = best("a mesh", 6)
    limit = sorted(plan.estimate.memory_bytes for plan in roomy)[-2]
    assert roomy[0].estimate.memory_bytes <= limit < max(p.estimate.memory_bytes for p in roomy)
    tight = best("a mesh", 6, memory=limit)
    assert tight[0].states == roomy[0].states
    assert all(plan.estimate.memory_bytes <= limit for plan in tight)
    assert len(tight) < len(roomy)


def test_states_are_known_whatever_the_order_of_ops() -> None:
    first, other = best("a mesh", 2)
    assert first.states != other.states and len(first.states) == 12
