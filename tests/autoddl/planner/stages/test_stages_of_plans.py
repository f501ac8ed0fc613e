"""`optimize` with stages and micro-batches: numbers that are given, chosen, or forced by memory."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import structs

from autoddl import optimize
from autoddl.api import Plan, load
from autoddl.errors import AutoDDLError, InfeasibleError
from autoddl.planner.candidate_plans import too_large
from autoddl.planner.request import cluster_of
from autoddl.sbp.mesh import Cluster, Mesh
from autoddl.sbp.program import Program
from autoddl.search.budget import Budget
from experiments.lib.oneflow_problems import read
from tests.support.clusters import cluster
from tests.support.pipelines import pass_s
from tests.support.programs import Builder, linear, mlp, mse, transformer

ROUNDING = 1 + 1e-9


def small() -> Program:
    """Return six layers whose forward results and weights both count."""
    return mlp(64, (64,) * 7, optimizer="sgd", act="relu")


def plan(program: Program | None = None, **options: Any) -> Plan:
    options = {"budget": Budget(evaluations=1e3), "profile": cluster(), **options}
    return optimize(transformer(layers=2) if program is None else program, **options)


def check(found: Plan, program: Program, stages: int, micro_batches: int) -> None:
    """A plan with stages is whole: every op, variable and input has a stage and a state."""
    assert (len(found.parts), found.micro_batches) == (stages, micro_batches)
    assert set(found.stage_of.values()) == set(range(stages))
    assert set(found.signatures) == set(found.program.op)
    held = {n for p in program.parameters for n in (p.tensor, *p.states)}
    assert set(found.variables) == held
    assert set(found.stage_of) == {*found.signatures, *held, *program.inputs}
    assert found.devices == stages * found.mesh.size
    for item in found.inputs:
        shape = program.tensor[item.name].shape
        assert item.shape == (shape[0] // micro_batches, *shape[1:])
    assert found.fingerprint == found.program.structure
    assert found.estimate.step_s == pytest.approx(found.timeline.step_s)
    assert found.search.lower_bound_s > 0
    assert 0 <= found.search.gap < 1


@pytest.mark.parametrize(
    ("mesh", "stages", "micro_batches"), [("2", 2, 4), ("1", 4, 8), ("2x2", 2, 2), ("2", 1, 4)]
)
def test_stages_and_micro_batches_are_as_given(mesh: str, stages: int, micro_batches: int) -> None:
    program = transformer(layers=4)
    found = plan(program, mesh=mesh, pipeline=stages, micro_batches=micro_batches)
    check(found, program, stages, micro_batches)
    assert found.mesh.shape == Mesh.parse(mesh).shape


def test_stages_have_about_equal_work() -> None:
    program = mlp(256, (256,) * 17, act="relu")
    found = plan(program, mesh="1", pipeline=4, micro_batches=16)
    seconds = [pass_s(part.work) for part in found.parts if part.work is not None]
    assert max(seconds) < 1.15 * sum(seconds) / len(seconds)
    stage = found.stage_of
    products = [
        stage[op.name] for op in program.ops if op.type == "matmul" and op.phase == "forward"
    ]
    assert products == sorted(products)
    assert all(3 <= products.count(number) <= 5 for number in range(4))


def test_micro_batches_are_chosen() -> None:
    program = transformer(layers=2, batch=32, length=64, width=128)
    found = plan(program, mesh="1", pipeline=2)
    assert found.micro_batches > 1
    tried = {row.micro_batches for row in found.search.outcomes}
    assert tried == {2, 4, 8, 16}
    best = min(row.step_s for row in found.search.outcomes if row.step_s is not None)
    assert found.estimate.step_s == pytest.approx(best)


def test_auto_takes_the_best_of_all_numbers_of_stages() -> None:
    program = mlp(16, (64,) * 5, optimizer="sgd", act="relu")
    found = plan(program, cluster="1x4", pipeline="auto")
    each = [plan(program, cluster="1x4", pipeline=stages) for stages in (1, 2, 4)]
    least = min(other.estimate.step_s for other in each)
    assert found.estimate.step_s <= least * ROUNDING
    tried = {row.stages for row in found.search.outcomes}
    assert {2, 4} <= tried
    for row in found.search.outcomes:
        assert row.lower_bound_s is not None or row.note


def test_auto_keeps_one_stage_where_that_is_fastest() -> None:
    """Stages of so small a program wait for each other, and one device is enough."""
    found = plan(mlp(8, (16, 16, 16)), cluster="1x2", pipeline="auto")
    assert not found.pipelined
    assert found.devices == 2


def test_auto_takes_stages_where_links_are_slow() -> None:
    """Weights are dear to exchange, more so than what goes between two stages."""
    known = cluster()
    links = tuple(structs.replace(link, beta_s_per_byte=1e-9) for link in known.links)
    slow = structs.replace(known, links=links)
    program = mlp(2048, (512,) * 9, optimizer="sgd", act="relu")
    found = plan(program, cluster="1x2", pipeline="auto", profile=slow)
    assert found.pipelined
    assert found.baselines[0].name == "one stage"
    assert found.estimate.step_s < found.baselines[0].step_s


def test_stages_are_taken_where_nothing_else_fits() -> None:
    options: dict[str, Any] = {"cluster": "1x2"}
    roomy = plan(small(), **options)
    assert not roomy.pipelined
    lean = plan(small(), pipeline=2, micro_batches=16, **options)
    limit = lean.estimate.memory_bytes
    with pytest.raises(InfeasibleError):
        plan(small(), memory=limit, pipeline=1, micro_batches=1, **options)
    forced = plan(small(), memory=limit, **options)
    assert forced.estimate.memory_bytes <= limit
    assert forced.pipelined


def clipped(program: Program) -> Program:
    """Let updates read gradients that the engine has clipped: no op of the program makes them."""
    names = {p.gradient: f"System-Clip-{n}/y_0" for n, p in enumerate(program.parameters)}
    made = tuple(
        replace(program.tensor[old or ""], name=new, role="system") for old, new in names.items()
    )
    return replace(
        program,
        ops=tuple(
            replace(op, inputs=tuple((o, names.get(t, t)) for o, t in op.inputs))
            if op.phase == "optimizer"
            else op
            for op in program.ops
        ),
        tensors=(*program.tensors, *made),
        parameters=tuple(replace(p, gradient=names[p.gradient]) for p in program.parameters),
    )


def test_clipped_gradients_can_be_planned() -> None:
    program = clipped(small())
    check(plan(program, mesh="2", pipeline=2, micro_batches=4), program, 2, 4)


@pytest.mark.parametrize("options", [{"pipeline": 2}, {}, {"pipeline": "auto"}])
def test_where_nothing_fits_the_error_says_what_would(options: dict[str, Any]) -> None:
    program = mlp(8, (64,) * 5, optimizer="sgd", act="relu")
    where = {"mesh": "1"} if options.get("pipeline") == 2 else {"cluster": "1x2"}
    with pytest.raises(InfeasibleError) as caught:
        plan(program, memory=1000, **where, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert "no plan fits" in message
    (given,) = re.findall(r"needs ([\d,]+) B; give that", message)
    needed = int(given.replace(",", ""))
    found = plan(program, memory=needed, **where, **options)
    assert found.estimate.memory_bytes <= needed


def test_a_limit_is_kept_and_costs_time() -> None:
    options: dict[str, Any] = {"mesh": "2", "pipeline": 2, "micro_batches": 8}
    free = plan(small(), **options)
    limit = int(free.estimate.memory_bytes * 0.95)
    tight = plan(small(), memory=limit, **options)
    assert tight.estimate.memory_bytes <= limit
    assert tight.memory_limit_bytes == limit
    assert tight.estimate.step_s >= free.estimate.step_s / ROUNDING


def test_saved_and_loaded_plans_are_equal(tmp_path: Path) -> None:
    found = plan(mesh="2", pipeline=2, micro_batches=4)
    found.save(tmp_path / "plan.json")
    again = load(tmp_path / "plan.json")
    assert again == found
    assert again.timeline == found.timeline
    assert str(again) == str(found)
    assert again.to_json() == found.to_json()


def test_the_same_seed_gives_the_same_plan() -> None:
    options: dict[str, Any] = {"mesh": "2", "pipeline": 2, "micro_batches": 4, "seed": 3}
    first, second = plan(**options), plan(**options)
    assert first.parts == second.parts


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pipeline": 0}, "pipeline: got 0; allowed is 'auto' or a number"),
        ({"pipeline": -2}, "pipeline: got -2"),
        ({"pipeline": 1.5}, r"pipeline: got 1\.5"),
        ({"pipeline": True}, "pipeline: got True"),
        ({"pipeline": "2"}, "pipeline: got '2'"),
        ({"pipeline": "many"}, "pipeline: got 'many'"),
        ({"micro_batches": 0}, "micro_batches: got 0; allowed is a whole number"),
        ({"micro_batches": "auto"}, "micro_batches: got 'auto'"),
        ({"micro_batches": False}, "micro_batches: got False"),
        ({"pipeline": 2, "micro_batches": 3}, "micro-batches"),  # of a batch of 8
        ({"pipeline": 2, "micro_batches": 16}, "micro-batches"),
        ({"pipeline": 2, "search": "Megatron"}, "search: got 'Megatron' with pipeline=2"),
        ({"pipeline": 2, "objective": "communication"}, "'communication' with pipeline=2"),
    ],
)
def test_bad_input_gets_one_line(options: dict[str, Any], words: str) -> None:
    with pytest.raises(AutoDDLError, match=words) as caught:
        plan(mlp(), mesh="2", **options)
    assert "\n" not in str(caught.value)


def test_more_stages_than_devices_or_ops_are_refused_in_one_line() -> None:
    with pytest.raises(AutoDDLError, match="divisor of their number") as caught:
        plan(mlp(), cluster="1x4", pipeline=3)
    assert "\n" not in str(caught.value)
    with pytest.raises(AutoDDLError, match="stages") as caught:
        plan(mlp(), mesh="1", pipeline=100, micro_batches=4)
    assert "\n" not in str(caught.value)


def test_with_a_number_of_stages_the_mesh_is_that_of_each() -> None:
    def devices(**options: Any) -> int:
        return read(mlp(), mesh="2x4", profile=cluster(), **options).cluster.size

    assert devices(pipeline=3) == 24
    assert devices() == 8


def of_dims(count: int) -> Program:
    """Return a program of one layer that takes so many dims."""
    g = Builder()
    x = g.input((16,) * count)
    return g.program(mse(g, linear(g, x, 16), g.input((16,) * count)))


def test_meshes_with_too_many_states_are_left_out() -> None:
    program = transformer(1, batch=16, length=16)
    wide = [mesh for mesh in Cluster.parse((1, 16)).meshes() if mesh.ndim == 4]
    assert [too_large(program, mesh) for mesh in wide] == [True]
    assert not too_large(program, Mesh.parse("[gpu 2][gpu 2][gpu 4]"))
    assert not too_large(mlp(), wide[0])
    assert not too_large(of_dims(3), wide[0])
    assert too_large(of_dims(7), Mesh.parse("[gpu 2][gpu 2][gpu 4]"))


def test_clusters() -> None:
    def described(given: Any, levels: tuple[str, ...]) -> str:
        return str(cluster_of(given, levels))

    assert described("2x4", ("node", "gpu")) == "[node 2][gpu 4]"
    assert described((2, 4), ("gpu",)) == "[gpu 8]"  # the profile does not tell nodes apart
    assert described(Cluster.parse("2x4"), ("gpu",)) == "[node 2][gpu 4]"
    meshes = cluster_of((1, 4), ("node", "gpu")).meshes()
    assert [m.describe() for m in meshes] == ["[gpu 4]", "[gpu 2][gpu 2]"]
    with pytest.raises(AutoDDLError, match="cluster: got 8"):
        cluster_of(cast(Any, 8), ("gpu",))
