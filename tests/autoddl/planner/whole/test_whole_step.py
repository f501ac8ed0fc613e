"""Candidates without stages: meshes of a cluster."""

from __future__ import annotations

from pathlib import Path

import autoddl
from autoddl.api import Plan
from autoddl.planner.race import PRUNED
from autoddl.sbp.mesh import Cluster
from autoddl.search.budget import Budget
from tests.support.clusters import cluster
from tests.support.programs import mlp

PROFILE = cluster()


def step_s(plan: Plan) -> float:
    return plan.estimate.step_s


def test_the_best_mesh_is_chosen_and_all_are_told_of(tmp_path: Path) -> None:
    program = mlp(batch=8, sizes=(64, 256, 32))
    plan = autoddl.optimize(
        program, cluster=(1, 4), profile=PROFILE, budget=Budget(evaluations=8e4)
    )
    told = {row.mesh: row for row in plan.search.outcomes}
    meshes = list(Cluster.parse((1, 4)).meshes())
    assert list(told) == [m.describe() for m in meshes]
    assert {row.note for row in told.values()} <= {"", PRUNED}
    costs = {}
    for mesh in meshes:
        single = autoddl.optimize(
            program, mesh=mesh, profile=PROFILE, budget=Budget(evaluations=4e4)
        )
        costs[mesh.describe()] = step_s(single)
    assert step_s(plan) <= min(costs.values()) * (1 + 1e-9)
    assert told[plan.mesh.describe()].step_s == step_s(plan)
    plan.save(tmp_path / "plan.json")
    assert autoddl.load(tmp_path / "plan.json").search.outcomes == plan.search.outcomes


def test_the_same_seed_gives_the_same_plan() -> None:
    first, second = (
        autoddl.optimize(mlp(), cluster=(1, 4), profile=PROFILE, budget=Budget(evaluations=1e6))
        for _ in range(2)
    )
    assert (first.mesh, first.signatures) == (second.mesh, second.signatures)
    assert first.search.outcomes == second.search.outcomes
