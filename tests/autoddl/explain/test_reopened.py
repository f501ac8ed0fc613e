"""Plans as choices: made again from their files they are simulated as they were when planned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import autoddl
from autoddl.errors import AutoDDLError
from autoddl.explain.reopened import reopened
from autoddl.explain.waits import waits_of
from tests.autoddl.explain.plans import PROGRAMS, planned, profile_for
from tests.support.budgets import LITTLE
from tests.support.clusters import cluster, of_two_kinds
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


CUDA = replace(transformer(layers=2), device="cuda")
KINDS: dict[str, dict[str, Any]] = {
    "compute stream": {"program": CUDA, "compute_stream": True},
    "fusion": {"program": CUDA, "compute_stream": False, "fusion": "1,4"},
    "halves": {"mesh": "4", "duplex": True},
    "layers again": {"recompute": "layers"},
    "kinds": {"mesh": None, "cluster": "1*fastx2 + 1*slowx2", "pipeline": 1},
    "no engine": {"engine": None},
    "pin": {"pin": {"*.fc1.weight": "B,S0"}},
    "communication": {"objective": "communication"},
    "sharded masks": {"dropout": "sharded", "allow_local_batchnorm": True},
    "one device": {"mesh": "1"},
    "three axes": {"mesh": "2x2x2", "search": "Megatron"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_plans_of_all_kinds(kind: str) -> None:
    """Each is printed, too, with the signatures of an op."""
    options = {"program": transformer(layers=2), "mesh": "2x2", "budget": LITTLE, **KINDS[kind]}
    program, profile = options.pop("program"), cluster(device_type="cuda")
    if kind == "kinds":
        profile = of_two_kinds(profile)
    plan = autoddl.optimize(program, profile=profile, **options)
    found = reopened(plan, profile).chosen
    assert found.step_s == pytest.approx(plan.estimate.step_s, rel=1e-9)
    assert found.memory_bytes == plan.estimate.memory_bytes
    assert "certain: " in str(plan.explain(profile=profile))
    module = next(op.module for op in plan.program.ops if op.module.endswith("fc1"))
    assert "fc1" in str(plan.explain(module, profile=profile, budget=0))


def test_other_choices_of_plans_with_stages_are_refused_in_one_line() -> None:
    plan = planned("transformer", mesh="2", pipeline=2, micro_batches=4)
    for asked, told in (
        ({"why": "model.head"}, "the plan has 2 stages and 4 micro-batches"),
        ({"profile": cluster()}, "has its seconds in it; leave out the profile"),
    ):
        with pytest.raises(AutoDDLError, match=told) as error:
            plan.explain(**asked)
        assert "\n" not in str(error.value)


def test_stages_say_what_they_do_and_wait_for() -> None:
    """The seconds of a stage are those of the simulated step: what is busy, and what is not."""
    plan = planned("transformer", mesh="2", pipeline=2, micro_batches=4)
    told = plan.explain()
    assert [stage.devices for stage in told.stages] == ["2", "2"]
    for stage, part, idle in zip(told.stages, plan.parts, plan.timeline.idle, strict=True):
        spans = [s for s in plan.timeline.spans if s.stage == stage.number and "→" not in s.stream]
        forward, backward, once = (
            sum(s.end_s - s.start_s for s in spans if s.name.startswith(name)) for name in "FBo"
        )
        assert stage.passes_s == pytest.approx((forward / 4, backward / 4, once))
        assert (stage.idle, stage.memory_bytes) == (idle, part.memory_bytes)
        assert idle == pytest.approx(
            1 - (forward + backward + once) / plan.estimate.step_s, abs=0.02
        )
    assert {row.stage for row in told.layers} == {0, 1}
    rows_s = sum(row.compute_s for row in plan.rows)  # with modules that have no forward pass
    assert sum(row.compute_s for row in told.layers) == pytest.approx(rows_s, rel=0.01)
    text = str(told)
    assert "what the step waits for: its stages" in text and "certain: " in text


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
