"""Plans as choices: made again from their files they are simulated as they were when planned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import autoddl
from autoddl.errors import AutoDDLError
from autoddl.explain.reopened import reopened
from autoddl.explain.waits import waits_of
from tests.autoddl.explain.plans import PROGRAMS, planned, profile_for
from tests.support.clusters import cluster
from tests.support.programs import transformer


@pytest.mark.parametrize("search", ["exact", "data parallel", "ZeRO 2"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_plan_is_opened_again(name: str, search: str, tmp_path: Path) -> None:
    plan = planned(name, search=search)
    plan.save(tmp_path / "plan.json")
    found = reopened(autoddl.load(tmp_path / "plan.json"), profile_for(name)).chosen
    assert found.step_s == pytest.approx(plan.estimate.step_s, rel=1e-9)
    assert found.memory_bytes == plan.estimate.memory_bytes
    assert found.layout.signatures == plan.signatures


@pytest.mark.parametrize("search", ["exact", "data parallel", "ZeRO 2"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_shares_of_the_critical_path_add_up(name: str, search: str) -> None:
    plan = planned(name, search=search)
    waits = waits_of(reopened(plan, profile_for(name)).chosen.timeline)
    step_s = pytest.approx(plan.estimate.step_s, rel=1e-9)
    assert waits.step_s == step_s
    assert sum(each.seconds for each in waits.layers) == step_s
    links = dict(waits.links)
    assert sum(each.compute_s for each in waits.layers) == pytest.approx(links.pop("compute"))
    known = {"links of level node", "links of level gpu", "copies on the device"}
    assert links.keys() <= known


def test_plans_on_the_compute_stream() -> None:
    program = replace(transformer(layers=2), device="cuda")
    plan = autoddl.optimize(
        program, mesh="2x2", profile=cluster(), search="Megatron", compute_stream=True, budget=5
    )
    found = reopened(plan, cluster()).chosen
    assert found.step_s == pytest.approx(plan.estimate.step_s)
    assert waits_of(found.timeline).step_s == pytest.approx(plan.estimate.step_s, rel=0.01)


def test_stages_are_refused_in_one_line() -> None:
    plan = planned("transformer", mesh="2", pipeline=2, micro_batches=4)
    with pytest.raises(AutoDDLError, match="the plan has 2 stages and 4 micro-batches") as error:
        plan.explain(profile=cluster())
    assert "\n" not in str(error.value)


def test_states_of_another_space_are_refused() -> None:
    """A state that the op has not: B made of what is summed up."""
    plan = planned("mlp", search="data parallel")
    part = plan.parts[0]
    op = next(name for name in plan.signatures if "matmul" in name)
    states = dict(plan.signatures[op])
    states["out_0"] = states["out_0"].replace(0, autoddl.sbp.axis_state.P)
    layout = replace(part.layout, signatures={**plan.signatures, op: states})
    with pytest.raises(AutoDDLError, match="none of those that can be planned"):
        reopened(replace(plan, parts=(replace(part, layout=layout),)), cluster())
