"""Candidates without stages: meshes of a cluster, what they begin with, streams that are not tried."""

from __future__ import annotations

from pathlib import Path

import pytest

import autoddl
from autoddl.api import Plan
from autoddl.planner.race import PRUNED
from autoddl.planner.whole_step import carried, refinement
from autoddl.sbp.mesh import Cluster, Mesh
from autoddl.search.network.builder import build
from tests.search.objects import nodes_of
from tests.support.clusters import cluster
from tests.support.programs import mlp, transformer

PROFILE = cluster()
FLAT, SPLIT = Mesh.parse("[gpu 4]"), Mesh.parse("[gpu 2][gpu 2]")


def step_s(plan: Plan) -> float:
    return plan.estimate.step_s


@pytest.mark.parametrize(
    ("coarse", "fine", "counts"),
    [
        ("[gpu 8]", "[gpu 8]", (1,)),
        ("[gpu 8]", "[gpu 2][gpu 4]", (2,)),
        ("[gpu 4][gpu 2]", "[gpu 2][gpu 2][gpu 2]", (2, 1)),
        ("[node 4][gpu 2]", "[node 2][node 2][gpu 2]", (2, 1)),
        ("[gpu 2][gpu 4]", "[gpu 4][gpu 2]", None),
        ("[gpu 2][gpu 2]", "[gpu 4]", None),
        ("[gpu 4]", "[node 2][gpu 2]", None),
        ("[gpu 4]", "[gpu 2][gpu 2][gpu 2]", None),
    ],
)
def test_refinements(coarse: str, fine: str, counts: tuple[int, ...] | None) -> None:
    assert refinement(Mesh.parse(coarse), Mesh.parse(fine)) == counts


@pytest.mark.parametrize("search", ["coordinate", "Megatron", "ZeRO 2"])
def test_a_finer_mesh_can_do_the_same_no_dearer(search: str) -> None:
    program = transformer(1)
    plan = autoddl.optimize(program, mesh=FLAT, profile=PROFILE, search=search, budget=1.0)
    finer = build(program, SPLIT, PROFILE)
    found = carried(plan.mesh, plan.layout, finer)
    assert found is not None
    assert finer.compute_s(found) == pytest.approx(plan.estimate.compute_s)
    assert finer.communication_s(found) <= plan.estimate.communication_s * (1 + 1e-9)
    for node, choice in zip(nodes_of(finer), found, strict=True):
        if node.kind == "parameter":
            (state,) = plan.variables[node.name]
            assert tuple(node.choices[choice]["tensor"]) == (state, state)
    other = build(program, Mesh.parse("2x2"), PROFILE)
    assert carried(plan.mesh, plan.layout, other) is None


def test_the_best_mesh_is_chosen_and_all_are_told_of(tmp_path: Path) -> None:
    program = mlp(batch=8, sizes=(64, 256, 32))
    plan = autoddl.optimize(program, cluster="2x4", profile=PROFILE, budget=8.0)
    told = {row.mesh: row for row in plan.search.outcomes}
    meshes = list(Cluster.parse("2x4").meshes())
    assert list(told) == [m.describe() for m in meshes]
    assert {row.note for row in told.values()} <= {"", PRUNED}
    costs = {}
    for mesh in meshes:
        single = autoddl.optimize(program, mesh=mesh, profile=PROFILE, budget=4.0)
        costs[mesh.describe()] = step_s(single)
    assert step_s(plan) <= min(costs.values()) * (1 + 1e-9)
    assert told[plan.mesh.describe()].step_s == step_s(plan)
    plan.save(tmp_path / "plan.json")
    assert autoddl.load(tmp_path / "plan.json").search.outcomes == plan.search.outcomes


def test_the_same_seed_gives_the_same_plan() -> None:
    first, second = (
        autoddl.optimize(mlp(), cluster=(1, 4), profile=PROFILE, budget=60.0) for _ in range(2)
    )
    assert (first.mesh, first.signatures) == (second.mesh, second.signatures)
    assert first.search.outcomes == second.search.outcomes
