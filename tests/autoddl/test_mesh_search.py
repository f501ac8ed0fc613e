"""All meshes of a cluster: which are searched, from what, and that the best plan is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import autoddl
from autoddl import mesh_search
from autoddl.errors import AutoDDLError, InfeasibleError
from autoddl.mesh_search import IMPOSSIBLE, PRUNED, SEARCHED, TOO_LARGE, carried, refinement
from autoddl.plan import Plan
from autoddl.sbp.mesh import Cluster, Mesh
from autoddl.search.builder import build
from autoddl.search.problem import Problem
from autoddl.search.result import Assignment
from tests.clusters import cluster
from tests.programs import mlp, transformer

PROFILE = cluster()
FLAT, SPLIT = Mesh.parse("[gpu 4]"), Mesh.parse("[gpu 2][gpu 2]")


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
    found = carried(plan, finer)
    assert found is not None
    assert finer.compute_s(found) == pytest.approx(plan.estimate.compute_s)
    assert finer.communication_s(found) <= plan.estimate.communication_s * (1 + 1e-9)
    for node, choice in zip(finer.nodes, found, strict=True):
        if node.kind == "parameter":
            (state,) = plan.variables[node.name]
            assert tuple(node.choices[choice]["tensor"]) == (state, state)
    assert carried(plan, build(program, Mesh.parse("2x2"), PROFILE)) is None


def test_the_best_mesh_is_chosen_and_all_are_told_of(tmp_path: Path) -> None:
    program = mlp(batch=8, sizes=(64, 256, 32))
    plan = autoddl.optimize(program, cluster="2x4", profile=PROFILE, budget=8.0)
    told = {row["mesh"]: row for row in plan.search["meshes"]}
    meshes = list(Cluster.parse("2x4").meshes())
    assert list(told) == [m.describe() for m in meshes]
    assert {row["outcome"] for row in told.values()} <= {SEARCHED, PRUNED}
    costs = {}
    for mesh in meshes:
        single = autoddl.optimize(program, mesh=mesh, profile=PROFILE, budget=4.0)
        costs[mesh.describe()] = step_s(single)
    assert step_s(plan) <= min(costs.values()) * (1 + 1e-9)
    assert told[plan.mesh.describe()]["step_s"] == step_s(plan)
    plan.save(tmp_path / "plan.json")
    assert autoddl.load(tmp_path / "plan.json").search["meshes"] == plan.search["meshes"]


def test_the_same_seed_gives_the_same_plan() -> None:
    first, second = (
        autoddl.optimize(mlp(), cluster=(1, 4), profile=PROFILE, budget=60.0) for _ in range(2)
    )
    assert (first.mesh, first.signatures) == (second.mesh, second.signatures)
    assert first.search["meshes"] == second.search["meshes"]


def test_meshes_with_too_many_states_are_left_out() -> None:
    program = transformer(1, batch=16, length=16)
    wide = [mesh for mesh in Cluster.parse((1, 16)).meshes() if mesh.ndim == 4]
    assert [mesh_search.too_large(program, mesh) for mesh in wide] == [True]
    assert not mesh_search.too_large(program, Mesh.parse("[gpu 2][gpu 2][gpu 4]"))
    assert not mesh_search.too_large(mlp(), wide[0])


def test_clusters() -> None:
    def described(given: Any, levels: tuple[str, ...]) -> str:
        return str(mesh_search.cluster_of(given, levels))

    assert described("2x4", ("node", "gpu")) == "[node 2][gpu 4]"
    assert described((2, 4), ("gpu",)) == "[gpu 8]"  # the profile does not tell nodes apart
    assert described(Cluster.parse("2x4"), ("gpu",)) == "[node 2][gpu 4]"
    meshes = mesh_search.cluster_of((1, 4), ("node", "gpu")).meshes()
    assert [m.describe() for m in meshes] == ["[gpu 4]", "[gpu 2][gpu 2]"]
    with pytest.raises(AutoDDLError, match="cluster: got 8"):
        mesh_search.cluster_of(cast(Any, 8), ("gpu",))


def step_s(plan: Plan) -> float:
    return plan.estimate.step_s


def work(make: Any, solve: Any) -> mesh_search.Work:
    return mesh_search.Work(make, lambda problem: problem.lower_bound_s(), solve, step_s)


class Runs:
    """Searches that are made up: bound and cost of every mesh, and which were searched."""

    def __init__(self, **figures: tuple[float, float | None]) -> None:
        self.figures = {
            f"[gpu {name[1:].replace('x', '][gpu ')}]": v for name, v in figures.items()
        }
        self.plan = autoddl.optimize(mlp(), mesh="2", profile=PROFILE, search="data parallel")
        self.order: list[str] = []
        self.budgets: list[float] = []

    def make(self, mesh: Mesh) -> Problem:
        bound, _ = self.figures[mesh.describe()]
        if bound < 0:
            raise InfeasibleError(f"nothing fits on {mesh}")
        return cast(Problem, SimpleNamespace(mesh=mesh, nodes=(), lower_bound_s=lambda: bound))

    def solve(self, problem: Problem, budget: float, starts: Any) -> Plan:
        bound, cost = self.figures[problem.mesh.describe()]
        self.order.append(str(problem.mesh))
        self.budgets.append(budget)
        if cost is None:
            raise InfeasibleError(f"nothing found on {problem.mesh}")
        estimate = replace(self.plan.estimate, compute_s=cost, communication_s=0.0, overlap_s=0.0)
        found = {"lower_bound_s": bound, "seconds": 0.0}
        return replace(self.plan, mesh=problem.mesh, estimate=estimate, search=found)

    def best(self, budget: float = 60.0) -> Plan:
        meshes = [Mesh.parse(name) for name in self.figures]
        return mesh_search.best_plan(mlp(), meshes, work(self.make, self.solve), budget=budget)


def outcomes(plan: Plan) -> list[str]:
    return [row["outcome"] for row in plan.search["meshes"]]


def test_low_bounds_go_first_and_high_ones_are_left_out() -> None:
    runs = Runs(_4=(5.0, 6.0), _2x2=(1.0, 4.0), _1x4=(2.0, 3.0), _4x1=(3.0, 3.5))
    plan = runs.best()
    assert runs.order == ["2x2", "1x4"]  # 3.0 and 5.0 can't be below 3.0
    assert str(plan.mesh) == "1x4"
    assert outcomes(plan) == [PRUNED, SEARCHED, SEARCHED, PRUNED]


@pytest.mark.parametrize(
    ("flat", "split", "best"),
    [(4.0, 3.999, "4"), (4.0, 3.9, "2x2"), (3.999, 4.0, "4"), (4.003, 4.0, "4"), (4.1, 4.0, "2x2")],
)
def test_more_axes_have_to_be_worth_it(flat: float, split: float, best: str) -> None:
    """Whichever mesh is searched first: 0.1 % is less than two calibrations differ by."""
    for bounds in ((1.0, 2.0), (2.0, 1.0)):
        runs = Runs(_4=(bounds[0], flat), _2x2=(bounds[1], split))
        assert str(runs.best().mesh) == best


def test_meshes_share_the_seconds() -> None:
    runs = Runs(_4=(1.0, 6.0), _2x2=(1.0, 6.0), _1x4=(1.0, 6.0))
    runs.best(budget=30.0)
    assert runs.budgets == pytest.approx([10.0, 15.0, 30.0], abs=1.0)


def test_meshes_without_a_plan_are_passed_over() -> None:
    runs = Runs(_4=(-1.0, None), _2x2=(1.0, None), _1x4=(1.0, 6.0))
    assert outcomes(runs.best()) == [IMPOSSIBLE, IMPOSSIBLE, SEARCHED]
    with pytest.raises(InfeasibleError, match="nothing fits on 4"):
        Runs(_4=(-1.0, None), _2x2=(1.0, None)).best()


def test_too_many_states_are_said() -> None:
    runs = Runs(_2x2x2x2x2=(1.0, 2.0), _2x16=(1.0, 3.0))
    assert outcomes(runs.best()) == [TOO_LARGE, SEARCHED]


def test_starts_come_from_coarser_meshes() -> None:
    seen: list[tuple[str, Assignment]] = []

    def solve(problem: Problem, budget: float, starts: Any) -> Plan:
        seen.extend((str(problem.mesh), a) for a in starts)
        return autoddl.optimize(program, mesh=problem.mesh, profile=PROFILE, budget=0.5)

    program = mlp()
    problems = {m: build(program, m, PROFILE) for m in (FLAT, SPLIT)}
    found = work(problems.__getitem__, solve)
    mesh_search.best_plan(program, [FLAT, SPLIT], found, budget=9.0)
    assert [mesh for mesh, _ in seen] == ["2x2"]
    assert len(seen[0][1]) == len(problems[SPLIT].nodes)
