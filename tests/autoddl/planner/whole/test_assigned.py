"""What an assignment costs: against the models of layouts, which know no problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from autoddl.engine.oneflow.model.memory import device_memory as memory
from autoddl.engine.oneflow.model.memory.sizes import LocalSizes
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.search.assigned.assigned_layout import assigned_layout
from autoddl.search.baselines import assignments
from autoddl.search.rivals.random_sampling import random_assignment
from experiments.lib import oneflow_problems as builder
from tests.support.clusters import cluster
from tests.support.programs import mlp, transformer
from tests.support.simulated import predict


@pytest.mark.parametrize("mesh", ["4", "2x2"])
@pytest.mark.parametrize("make", [mlp, transformer])
def test_a_step_takes_what_its_layout_says(make: Callable[[], Program], mesh: str) -> None:
    problem = builder.build(make(), Mesh.parse(mesh), cluster())
    points = [*assignments(problem).values(), *(random_assignment(problem, s) for s in range(5))]
    for assignment in points:
        assigned = Assigned(problem, assignment)
        found, layout = assigned.prediction, assigned.layout
        assert replace(layout, after={}) == assigned_layout(problem, assignment)
        expected = predict(problem.mesh, problem.profile, layout)
        assert found.step_s == pytest.approx(expected.step_s, rel=1e-12)
        assert assigned.step_s == pytest.approx(found.step_s, rel=1e-12)
        assert found.cost == pytest.approx(expected.cost, rel=1e-12)


@pytest.mark.parametrize("mesh", ["4", "2x2"])
@pytest.mark.parametrize("make", [mlp, transformer])
def test_an_estimate_is_what_its_layout_costs(make: Callable[[], Program], mesh: str) -> None:
    """Priced op by op and boxing by boxing, by the model that knows layouts only."""
    problem = builder.build(make(), Mesh.parse(mesh), cluster())
    shape = problem.mesh.shape
    for assignment in assignments(problem).values():
        assigned = Assigned(problem, assignment)
        row, layout = assigned.estimate("row"), assigned.layout
        priced = predict(problem.mesh, problem.profile, layout)
        cost = problem.setting.prices.step(layout)
        assert row.compute_s == pytest.approx(sum(p.seconds for p in cost.ops.rows()))
        assert row.communication_s == pytest.approx(sum(p.seconds for p in cost.boxings.rows()))
        assert row.step_s == pytest.approx(priced.step_s)
        assert row.memory_bytes == memory.estimate(shape, layout).total


@pytest.mark.parametrize("compute_stream", [False, True])
def test_memory_is_that_of_the_layout_whatever_was_asked_before(compute_stream: bool) -> None:
    problem = builder.build(transformer(layers=1), Mesh.parse("2x2"), cluster())
    points = [*assignments(problem).values(), *(random_assignment(problem, s) for s in range(2))]
    sizes = LocalSizes(problem.program, problem.mesh.shape)
    layouts = [assigned_layout(problem, assignment) for assignment in points]
    estimate = partial(memory.estimate, (2, 2), compute_stream=compute_stream)
    alone = [estimate(layout) for layout in layouts]
    for _ in range(2):
        assert [estimate(layout, sizes=sizes) for layout in layouts] == alone


def test_launches_that_collectives_share_are_in_no_step_twice() -> None:
    """Where they do, boxings together take less than each alone; the row's step is the simulated one."""
    program = replace(transformer(layers=3), device="cuda")
    problem = builder.build(program, Mesh.parse("2x2"), cluster(device_type="cuda"))
    shared = 0
    for assignment in assignments(problem).values():
        assigned = Assigned(problem, assignment)
        shared += assigned.prediction.cost.communication_s < 0.99 * assigned.costs_s[1]
        assert assigned.estimate("row").step_s == pytest.approx(assigned.step_s)
    assert shared
