"""The cost of a finished plan is that of its assignment in the problem it came from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoddl.errors import AutoDDLError
from autoddl.layouts import assigned_layout
from autoddl.make_plan import layout_of, make_plan
from autoddl.perfmodel.moves import Moving
from autoddl.perfmodel.step import Price, StepCost, step_cost
from autoddl.perfmodel.tasks import Layout
from autoddl.plan import Plan, Redistribution
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.state import NdSbp
from autoddl.search import builder
from autoddl.search.kept import with_kept
from autoddl.search.random import random_assignment
from tests.clusters import cluster
from tests.programs import mlp, transformer

PROFILE = cluster()


def cost(plan: Plan, program: Program) -> StepCost:
    return step_cost(program, plan.mesh, PROFILE, layout_of(plan))


@pytest.mark.parametrize("mesh", ["4", "2x2", "2x2x2"])
@pytest.mark.parametrize("make", [mlp, transformer])
def test_a_plan_costs_what_its_assignment_costs(make, mesh: str) -> None:  # type: ignore[no-untyped-def]
    problem = builder.build(make(), Mesh.parse(mesh), PROFILE)
    for seed in range(5):
        assignment = random_assignment(problem, seed)
        found = cost(make_plan(problem, problem.result("random", assignment)), problem.program)
        assert found.compute_s == pytest.approx(problem.compute_s(assignment), rel=1e-9)
        assert found.communication_s == pytest.approx(problem.communication_s(assignment), rel=1e-9)
        assert found.step_s == pytest.approx(problem.cost_s(assignment), rel=1e-9)


def test_a_plan_of_another_program_is_refused() -> None:
    problem = builder.build(mlp(), Mesh.parse("4"), PROFILE)
    plan = make_plan(problem, problem.result("random", random_assignment(problem, 0)))
    with pytest.raises(AutoDDLError, match="has no signature"):
        cost(plan, transformer())


def test_a_step_that_no_boxing_makes_is_refused() -> None:
    program, mesh = mlp(), Mesh.parse("2x2")
    problem = builder.build(program, mesh, PROFILE)
    plan = make_plan(problem, problem.result("random", (0,) * len(problem.nodes)))
    name = program.parameters[0].tensor
    with pytest.raises(AutoDDLError, match="no boxing leads from"):
        layout = Layout(
            plan.signatures,
            {**plan.variables, name: NdSbp.parse("S0,B")},
            {item.name: item.state for item in plan.inputs},
            (Redistribution(name, (NdSbp.parse("B,S0"),), ()),),
        )
        step_cost(program, mesh, PROFILE, layout)


def test_errors_of_one_source_add_up_and_those_of_two_do_not() -> None:
    ops = (
        Price(3.0, "matmul", 0.1),
        Price(1.0, "matmul", 0.1),
        Price(1.0, "gelu", 0.3),
    )
    boxings = (Price(5.0, "all_reduce gpu 2", 0.24),)
    assert StepCost(ops, boxings).uncertainty_s == pytest.approx((0.4**2 + 0.3**2 + 1.2**2) ** 0.5)


@pytest.mark.parametrize("mesh", ["4", "2x2"])
@pytest.mark.parametrize("make", [mlp, transformer])
def test_redistributions_cost_the_same_as_columns_and_one_by_one(make, mesh: str) -> None:  # type: ignore[no-untyped-def]
    problem = with_kept(builder.build(make(), Mesh.parse(mesh), PROFILE))
    prices = problem.prices
    for seed in range(5):
        columns = assigned_layout(problem, random_assignment(problem, seed))
        assert isinstance(columns.redistributions, Moving)
        one_by_one = replace(columns, redistributions=tuple(columns.redistributions))
        assert prices.boxings(columns) == prices.boxings(one_by_one)
        assert len(prices.boxings(columns)) == sum(len(r.path) for r in one_by_one.redistributions)
