"""Plans of programs drawn at random: valid, bounded, no worse than baselines, the same when read."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, given, settings

import autoddl
from autoddl import compiled
from autoddl.api import Plan
from autoddl.engine import engines
from autoddl.errors import InfeasibleError
from autoddl.perfmodel.step_cost import StepPrices
from autoddl.plan import codec
from autoddl.planner import choose
from autoddl.sbp.program import Program
from autoddl.sbp.shards import local_shape
from autoddl.sbp.state import NdSbp
from autoddl.search.budget import Budget
from tests.support.clusters import cluster
from tests.support.programs import mlp, transformer

PROFILE = cluster()
SOME = Budget(evaluations=2e3)
ROUNDING = 1 + 1e-9
PINS: Mapping[int, tuple[dict[str, str] | None, ...]] = {
    1: (None, {"*fc1.weight": "S0"}, {"*fc1.weight": "B", "input*": "S0"}),
    2: (None, {"*fc1.weight": "B,S0"}, {"*fc1.weight": "S1,B"}),
}


@st.composite
def programs(draw: st.DrawFn) -> Program:
    if draw(st.booleans()):
        return transformer(layers=1, width=draw(st.sampled_from((16, 32))))
    sizes = draw(st.lists(st.sampled_from((8, 16, 64)), min_size=2, max_size=4))
    return mlp(
        draw(st.sampled_from((8, 32, 256))),
        tuple(sizes),
        optimizer=draw(st.sampled_from(("sgd", "momentum", "adam"))),
        act=draw(st.sampled_from(("relu", "gelu"))),
        bias=draw(st.booleans()),
    )


def check(plan: Plan, program: Program, pin: Mapping[str, str] | None) -> None:
    """A plan has a state for everything, which cuts it, and is priced as its layout says."""
    assert set(plan.signatures) == set(program.op)
    made = {tensor for op in program.ops for _, tensor in op.outputs}
    held = {name for p in program.parameters for name in (p.tensor, *p.states)}
    assert set(plan.layout.made) == made | held | set(program.inputs)
    for name, state in plan.layout.made.items():
        assert local_shape(program.tensor[name].shape, state, plan.mesh.shape) is not None
    for name, state in (pin or {}).items():
        states = {**plan.variables, **{item.name: item.state for item in plan.inputs}}
        pinned = [s for n, s in states.items() if n.endswith(name[1:]) or n.startswith(name[:-1])]
        assert pinned and all(s == NdSbp.parse(state) for s in pinned)
    cost = StepPrices(plan.program, plan.mesh, PROFILE).step(plan.layout)
    assert plan.estimate.compute_s == pytest.approx(sum(p.seconds for p in cost.ops.rows()))
    boxings = sum(p.seconds for p in cost.boxings.rows())
    assert plan.estimate.communication_s == pytest.approx(boxings)


# Each plans twice.
@settings(
    max_examples=min(10, settings().max_examples // 4), phases=(Phase.explicit, Phase.generate)
)
@given(programs(), st.data())
def test_plans_of_any_program(program: Program, data: st.DataObject) -> None:
    mesh = data.draw(st.sampled_from(("2", "4", "2x2")))
    pin = data.draw(st.sampled_from(PINS[2 if "x" in mesh else 1]))
    options: dict[str, Any] = {"mesh": mesh, "pin": pin, "profile": PROFILE, "pipeline": 1}
    plan = autoddl.optimize(program, budget=SOME, **options)
    share = data.draw(st.sampled_from((None, 1.0, 0.9)))
    if share is not None:
        limit = int(plan.estimate.memory_bytes * share)
        try:
            plan = autoddl.optimize(program, budget=SOME, memory=limit, **options)
        except InfeasibleError as error:
            assert "\n" not in str(error) and share < 1
            return
        assert plan.estimate.memory_bytes <= limit
    check(plan, plan.program, pin)  # which has more ops where memory is short
    row = plan.estimate
    assert 0 < plan.search.lower_bound_s <= (row.compute_s + row.communication_s) * ROUNDING
    limit = plan.memory_limit_bytes or 0
    fitting = [r.step_s for r in plan.baselines if r.memory_bytes <= limit]
    assert row.step_s <= min(fitting, default=row.step_s) * ROUNDING
    assert Plan.of(codec.decode(codec.encode(plan), "plan", engines.model)) == plan


def test_the_seconds_of_a_plan_are_those_of_all_races(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "clock_s", iter((10.0, 25.0)).__next__)
    options: dict[str, Any] = {"cluster": "4", "profile": PROFILE, "pipeline": "auto"}
    assert autoddl.optimize(mlp(), budget=SOME, **options).search.seconds == 15.0


def test_searches_with_and_without_stages_share_the_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a clock that moves as often as it is looked at; each search looks once more when it is over."""
    ticks = count()
    monkeypatch.setattr(compiled, "time", SimpleNamespace(perf_counter=lambda: 0.03 * next(ticks)))
    options: dict[str, Any] = {"cluster": "2x4", "profile": PROFILE, "pipeline": "auto"}
    plan = autoddl.optimize(mlp(), budget=1.0, **options)
    assert plan.search.seconds < 1.3
