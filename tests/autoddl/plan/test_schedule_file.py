"""Schedules of plans: what scripts, files and the simulation say is the same, and edits are checked."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

import autoddl
from autoddl.api import Plan
from autoddl.engine import engines
from autoddl.errors import AutoDDLError
from autoddl.plan import codec
from autoddl.sbp.program import Program
from tests.autoddl.codegen.plans import generate, with_updates
from tests.support.clusters import cluster
from tests.support.programs import Builder, linear, mlp, mse, residual, transformer
from tests.support.simulated import simulated_tasks


def skipping() -> Program:
    """Return layers of which the last also reads what the first makes, past all stages between."""
    g = Builder()
    x, target = g.input((32, 16)), g.input((32, 16))
    with g.module("model"):
        made = []
        for number in range(8):
            with g.module(f"fc{number}"):
                x = linear(g, x, 16)
                made.append(x)
        with g.module("join"):
            x = residual(g, made[0], x)
    return g.program(mse(g, x, target), "adam")


PROGRAMS = {
    "skip": with_updates(skipping()),
    "mlp": with_updates(mlp(32, (16, 32, 32, 32, 16))),
    "transformer": with_updates(transformer(layers=4, batch=8)),
}
CASES = [
    (name, stages, micro_batches, schedule)
    for name in PROGRAMS
    for stages, micro_batches in ((2, 4), (4, 8))[name == "skip" :]
    for schedule in ("1f1b", "gpipe", "searched")
]


@cache
def planned(name: str, stages: int, micro_batches: int, schedule: str | None) -> Plan:
    return autoddl.optimize(
        PROGRAMS[name], cluster=f"1x{stages}", pipeline=stages, micro_batches=micro_batches,
        profile=cluster(), engine="script", schedule=schedule, budget=0.5,
    )  # fmt: skip


def order_of_script(plan: Plan) -> list[list[str]]:
    """Return the tasks of each stage, as the text of a script says them where it runs."""
    names: dict[str, Any] = {"flow": MagicMock()}
    wanted = {"ORDER", "TASKS", "STAGES", "MICRO_BATCHES", "TRANSFERS", "B", "P", "S"}
    for node in ast.parse(generate(plan)).body:
        told = [
            n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        ]
        is_order = isinstance(node, ast.FunctionDef) and node.name in (
            "one_f_one_b", "rendezvous_order", "actions",
        )  # fmt: skip
        if is_order or (isinstance(node, ast.Assign) and wanted.intersection(told)):
            exec(compile(ast.Module([node], []), "script", "exec"), names)
    return [[_text(stage, *task) for task in tasks] for stage, tasks in enumerate(names["ORDER"])]


def _text(stage: int, turn: str, n: int, source: int = -1, target: int = -1) -> str:
    if source < 0:
        return f"{turn}{n}"
    return f"{turn}{n}>{target}" if source == stage else f"{turn}{n}<{source}"


@pytest.mark.parametrize(("name", "stages", "micro_batches", "schedule"), CASES)
def test_simulation_script_and_schedule_agree(
    name: str, stages: int, micro_batches: int, schedule: str
) -> None:
    plan = planned(name, stages, micro_batches, schedule)
    rows = plan.schedule()["ranks"]
    assert [row["rank"] for row in rows] == list(range(plan.devices))
    script, simulated = order_of_script(plan), simulated_tasks(plan.timeline)
    for row in rows:
        tasks = row["tasks"].split()
        assert tasks[-1] == "AG"
        assert simulated[row["stage"]] == [task for task in tasks if not task.startswith("LA")]
        assert script[row["stage"]] == [t for t in tasks if not t.startswith(("LA", "AG"))]
        assert [t for t in tasks if t.startswith("LA")] == [
            "LA" + t[1:] for t in tasks if t.startswith("B") and t[1:].isdigit()
        ]
    if name == "skip":  # scripts send the gradient back where the tensor came from
        assert {("F", 0, 3), ("B", 3, 0)} <= {*plan.links}
        assert any(s.name.startswith("B0 ") and s.stream == "3→0" for s in plan.timeline.spans)
    for stage, part in enumerate(plan.parts):
        assert plan.timeline.in_flight[stage] <= part.in_flight


def test_a_searched_order_is_no_later() -> None:
    for name in PROGRAMS:
        steps = [
            planned(name, 4, 8, schedule).estimate.step_s for schedule in ("searched", "1f1b", None)
        ]
        assert steps[0] <= steps[1] == steps[2]


def test_a_schedule_goes_through_files(tmp_path: Path) -> None:
    plan, other = (planned("mlp", 2, 4, schedule) for schedule in ("gpipe", "1f1b"))
    again = codec.decode(codec.encode(plan), "again", engines.model)
    assert codec.encode(again) == codec.encode(plan)
    assert again.orders and not other.orders
    assert "GPipe" in str(plan) and "1F1B" in str(other)
    path = tmp_path / "schedule.json"
    path.write_text(json.dumps(other.schedule()))
    assert other.with_schedule(path).tasks == other.tasks
    again_s = plan.with_schedule(other.schedule()).estimate.step_s
    assert again_s == pytest.approx(other.estimate.step_s)
    assert plan.with_schedule(plan.schedule()) == plan
    assert other.with_schedule(other.schedule()) == other


def test_an_edit_that_never_ends_names_both_waits() -> None:
    plan = planned("mlp", 2, 4, "1f1b")
    data = plan.schedule()
    tasks = data["ranks"][0]["tasks"].split()
    a, b = tasks.index("F1>1"), tasks.index("B0<1")
    tasks[a], tasks[b] = tasks[b], tasks[a]
    data["ranks"][0]["tasks"] = " ".join(tasks)
    with pytest.raises(
        AutoDDLError, match=r"stage 0 waits at B0<1 .* stage 1 waits at F1<0 "
    ) as error:
        plan.with_schedule(data)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda d: d["ranks"].pop(), r"ranks and stages \[\(0, 0\)\], the plan has"),
        (lambda d: d["ranks"].append(d["ranks"][0]), "ranks and stages"),
        (lambda d: d.update(micro_batches=3), "3 micro-batches, the plan has 4"),
        (lambda d: d.update(version=2), "version 2, this autoddl reads 1"),
        (lambda d: d.update(ranks=7), "ranks: expected"),
        (lambda d: d["ranks"][0].update(tasks="AG"), "stage 0 lacks F0"),
        (lambda d: d["ranks"][0].update(tasks=d["ranks"][0]["tasks"].replace("LA0 ", "")),
         "stage 0 has .* each LA follows its backward pass"),
        (lambda d: d["ranks"][0].update(tasks=d["ranks"][0]["tasks"].replace("LA3 AG", "LA3")),
         "stage 0 has nothing at task 20, not AG; each LA"),
        (lambda d: d["ranks"][0].update(tasks=d["ranks"][0]["tasks"] + " LA3"),
         "stage 0 has 'LA3' at task 21, not nothing; each LA"),
        (lambda d: d["ranks"][0].update(tasks=d["ranks"][0]["tasks"].replace("F3", "F03")),
         "stage 0 has 'F03', which is no task"),
        (lambda d: d.update(order="\ud800"), "no JSON can be made of the dict .*surrogates"),
        (lambda d: d.update(messages=[d]), "no JSON can be made of the dict .*recursion"),
    ],
)  # fmt: skip
def test_one_line_for_a_wrong_schedule(change: Any, told: str) -> None:
    plan = planned("mlp", 2, 4, "1f1b")
    data = plan.schedule()
    change(data)
    with pytest.raises(AutoDDLError, match=told) as error:
        plan.with_schedule(data)
    assert "\n" not in str(error.value) and str(error.value).startswith("schedule: ")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda d: d["orders"].pop(), r"\$.orders: of 1 stages; the plan has 2, for a generated script"),
        (lambda d: d.update(engine="oneflow"), "for OneFlow, which keeps none"),
        (lambda d: d["parts"][1].update(in_flight=3), r"\$.parts\[1\].in_flight: 3, with 4 in its order"),
        (lambda d: d["orders"].reverse(), "stage 0 has no task F0<0"),
    ],
)  # fmt: skip
def test_one_line_for_a_plan_file_with_wrong_orders(change: Any, told: str) -> None:
    data = json.loads(codec.encode(planned("mlp", 2, 4, "gpipe")))
    change(data)
    with pytest.raises(AutoDDLError, match=told) as error:
        codec.decode(json.dumps(data), "a.json", engines.model)
    assert "\n" not in str(error.value)


def test_more_in_flight_than_the_memory_is_for() -> None:
    plan, keeping = (planned("mlp", 2, 4, schedule) for schedule in ("1f1b", "gpipe"))
    with pytest.raises(AutoDDLError, match=r"stage 0 has 4 micro-batches in flight, .* is for 2"):
        plan.with_schedule(keeping.schedule())


def test_engines_that_keep_no_order_refuse_one() -> None:
    program = PROGRAMS["mlp"]
    asked: dict[str, Any] = {"cluster": "1x2", "profile": cluster(), "budget": 0.5}
    with pytest.raises(AutoDDLError, match="'gpipe' with OneFlow, which runs what is ready"):
        autoddl.optimize(program, pipeline=2, schedule="gpipe", **asked)
    with pytest.raises(
        AutoDDLError, match="schedule: got 'zero'; allowed are 1f1b, gpipe, searched"
    ):
        autoddl.optimize(program, pipeline=2, schedule="zero", **asked)
    with pytest.raises(AutoDDLError, match="with pipeline=None, which has no stages"):
        autoddl.optimize(program, engine="script", schedule="gpipe", **asked)
    plan = autoddl.optimize(program, pipeline=2, micro_batches=4, **asked)
    assert plan.schedule()["runs"].startswith("in a script; nn.Graph runs what is ready")
    assert "within credits" in str(plan)
    with pytest.raises(AutoDDLError, match="which runs what is ready, within credits"):
        plan.with_schedule(plan.schedule())
    whole = autoddl.optimize(program, mesh="2", profile=cluster(), budget=0.5)
    with pytest.raises(AutoDDLError, match="the plan has one stage, which needs none"):
        whole.schedule()


def test_scripts_for_cuda_devices_have_stages_too() -> None:
    program = replace(PROGRAMS["transformer"], device="cuda")
    plan = autoddl.optimize(
        program, cluster="1x2", pipeline=2, micro_batches=4, profile=cluster(device_type="cuda"),
        engine="script", schedule="searched", budget=0.5,
    )  # fmt: skip
    assert not plan.compute_stream and plan.schedule()["micro_batches"] == 4
    assert 'DEVICE = "cuda"' in generate(plan)


def test_gpipe_that_does_not_fit_says_what_does() -> None:
    plan = planned("transformer", 2, 8, None)
    memory = max(part.memory_bytes for part in plan.parts)
    with pytest.raises(AutoDDLError, match=r"'gpipe' keeps 8 micro-batches on stage \d"):
        autoddl.optimize(
            PROGRAMS["transformer"], cluster="1x2", pipeline=2, micro_batches=8, profile=cluster(),
            engine="script", schedule="gpipe", budget=0.5, memory=memory, recompute="none",
        )  # fmt: skip
