"""`optimize` with its objectives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from autoddl import optimize
from autoddl.api import Plan, load
from autoddl.engine.oneflow.model.engine_model import ONEFLOW, SEPARATE_STREAMS
from autoddl.errors import AutoDDLError
from autoddl.plan.parts import Estimate
from autoddl.planner.assemble import make_plan
from autoddl.planner.candidate_plans import Candidate
from autoddl.planner.request import Request
from autoddl.planner.whole.assigned import Assigned
from autoddl.planner.whole.solve import ProblemSearch
from autoddl.sbp.mesh import Mesh
from autoddl.search.baselines import assignments
from autoddl.search.budget import Budget
from autoddl.search.heuristics.descent import replicated
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.objective import COMMUNICATION, OBJECTIVES, SUM, TIME
from autoddl.search.result import SearchResult
from autoddl.search.solvers.named import SOLVERS
from experiments.lib.oneflow_problems import build
from tests.support.clusters import GIB, cluster, counting
from tests.support.programs import mlp, transformer
from tests.support.zoo import ZOO

PAIRS = [
    ("mlp", "2"), ("deep mlp", "2x2x2"), ("gpt", "8"), ("separate attention", "2x4"),
    ("experts", "4x2"), ("gpt", "2x2"), ("mlp", "2x2x2"), ("experts", "8"), ("deep mlp", "4x2"),
    ("separate attention", "2x2"), ("mlp", "2x4"),
]  # fmt: skip
ROUNDING = 1 + 1e-12
SOME = Budget(evaluations=5e3)
FEW = Budget(evaluations=1e3)
WIDE = mlp(512, (512, 512, 512))


def plan(objective: str, **options: Any) -> Plan:
    options = {"mesh": "4", "budget": SOME, **options}
    return optimize(transformer(1), profile=cluster(), objective=objective, **options)


def test_communication_is_least_among_the_baselines() -> None:
    found = plan("communication")
    assert found.baselines
    least = min(row.communication_s for row in found.baselines)
    assert found.estimate.communication_s <= least * (1 + 1e-12)
    assert found.estimate.compute_s > 0  # it is reported, though it does not count
    assert found.search.lower_bound_s <= found.estimate.communication_s


def test_devices_share_products_even_where_that_takes_longer() -> None:
    """A small network is fastest on one device; all of them do the same then, and say nothing."""
    small = mlp(8, (16, 32, 8))
    slow = cluster(overhead_s=1e-9)
    alone = optimize(small, mesh="4", profile=slow, budget=SOME)
    assert alone.estimate.communication_s == 0
    shared = optimize(small, mesh="4", profile=slow, budget=SOME, objective="communication")
    assert shared.estimate.communication_s > 0
    products = [s for name, s in shared.signatures.items() if "matmul" in name]
    assert products
    assert all(any(state[0].is_split for state in s.values()) for s in products)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_plan_says_what_it_is_the_least_of(objective: str, tmp_path: Path) -> None:
    found = plan(objective, budget=FEW)
    found.save(tmp_path / "plan.json")
    assert load(tmp_path / "plan.json").search.objective == objective
    said = {"time": "a step takes", "sum": "compute + communication take",
            "communication": "communication takes"}  # fmt: skip
    assert f"{said[objective]} at least" in str(found).splitlines()[-1]


def test_the_gap_is_that_of_what_is_minimised() -> None:
    """On links of their own boxings overlap: the step is shorter than the sum, and has its own bound."""
    fast = cluster(levels=("node", "gpu"))
    large = transformer(1, batch=16, length=16, width=128)
    step, total = (
        optimize(large, mesh="2x2", profile=fast, objective=o, budget=SOME) for o in (TIME, SUM)
    )
    assert step.estimate.step_s <= total.estimate.step_s
    least = total.estimate.compute_s + total.estimate.communication_s
    assert least <= step.estimate.compute_s + step.estimate.communication_s
    for found, cost_s in ((step, step.estimate.step_s), (total, least)):
        assert found.search.gap == pytest.approx(1 - found.search.lower_bound_s / cost_s)
    assert step.search.lower_bound_s <= step.estimate.step_s < total.search.lower_bound_s


def test_other_objectives_are_refused() -> None:
    with pytest.raises(
        AutoDDLError, match="objective: got 'cost'; allowed are time, sum, communication"
    ):
        plan("cost")


def test_without_an_engine_axes_cut_in_any_order(tmp_path: Path) -> None:
    """In the mesh's order a gather has to wait for the cuts of inner axes."""
    program = mlp(128, (25088, 4096, 1000), optimizer="sgd", act="relu", bias=False)
    options: dict[str, Any] = {
        "mesh": "2x2x4", "profile": counting("node"), "objective": "communication",
        "budget": SOME,
    }  # fmt: skip
    best, fixed = (optimize(program, engine=engine, **options) for engine in (None, "oneflow"))
    assert best.search.gap == fixed.search.gap == pytest.approx(0.0, abs=1e-6)
    assert best.estimate.communication_s < fixed.estimate.communication_s * 0.98
    states = [s for signature in best.signatures.values() for s in signature.values()]
    assert any(sbp.turn for state in states for sbp in state)
    best.save(tmp_path / "plan.json")
    assert load(tmp_path / "plan.json") == best
    with pytest.raises(AutoDDLError, match=r"made for engine None, .* plan with an engine"):
        best.apply(None)


def test_other_engines_are_refused() -> None:
    with pytest.raises(
        AutoDDLError, match="engine: got 'jax'; allowed are oneflow, script or None"
    ):
        plan("time", engine="jax")


def seconds(row: Estimate, objective: str) -> float:
    if objective == COMMUNICATION:
        return row.communication_s
    return row.step_s if objective == TIME else row.compute_s + row.communication_s


@pytest.mark.parametrize(("model", "mesh"), PAIRS)
def test_plans_are_never_worse_than_any_baseline(model: str, mesh: str) -> None:
    """With what overlaps taken off; all of them fit."""
    problem = build(ZOO[model](), Mesh.parse(mesh), cluster())
    for objective in OBJECTIVES:
        request = Request(
            program=problem.program,
            profile=problem.profile,
            cluster=problem.mesh.cluster,
            engine=ONEFLOW,
            search="coordinate",
            objective=objective,
            limit_bytes=GIB,
        )
        candidate = Candidate(1, 1, problem.mesh, SEPARATE_STREAMS)
        found = ProblemSearch(problem, request, Budget(evaluations=3e3).begin()).solution(candidate)
        assert "data parallel" in {row.name for row in found.baselines}
        least = min(seconds(row, objective) for row in found.baselines)
        assert found.judged_s == seconds(found.row, objective) <= least * ROUNDING


def worse(problem: CostNetwork, _: object) -> SearchResult:
    """Search badly: every device does everything; the bound is good."""
    return replace(problem.result("worse", replicated(problem)), lower_bound_s=1e-9)


def planned_badly(monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Plan, Plan]:
    """Return the plan of such a search with that for one device, which it would be."""
    monkeypatch.setitem(cast(dict[str, object], SOLVERS), "exact", worse)
    problem = build(WIDE, Mesh.parse("4"), cluster())
    alone = make_plan(problem, problem.result("", replicated(problem)))
    return optimize(WIDE, mesh="4", profile=cluster(), **options), alone


def test_a_baseline_with_a_shorter_step_is_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    found, alone = planned_badly(monkeypatch)
    best = min(found.baselines, key=lambda row: row.step_s)
    assert found.estimate.step_s == best.step_s < alone.estimate.step_s
    assert found.search.solver == "worse"
    assert found.search.lower_bound_s == 1e-9  # the search's own, as its gap is
    assert found.search.gap == pytest.approx(1 - 1e-9 / best.step_s, rel=1e-9)


def test_a_baseline_that_fits_is_the_plan_where_searches_find_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, alone = planned_badly(monkeypatch)
    limit = min(row.memory_bytes for row in rows.baselines)
    assert limit < alone.estimate.memory_bytes
    found, _ = planned_badly(monkeypatch, memory=limit, objective="sum")
    assert found.search.solver.endswith(" for its memory")
    assert found.estimate.memory_bytes <= limit
    fitting = [row.step_s for row in rows.baselines if row.memory_bytes <= limit]
    assert found.estimate.step_s == min(fitting)


def test_the_lower_bound_is_that_of_the_given_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches that are repeated with less memory find higher ones, which bound less."""
    problem = build(WIDE, Mesh.parse("4"), cluster())
    known = assignments(problem)
    found = iter([(known["data parallel"], 1e-9), (known["ZeRO 2"], 2e-9)])

    def search(problem: CostNetwork, _: object) -> SearchResult:
        assignment, bound = next(found)
        return replace(problem.result("some", assignment), lower_bound_s=bound)

    monkeypatch.setitem(cast(dict[str, object], SOLVERS), "exact", search)
    big, small = (Assigned(problem, known[n]).memory_bytes for n in ("data parallel", "ZeRO 2"))
    plan = optimize(WIDE, mesh="4", profile=cluster(), memory=(big + small) // 2, objective="sum")
    assert plan.estimate.memory_bytes == small < big
    assert plan.search.lower_bound_s == 1e-9
    assert plan.search.searches == 2
