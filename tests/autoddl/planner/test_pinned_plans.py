"""Plans with pins: what these cost, and what is refused."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

import autoddl
from autoddl.api import Plan
from autoddl.engine import engines
from autoddl.errors import AutoDDLError
from autoddl.perfmodel.pipeline.part_graph import part_graph
from autoddl.plan import codec
from autoddl.planner.stages.cuts import ClassStates, Cuts
from autoddl.planner.stages.part_classes import Pools
from autoddl.planner.stages.stage_links import Links
from autoddl.planner.stages.stage_pins import StagePins
from autoddl.planner.stages.staged_assignment import Staged
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.mesh import Cluster, Mesh
from autoddl.sbp.program.forward_positions import positions, stages
from autoddl.search.budget import Budget
from experiments.lib.oneflow_problems import build
from tests.support.clusters import cluster
from tests.support.programs import mlp, transformer

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


@pytest.mark.parametrize("seed", range(6))
def test_the_best_pinned_cut_is_that_of_all_cuts(seed: int) -> None:
    """By the closed form; on devices alone, where no state can be chosen."""
    rng, count = np.random.default_rng(seed), 4
    sizes = [int(2 ** rng.integers(6, 11)) for _ in range(5)]
    program = mlp(batch=64, sizes=sizes, bias=False, optimizer="sgd")
    found, number = positions(program), 2 + seed % 2
    problem, links = (
        build(program, Mesh.parse("1"), PROFILE),
        Links(PROFILE, Cluster.parse(str(number))),
    )
    assigned = Assigned(problem, (0,) * len(problem))
    names = rng.choice([op.name for op in program.ops if op.phase == "forward"], 2, replace=False)
    at = sorted((found.op[name], name) for name in names.tolist())
    wanted = sorted(rng.integers(0, number, 2).tolist())
    pins = {name: stage for (_, name), stage in zip(at, wanted, strict=True)}
    every = []
    for bounds in combinations(range(1, found.count), number - 1):
        stage_of = stages(found, bounds)
        if all(stage_of[name] == stage for name, stage in pins.items()):
            every.append(Staged.equal(assigned, found, bounds, count, links).bounded_s)
    pools, asked = Pools.of(links.cluster), {name: f"stage {stage}" for name, stage in pins.items()}
    parts = part_graph([(1,)], [number], pools.per_node, number).of(number).keeping(count)
    states, pinned = [ClassStates(assigned)], StagePins(program, asked)
    if not every:
        with pytest.raises(AutoDDLError, match="too few places to cut"):
            Cuts(states, parts, pools, links, count, found, pinned)
        return
    best = Cuts(states, parts, pools, links, count, found, pinned).best()
    assert best is not None and {name: best.stage_of[name] for name in pins} == pins
    assert best.bounded_s == pytest.approx(min(every), rel=2e-3)


LAYERS = transformer(layers=4, width=64, batch=8)
PIPELINE: dict[str, Any] = {"mesh": None, "cluster": "4", "budget": Budget(evaluations=1e3)}


def staged(pin: dict[str, str], **options: Any) -> Plan:
    return autoddl.optimize(LAYERS, profile=PROFILE, pin=pin, **{**PIPELINE, **options})


@pytest.mark.parametrize("options", [{"pipeline": 4, "micro_batches": 4}, {"pipeline": "auto"}])
def test_stages_beside_states(options: dict[str, Any]) -> None:
    pin = {"*.blocks.3": "stage 1", "*.blocks.0.fc1.weight": "stage 0", "*.blocks.*.fc2": "!S2"}
    found = staged(pin, **options)
    for op in found.program.ops:
        if op.phase == "forward" and op.module.startswith("model.blocks.3"):
            assert found.stage_of[op.name] == 1
        if op.phase == "forward" and op.module.endswith("fc2"):
            assert "S2" not in str(found.layout.made[op.outputs[0][1]]) or "matmul" in op.type
    assert found.stage_of["model.blocks.0.fc1.weight"] == 0


@pytest.mark.parametrize(
    ("pin", "options", "words"),
    [
        (
            {"*.blocks.2": "stage 2", "*.blocks.3": "stage 1"},
            {"pipeline": 4},
            "pin '*.blocks.2': stage 2 and pin '*.blocks.3': stage 1: data goes "
            "model.blocks.2-add_n-124 → model.blocks.3.ln1-reduce_sum-125, and goes to later stages only",
        ),
        (
            {"*.blocks.2": "stage 2"},
            {"pipeline": 2},
            "a pipeline of 2 stages has none of this number",
        ),
        (
            {"*.blocks.2": "stage 4"},
            {"pipeline": "auto"},
            "a pipeline of 4 stages has none of this",
        ),
        ({"*.blocks.2": "stage 1"}, {}, "stage 1 with pipeline=None, which has no stages; give"),
        (
            {"*.blocks.2": "stage 1"},
            {"pipeline": 1},
            "stage 1 with pipeline=1, which has no stages",
        ),
        (
            {"*.blocks.9": "stage 1"},
            {"pipeline": 2},
            "pin '*.blocks.9': matches no parameter, input",
        ),
        (
            {"*.token": "stage 0", "model.token-*-0": "stage 1"},
            {"pipeline": 2},
            "contradict each other, both are for 'model.token-gather-0'",
        ),
        ({"*.blocks.9": "stage x"}, {"pipeline": 2}, "pin '*.blocks.9': got 'stage x'; a stage is"),
    ],
)
def test_stages_that_can_not_be(pin: dict[str, str], options: dict[str, Any], words: str) -> None:
    with pytest.raises(AutoDDLError) as caught:
        staged(pin, **options)
    assert words in str(caught.value) and str(caught.value).isprintable()
