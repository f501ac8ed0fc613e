"""Plans whose boxings are ops of the compute stream: when they are made, and how they are kept."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from autoddl import optimize
from autoddl.api import Plan, load
from autoddl.engine.model import StreamUse
from autoddl.engine.oneflow.model.collective_queue import NCCL_QUEUE
from autoddl.engine.oneflow.model.engine_model import COMPUTE_STREAM, ONEFLOW, SEPARATE_STREAMS
from autoddl.engine.oneflow.model.memory.lowering import rank_tasks
from autoddl.errors import AutoDDLError, InfeasibleError
from autoddl.perfmodel.pipeline.pipeline_step import BOXING, COMPUTE
from autoddl.planner.request import Request
from autoddl.planner.whole.assigned import Assigned
from autoddl.planner.whole.solve import HOPELESS
from autoddl.planner.whole.whole_step import OnMesh, is_settled
from autoddl.report.perfetto import timeline_of
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.search.baselines import assignments
from autoddl.search.budget import Budget
from experiments.lib.oneflow_problems import build, read
from tests.support.clusters import cluster, of_two_kinds
from tests.support.programs import mlp, transformer

CUDA = replace(transformer(1), device="cuda")
SOME = Budget(evaluations=1e3)
LARGE = transformer(layers=1, batch=64, length=64, width=256)  # worth communicating for


@cache
def plan(program: Program = CUDA, **options: Any) -> Plan:
    options = {"mesh": "2x2", "pipeline": 1, "budget": SOME, **options}
    return optimize(program, profile=cluster(), **options)


def test_streams_are_apart_where_memory_allows() -> None:
    found = plan()
    assert not found.compute_stream
    assert found.search.searches == 1


def test_a_plan_keeps_how_collectives_go_together(tmp_path: Path) -> None:
    """Alone they take longer; on the compute stream, and on CPU ranks, there is no queue."""
    asked = {"search": "data parallel", "mesh": "4", "compute_stream": False}
    alone, together = (plan(fusion=fusion, **asked) for fusion in ("16,1", "16,64"))
    assert (alone.queue, together.queue) == (replace(NCCL_QUEUE, max_ops=1), NCCL_QUEUE)
    assert plan(**asked).queue == NCCL_QUEUE
    assert together.estimate.step_s <= alone.estimate.step_s
    for kept in (alone, together):
        kept.save(tmp_path / "plan.json")
        read_back = load(tmp_path / "plan.json")
        assert read_back.queue == kept.queue
        traced = timeline_of(read_back, cluster())
        assert max(span.end_s for span in traced.spans) == pytest.approx(kept.estimate.step_s)
    assert plan(compute_stream=True, mesh="4").queue is None
    assert plan(transformer(1), **asked).queue is None


def test_less_memory_gives_no_faster_step() -> None:
    """With 70 % of the memory micro-batches have to come, whose states fit in part of what is left."""
    large, budget = replace(LARGE, device="cuda"), Budget(evaluations=4e3)
    whole = plan(large, mesh="4", pipeline=None).estimate.memory_bytes
    limits = [int(share * whole) for share in (1.0, 0.7, 0.6)]
    found = [plan(large, mesh="4", pipeline=None, budget=budget, memory=m) for m in limits]
    assert all(p.estimate.memory_bytes <= m for p, m in zip(found, limits, strict=True))
    steps = [p.estimate.step_s for p in found]
    assert steps == sorted(steps)
    assert found[1].micro_batches == 2


def test_the_compute_stream_holds_what_else_does_not_fit() -> None:
    together = plan(mesh="4", compute_stream=True)
    assert together.compute_stream
    assert together.estimate.overlap_s == 0
    limit = together.estimate.memory_bytes
    assert limit < plan(mesh="4", compute_stream=False).estimate.memory_bytes
    found = plan(mesh="4", memory=limit)
    assert found.estimate.memory_bytes <= limit
    choices = [together]
    with contextlib.suppress(InfeasibleError):
        choices.append(plan(mesh="4", memory=limit, compute_stream=False))
    least = min(choice.estimate.step_s for choice in choices)
    assert found.estimate.step_s == pytest.approx(least)
    assert found.compute_stream == (least == together.estimate.step_s)


def test_a_plan_keeps_its_kind_of_streams(tmp_path: Path) -> None:
    found = plan(compute_stream=True)
    found.save(tmp_path / "plan.json")
    assert load(tmp_path / "plan.json") == found
    assert "ops of the compute stream" in str(found)
    assert "ops of the compute stream" not in str(plan())
    data = json.loads((tmp_path / "plan.json").read_text())
    for value in (None, 1, "true"):
        (tmp_path / "bad.json").write_text(json.dumps({**data, "compute_stream": value}))
        with pytest.raises(AutoDDLError, match=r"\$\.compute_stream: expected `bool`"):
            load(tmp_path / "bad.json")


def test_other_devices_have_no_compute_stream() -> None:
    with pytest.raises(AutoDDLError, match="only CUDA devices"):
        optimize(transformer(), mesh="2x2", profile=cluster(), compute_stream=True)
    together = plan(compute_stream=True)
    on_cpu = replace(together, program=replace(together.program, device="cpu"))
    with pytest.raises(AutoDDLError, match="compute_stream=False"):
        on_cpu.apply(None)


def test_what_can_be_asked_for() -> None:
    def ways(stages: int = 1, micro_batches: int = 1, **options: Any) -> tuple[bool, ...]:
        found = read(options.pop("program", CUDA), mesh="2x2", profile=cluster(), **options)
        return tuple(way.compute_stream for way in found.ways_of(stages, micro_batches))

    assert ways() == ways(pipeline="auto") == (False, True)
    assert ways(program=transformer()) == ways(compute_stream=False) == (False,)
    assert ways(1, 4) == ways(2, 4) == ways(2, 4, compute_stream=True) == (True,)
    assert ways(2, 4, program=transformer()) == ways(2, 1) == (False,)
    assert ways(2, 4, compute_stream=False) == ways(2, 1, compute_stream=True) == ()
    for bad in ("yes", None, 1, 0.0):
        with pytest.raises(AutoDDLError, match="'auto', True and False"):
            ways(compute_stream=bad)
    for asked in ({"pipeline": 2}, {"micro_batches": 4}):
        with pytest.raises(AutoDDLError, match=r"got False .* on the compute stream; leave it out"):
            plan(compute_stream=False, **asked)
    with pytest.raises(AutoDDLError, match=r"got True with pipeline=2; .* streams of their own"):
        plan(compute_stream=True, pipeline=2, micro_batches=1)
    for one in ({"compute_stream": True}, {"pipeline": 2}):
        with pytest.raises(AutoDDLError, match="up to 2 axes"):
            plan(mesh="2x2x2", **one)
    assert not plan(replace(mlp(), device="cuda"), mesh="2x2x2").compute_stream


@pytest.mark.parametrize("where", [{"mesh": "2x2"}, {"cluster": "1*fastx4 + 1*slowx4"}])
def test_with_micro_batches_boxings_are_on_the_compute_stream(where: dict[str, str]) -> None:
    whole = cluster(overlap={"node": 1.0, "gpu": 1.0})
    profile = whole if "mesh" in where else of_two_kinds(whole)

    def streams(program: Program) -> tuple[Plan, set[str]]:
        found = optimize(
            program,
            profile=profile,
            pipeline=2,
            micro_batches=4,
            parts="equal",
            budget=SOME,
            **where,
        )
        works = [part.work for part in found.parts if part.work is not None]
        passes = [(*work.forward, *work.backward, *work.once) for work in works]
        return found, {stream for each in passes for stream, seconds in each if seconds}

    apart, both = streams(LARGE)
    found, one = streams(replace(LARGE, device="cuda"))
    assert (both, apart.compute_stream) == ({COMPUTE, BOXING}, False)
    assert (one, found.compute_stream) == ({COMPUTE}, True)
    assert found.estimate.step_s >= apart.estimate.step_s
    assert [outcome.compute_stream for outcome in found.search.outcomes] == [True]


def test_the_compute_stream_is_first_where_the_cheapest_baseline_cannot_fit() -> None:
    mesh, both = Mesh.parse("4"), (SEPARATE_STREAMS, COMPUTE_STREAM)
    problem = build(CUDA, mesh, cluster())
    held = problem.memory_bytes(min(assignments(problem).values(), key=problem.cost_s))

    def order(limit: int | None, ways: tuple[StreamUse, ...] = both) -> tuple[StreamUse, ...]:
        request = Request(
            program=CUDA,
            profile=cluster(),
            cluster=mesh.cluster,
            engine=ONEFLOW,
            limit_bytes=limit,
            ways=ways,
        )
        return tuple(OnMesh(request, mesh, 0, ways, 1.0).order)

    assert order(None) == order(held) == both
    assert order(held - 1) == both[::-1]
    assert order(1, both[:1]) == both[:1]


def test_what_is_never_given_back_is_part_of_the_memory() -> None:
    """Where it alone, or all by far, exceeds the limit there is no search on streams of their own."""
    problem = build(CUDA, Mesh.parse("2x2"), cluster())
    for assignment in assignments(problem).values():
        found = Assigned(problem, assignment)
        stays = problem.setting.memory.never_reused_bytes(found.layout)
        assert 0 < stays <= found.memory_bytes
        rank = rank_tasks(problem.mesh.shape, found.layout)
        assert stays == rank.buffers.size[~rank.buffers.reused].sum()
    layout = plan(compute_stream=True).layout
    stays = problem.setting.memory.never_reused_bytes(layout)
    most = problem.setting.memory.estimate(layout, compute_stream=False).total
    assert most > stays
    assert is_settled(problem, layout, stays - 1)
    assert is_settled(problem, layout, int(most / HOPELESS) - 1)
    assert not is_settled(problem, layout, max(stays, int(most / HOPELESS) + 1))


def test_what_comes_again_where_memory_is_short(tmp_path: Path) -> None:
    """Under a limit that a plan with everything kept exceeds; and baselines follow."""
    roomy = plan(compute_stream=True, mesh="4")
    tight = plan(compute_stream=True, mesh="4", memory=0.9 * roomy.estimate.memory_bytes)
    assert tight.estimate.memory_bytes <= 0.9 * roomy.estimate.memory_bytes
    assert tight.estimate.step_s >= roomy.estimate.step_s * (1 - 1e-9)
    assert tight.search.lower_bound_s <= tight.estimate.step_s
    by_name = {row.name: row for row in plan(compute_stream=True, mesh="4").baselines}
    limit = by_name["ZeRO 2"].memory_bytes - 1
    again = plan(compute_stream=True, mesh="4", search="ZeRO 2", memory=limit)
    assert again.estimate.memory_bytes <= limit
    assert again.estimate.step_s > by_name["ZeRO 2"].step_s
    (row,) = [row for row in again.baselines if row.name == "ZeRO 2"]
    assert row.memory_bytes == again.estimate.memory_bytes
    waiting = [item for item in again.redistributions if item.after]
    assert waiting
    again.save(tmp_path / "plan.json")
    assert load(tmp_path / "plan.json").redistributions == again.redistributions
