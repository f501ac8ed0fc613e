"""Plans whose boxings are ops of the compute stream: when they are made, and how they are kept."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoddl import optimize
from autoddl.arguments import compute_streams
from autoddl.errors import AutoDDLError, InfeasibleError
from autoddl.make_plan import Assigned, layout_of
from autoddl.perfmodel.memory import estimate, never_reused_bytes
from autoddl.perfmodel.tasks import rank_tasks
from autoddl.plan import Plan, load
from autoddl.sbp.mesh import Mesh
from autoddl.search.baselines import assignments
from autoddl.search.builder import build
from autoddl.solving import HOPELESS, best_stream, in_order, is_settled
from tests.clusters import cluster
from tests.programs import transformer

CUDA = replace(transformer(), device="cuda")


def plan(**options: Any) -> Plan:
    options = {"mesh": "2x2", "pipeline": 1, "budget": 2.0, **options}
    return optimize(CUDA, profile=cluster(), **options)


def needs(stream: bool) -> int:
    """Return the bytes of the plan that a search of one kind of streams finds without a limit."""
    return plan(compute_stream=stream).estimate.memory_bytes


def test_streams_are_apart_where_memory_allows() -> None:
    found = plan()
    assert not found.compute_stream
    assert found.search["searches"] == 1


def test_the_compute_stream_holds_what_else_does_not_fit() -> None:
    together = plan(compute_stream=True)
    assert together.compute_stream
    assert together.estimate.overlap_s == 0
    limit = together.estimate.memory_bytes
    assert limit < needs(stream=False)
    found = plan(memory=limit)
    assert found.estimate.memory_bytes <= limit
    choices = [together]
    with contextlib.suppress(InfeasibleError):
        choices.append(plan(memory=limit, compute_stream=False))
    least = min(choice.estimate.step_s for choice in choices)
    assert found.estimate.step_s == pytest.approx(least)
    assert found.compute_stream == (least == together.estimate.step_s)


def test_the_cheapest_kind_is_taken() -> None:
    steps = {False: 3.0, True: 2.0}
    kinds = {stream: replace(plan(), compute_stream=stream) for stream in steps}

    def planned(searches: int) -> Any:
        return lambda stream, _: replace(kinds[stream], search={"searches": searches})

    def cost_s(found: Plan) -> float:
        return steps[found.compute_stream]

    def settled(found: Plan) -> bool:
        return bool(found.search["searches"] == 1)

    for order in ((False, True), (True, False)):
        assert best_stream(order, planned(2), cost_s, settled, budget=1.0).compute_stream
        first = best_stream(order, planned(1), cost_s, settled, budget=1.0)
        assert first.compute_stream == order[0]

    def fails(stream: bool, _: float) -> Plan:
        error = InfeasibleError(str(stream))
        error.needed_bytes = 2 - stream
        raise error

    with pytest.raises(InfeasibleError, match="True"):
        best_stream((False, True), fails, cost_s, settled, budget=1.0)


def test_a_plan_keeps_its_kind_of_streams(tmp_path: Path) -> None:
    found = plan(compute_stream=True)
    found.save(tmp_path / "plan.json")
    assert load(tmp_path / "plan.json") == found
    assert "ops of the compute stream" in str(found)
    assert "ops of the compute stream" not in str(plan())
    data = json.loads((tmp_path / "plan.json").read_text())
    for value in (None, 1, "true"):
        (tmp_path / "bad.json").write_text(json.dumps({**data, "compute_stream": value}))
        with pytest.raises(AutoDDLError, match="damaged"):
            load(tmp_path / "bad.json")
    del data["compute_stream"]
    (tmp_path / "old.json").write_text(json.dumps(data))
    assert not load(tmp_path / "old.json").compute_stream


def test_other_devices_have_no_compute_stream() -> None:
    with pytest.raises(AutoDDLError, match="only CUDA devices"):
        optimize(transformer(), mesh="2x2", profile=cluster(), compute_stream=True)
    on_cpu = replace(plan(compute_stream=True), device="cpu")
    with pytest.raises(AutoDDLError, match="compute_stream=False"):
        on_cpu.apply(None)


def test_what_can_be_asked_for() -> None:
    assert compute_streams("auto", "cuda") == (False, True)
    assert compute_streams("auto", "cuda", "auto") == (False, True)
    assert compute_streams("auto", "cpu") == compute_streams(False, "cuda") == (False,)
    assert (
        compute_streams("auto", "cuda", 2) == compute_streams("auto", "cuda", None, 4) == (False,)
    )
    for bad in ("yes", None, 1, 0.0):
        with pytest.raises(AutoDDLError, match="'auto', True and False"):
            compute_streams(bad, "cuda")
    with pytest.raises(AutoDDLError, match="pipeline=1"):
        plan(compute_stream=True, pipeline=2)
    with pytest.raises(AutoDDLError, match="up to 2 axes"):
        plan(compute_stream=True, mesh="2x2x2")
    assert not plan(mesh="2x2x2").compute_stream


def test_the_compute_stream_is_first_where_the_cheapest_baseline_cannot_fit() -> None:
    problem = build(CUDA, Mesh.parse("4"), cluster())
    cheapest = min(assignments(problem).values(), key=problem.cost_s)
    held = problem.memory_bytes(cheapest)
    both = (False, True)
    assert in_order(both, problem, None) == both
    assert tuple(in_order(both, problem, held)) == both
    assert tuple(in_order(both, problem, held - 1)) == (True, False)
    assert in_order((False,), problem, 1) == (False,)


def test_what_is_never_given_back_is_part_of_the_memory() -> None:
    """Where it alone, or all by far, exceeds the limit there is no search on streams of their own."""
    problem = build(CUDA, Mesh.parse("2x2"), cluster())
    for assignment in assignments(problem).values():
        found = Assigned(problem, assignment)
        stays = never_reused_bytes(CUDA, problem.mesh.shape, found.layout, problem.sizes)
        assert 0 < stays <= found.memory_bytes
        rank = rank_tasks(CUDA, problem.mesh.shape, found.layout)
        assert stays == rank.buffers.size[~rank.buffers.reused].sum()
    together = plan(compute_stream=True)
    layout = layout_of(together)
    stays = never_reused_bytes(CUDA, problem.mesh.shape, layout, problem.sizes)
    most = estimate(CUDA, problem.mesh.shape, layout, sizes=problem.sizes).total
    assert most > stays
    assert is_settled(replace(together, memory_limit_bytes=stays - 1), problem)
    assert is_settled(replace(together, memory_limit_bytes=int(most / HOPELESS) - 1), problem)
    enough = max(stays, int(most / HOPELESS) + 1)
    assert not is_settled(replace(together, memory_limit_bytes=enough), problem)


def test_what_comes_again_where_memory_is_short(tmp_path: Path) -> None:
    """Under a limit that a plan with everything kept exceeds; and baselines follow."""
    roomy = plan(compute_stream=True, mesh="4")
    tight = plan(
        compute_stream=True, mesh="4", memory=0.9 * roomy.estimate.memory_bytes, budget=5.0
    )
    assert tight.estimate.memory_bytes <= 0.9 * roomy.estimate.memory_bytes
    assert tight.estimate.step_s >= roomy.estimate.step_s * (1 - 1e-9)
    assert tight.search["lower_bound_s"] <= tight.estimate.step_s
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
