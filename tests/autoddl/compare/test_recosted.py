"""Plans with other profiles: their own figures with their own, and those of a search with another."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import autoddl
from autoddl.api import Plan
from autoddl.compare.staged_again import uncut
from autoddl.errors import AutoDDLError
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.scaled_profile import scaled
from autoddl.plan.value import OWN
from autoddl.sbp.program import Program
from autoddl.sbp.rewrites.micro_batch import batch_of, with_batch
from autoddl.search.budget import Budget
from tests.sbp.rewrites.test_sync_batchnorm import program as norms
from tests.sbp.rewrites.test_whole_masks import dropped
from tests.support.budgets import LITTLE
from tests.support.clusters import cluster, of_two_kinds
from tests.support.programs import Builder, linear, mlp, mse, tied, transformer

LARGE = transformer(layers=2, batch=64, width=64)
CUDA = replace(LARGE, device="cuda")


def dropping() -> Program:
    """Return layers with a dropout behind each, so large that the batch is cut."""
    g = Builder()
    x, target = g.input((4096, 128)), g.input((4096, 128))
    for layer in range(3):
        with g.module(f"layers.{layer}"):
            x = dropped(g, linear(g, x, 128))
    return g.program(mse(g, x, target), "sgd")


SMALL = mlp(64, (64, 64, 64))
STAGED = {"mesh": "2x1", "pipeline": 2, "micro_batches": 2}
PLANS: dict[str, dict[str, Any]] = {
    "mlp": {"program": SMALL, "search": "data parallel"},
    "transformer": {"program": transformer(layers=2)},
    "data parallel": {"program": LARGE, "search": "data parallel"},
    "ZeRO": {"program": LARGE, "search": "ZeRO 2"},
    "queue": {"program": CUDA, "compute_stream": False},
    "compute stream": {"program": CUDA, "compute_stream": True},
    "waiting": {"program": CUDA, "compute_stream": True, "memory": "5MiB", "recompute": "none"},
    "layers again": {"program": LARGE, "recompute": "layers"},
    "little memory": {"program": LARGE, "mesh": "2", "memory": "6MiB"},
    "BatchNorm in parts": {"program": norms((256, 32, 32, 32))},
    "dropout": {"program": dropping()},
    "sharded dropout": {"program": dropping(), "dropout": "sharded"},
    "halves": {"program": transformer(layers=2), "mesh": "4", "duplex": True},
    "stages": {"program": transformer(layers=2), **STAGED},
    "slow links": {
        "program": transformer(layers=4, batch=32), "mesh": "1x2", "pipeline": 2,
        "micro_batches": 4, "profile": scaled(cluster(), bandwidth={"node": 0.1}),
    },
    "micro-batches": {"program": transformer(layers=2), "micro_batches": 4},
    "stages with dropout": {"program": dropping(), **STAGED, "mesh": "1x4", "memory": 4_774_246},
    "stages with tied weights": {"program": tied(), **STAGED},
    "unlike stages": {
        "program": transformer(layers=2), "mesh": None, "cluster": "2x2", "pipeline": 3,
        "parts": "any",
    },
    "shares": {
        "program": LARGE, "mesh": None, "cluster": "1*slow + 1*fast", "engine": "script", "pipeline": 1,
        "profile": of_two_kinds(cluster(), 3.0),
    },
}  # fmt: skip


def profile_for(name: str) -> Profile:
    own: Profile | None = PLANS[name].get("profile")
    return own or cluster(device_type=PLANS[name]["program"].device)


@cache
def planned(name: str) -> Plan:
    options = {"mesh": "2x2", "budget": LITTLE, "profile": profile_for(name), **PLANS[name]}
    return autoddl.optimize(options.pop("program"), **options)


def test_plans_are_of_the_kinds_that_they_are_named_for() -> None:
    assert planned("queue").queue and planned("compute stream").compute_stream
    assert any("autoddl-again" in op.name for op in planned("layers again").program.ops)
    assert any("autoddl-mask" in op.name for op in planned("dropout").program.ops)
    assert any("autoddl-batchnorm" in op.name for op in planned("BatchNorm in parts").program.ops)
    drawn = [op.name for op in planned("stages with dropout").program.ops]
    assert any(name.startswith("autoddl-stage-1-autoddl-mask") for name in drawn)
    assert len({part.mesh.size for part in planned("unlike stages").parts}) > 1
    assert planned("shares").mesh.axes[0].shares
    assert planned("slow links").parts[0].in_flight == 3  # one more than strict 1F1B
    saved = planned("waiting")
    assert saved.compute_stream and saved.memory_limit_bytes == 5 << 20


@pytest.mark.parametrize("name", PLANS)
def test_its_own_profile_gives_its_own_figures(name: str, tmp_path: Path) -> None:
    """To the last digit: nothing is rounded, and nothing is added in another order."""
    planned(name).save(tmp_path / "plan.json")
    plan = autoddl.load(tmp_path / "plan.json")
    where = "2x2" if name == "unlike stages" else None
    told = plan.recost(profile_for(name), again=False, cluster=where)
    assert told.now == told.before == plan.estimate
    assert told.fits and told.again is None and not told.note


def test_another_profile_prices_the_same_states_as_the_planner_does() -> None:
    """Data parallelism has the same states whatever the links, so planning it there tells its costs."""
    slow = cluster(overhead_s=3e-5, name="slow")
    told = planned("data parallel").recost(slow, again=False)
    expected = autoddl.optimize(
        LARGE, mesh="2x2", profile=slow, search="data parallel", budget=LITTLE
    )
    for field in ("compute_s", "communication_s", "memory_bytes"):
        assert getattr(told.now, field) == getattr(expected.estimate, field), field
    assert told.now.step_s == pytest.approx(expected.estimate.step_s, rel=0.02)  # order of ops
    assert told.profile == "slow" and told.before == planned("data parallel").estimate


def test_planning_again_is_what_optimize_finds() -> None:
    slow = cluster(overhead_s=3e-5, name="slow")
    told = planned("ZeRO").recost(slow, budget=LITTLE)
    expected = autoddl.optimize(LARGE, mesh="2x2", profile=slow, budget=LITTLE)
    assert isinstance(told.again, Plan) and told.gain is not None
    assert told.again.estimate == expected.estimate
    assert math.isclose(told.gain, 1 - expected.estimate.step_s / told.now.step_s)
    assert told.gain > 0 and "modules have other states" in told.difference
    text = str(told)
    assert "planning again spares " in text and "made-up (as planned)" in text


def test_planning_again_in_no_time_finds_nothing_slower_than_the_plan() -> None:
    """Without it to begin with, one evaluation finds a step that is 1 % longer."""
    program = transformer(layers=1, batch=64, width=64)
    plan = autoddl.optimize(
        program, mesh="2x2", profile=cluster(), budget=Budget(evaluations=5_000)
    )
    told = plan.recost(cluster(), budget=Budget(evaluations=1))
    quick = autoddl.optimize(program, mesh="2x2", profile=cluster(), budget=Budget(evaluations=1))
    assert quick.estimate.step_s > 1.005 * plan.estimate.step_s
    assert told.gain is not None and told.gain >= 0


def test_stages_are_planned_again_on_all_devices() -> None:
    told = planned("stages").recost(cluster(), budget=LITTLE, cluster="2x2")
    expected = autoddl.optimize(
        transformer(layers=2), cluster="2x2", profile=cluster(), pipeline="auto", budget=LITTLE
    )
    assert told.again is not None and told.again.estimate == expected.estimate


def test_planning_again_searches_the_order_again() -> None:
    plan = autoddl.optimize(
        mlp(64, (64, 8, 512, 512, 64)), mesh="1", pipeline=3, micro_batches=8, profile=cluster(),
        engine="script", recompute="none", schedule="searched", budget=LITTLE,
    )  # fmt: skip
    memory = max(part.memory_bytes for part in plan.parts)  # too little for one stage
    told = plan.recost(cluster(), cluster="1x3", memory=memory, budget=LITTLE)
    assert told.again is not None and told.again.order_name == plan.order_name == OWN
    assert told.again.estimate.step_s <= told.now.step_s


def test_less_memory_is_told() -> None:
    need = planned("mlp").estimate.memory_bytes
    roomy, tight = (
        planned("mlp").recost(cluster(memory_bytes=need + more), budget=LITTLE, again=more < 0)
        for more in (0, -1)
    )
    assert roomy.fits and not tight.fits
    assert tight.again is not None and tight.again.estimate.memory_bytes < need
    assert "does not fit into" in str(tight) and "planning again makes it fit" in str(tight)
    none = planned("mlp").recost(cluster(memory_bytes=1000), budget=LITTLE)
    assert none.again is None and none.note.startswith("nothing fits: ")
    given = planned("mlp").recost(cluster(memory_bytes=1), memory=need, again=False)
    assert given.fits and given.limit_bytes == need


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("mlp", {"profile": "h10"}, "no such file and no bundled profile .*did you mean h100"),
        ("mlp", {"profile": None}, "recost: no profile given"),
        ("mlp", {"profile": 3}, "profile: got 3"),
        ("mlp", {"budget": -1}, "budget: got -1"),
        ("mlp", {"memory": "lots"}, "memory: got 'lots'"),
        ("mlp", {"profile": of_two_kinds(cluster())}, "devices of kinds fast, slow"),
        ("stages", {"cluster": "4x8"}, "with 32 devices; the plan has 4 that are alike"),
        (
            "stages",
            {"cluster": "2*v100x2"},
            "with 4 devices of kinds; the plan has 4 that are alike",
        ),
        ("mlp", {"cluster": "2x2"}, "the plan has one stage, whose mesh tells it; leave it out"),
        ("unlike stages", {}, "stages don't tell in which nodes their devices are; give"),
    ],
)
def test_what_is_wrong_is_one_line(name: str, arguments: dict[str, Any], expected: str) -> None:
    words = {"profile": cluster(), "again": False, **arguments}
    with pytest.raises(AutoDDLError, match=expected) as error:
        planned(name).recost(**words)
    assert str(error.value).isprintable()


def test_stages_on_several_kinds_are_refused() -> None:
    two = of_two_kinds(cluster())
    plan = autoddl.optimize(
        transformer(layers=2), cluster="1*fastx2 + 1*slowx2", profile=two, budget=LITTLE,
        pipeline=2, micro_batches=2,
    )  # fmt: skip
    with pytest.raises(AutoDDLError, match="several kinds can't be priced again yet"):
        plan.recost(two, cluster="2x2")


@pytest.mark.parametrize(
    "name", ["stages", "stages with tied weights", "micro-batches", "slow links"]
)
def test_the_whole_program_is_found_again_in_that_of_stages(name: str) -> None:
    program = PLANS[name]["program"]
    batch = batch_of(program)
    assert batch is not None and with_batch(uncut(planned(name)), batch) == program
