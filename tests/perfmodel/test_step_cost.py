"""The cost of a finished plan is that of its assignment in the problem it came from."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace

from autoddl.api import Plan
from autoddl.errors import AutoDDLError
from autoddl.perfmodel.boxing_prices import Way
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.step_cost import Price, Priced, StepCost, StepPrices, Totals
from autoddl.planner.assemble import make_plan
from autoddl.sbp.boxing import ALL_REDUCE
from autoddl.sbp.layout import Layout, Redistribution
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.state import NdSbp
from autoddl.search.assigned.assigned_layout import assigned_layout
from autoddl.search.reductions.saved_tensors import SavedTensors
from autoddl.search.rivals.random_sampling import random_assignment
from experiments.lib import oneflow_problems as builder
from tests.support.clusters import cluster
from tests.support.programs import mlp, transformer

PROFILE = cluster()


def cost(plan: Plan) -> Totals:
    return StepPrices(plan.program, plan.mesh, PROFILE).step(plan.layout).totals


@pytest.mark.parametrize("make, mesh", [(mlp, "2x2x2"), (transformer, "4"), (transformer, "2x2")])
def test_a_plan_costs_what_its_assignment_costs(make: Callable[[], Program], mesh: str) -> None:
    problem = builder.build(make(), Mesh.parse(mesh), PROFILE)
    for seed in range(3):
        assignment = random_assignment(problem, seed)
        found = cost(make_plan(problem, problem.result("random", assignment)))
        assert found.compute_s == pytest.approx(problem.compute_s(assignment), rel=1e-9)
        assert found.communication_s == pytest.approx(problem.communication_s(assignment), rel=1e-9)
        assert found.step_s == pytest.approx(problem.cost_s(assignment), rel=1e-9)


def test_a_plan_of_another_program_is_refused() -> None:
    problem = builder.build(mlp(), Mesh.parse("4"), PROFILE)
    plan = make_plan(problem, problem.result("random", random_assignment(problem, 0)))
    held = plan.variables, plan.layout.inputs
    with pytest.raises(AutoDDLError, match="has no signature"):
        other = Layout.of(transformer(), plan.signatures, *held)
        StepPrices(other.program, plan.mesh, PROFILE).step(other)


def test_a_step_that_no_boxing_makes_is_refused() -> None:
    program, mesh = mlp(), Mesh.parse("2x2")
    problem = builder.build(program, mesh, PROFILE)
    plan = make_plan(problem, problem.result("random", (0,) * len(problem)))
    name = program.parameters[0].tensor
    with pytest.raises(AutoDDLError, match="no boxing leads from"):
        layout = Layout.of(
            program,
            plan.signatures,
            {**plan.variables, name: NdSbp.parse("S0,B")},
            {item.name: item.state for item in plan.inputs},
            (Redistribution(name, (NdSbp.parse("B,S0"),), ()),),
        )
        problem.setting.prices.step(layout)


def test_errors_of_one_source_add_up_and_those_of_two_do_not() -> None:
    ops = (Price(3.0, "matmul", 0.1), Price(1.0, "matmul", 0.1), Price(1.0, "gelu", 0.3))
    boxings = (Price(5.0, "all_reduce gpu 2", 0.24),)
    found = StepCost(*(Priced(prices, np.arange(len(prices))) for prices in (ops, boxings))).totals
    assert found.uncertainty_s == pytest.approx((0.4**2 + 0.3**2 + 1.2**2) ** 0.5)
    assert (found.compute_s, found.communication_s, found.step_s) == (5.0, 5.0, 10.0)


@pytest.mark.parametrize("mesh", ["4", "2x2"])
@pytest.mark.parametrize("make", [mlp, transformer])
def test_redistributions_cost_the_same_as_columns_and_one_by_one(
    make: Callable[[], Program], mesh: str
) -> None:
    problem = SavedTensors.apply(builder.build(make(), Mesh.parse(mesh), PROFILE)).network
    prices = problem.setting.prices
    for seed in range(5):
        columns = assigned_layout(problem, random_assignment(problem, seed))
        one_by_one = columns.with_redistributions(columns.redistributions)
        found = prices.step(columns).boxings.rows()
        assert found == prices.step(one_by_one).boxings.rows()
        assert len(found) == sum(len(r.path) for r in one_by_one.redistributions)


def test_what_hides_of_a_boxing_costs_ops_something() -> None:
    price = Price(10e-3, "", 0.0, way=Way(ALL_REDUCE, (0,), (64,)))

    def hidden(price: Price, profile: Profile) -> float:
        return StepPrices(mlp(), Mesh.parse("2x2"), profile).hidden(price)

    known = replace(PROFILE, overlap={"node": 0.75})
    assert hidden(price, known) == pytest.approx(0.75)
    slow = replace(known, interference={"node": 0.5})
    assert hidden(price, slow) == pytest.approx(0.5)
    held = replace(slow, overhead={"node": 1e-3})  # by each of two messages
    assert hidden(price, held) == pytest.approx(0.4)
    assert hidden(Price(1e-3, "", 0.0), known) == 0.0
