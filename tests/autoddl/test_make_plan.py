"""What an assignment costs when it is asked for: against the estimate that has it all."""

from __future__ import annotations

import pickle

import pytest

from autoddl.layouts import assigned_layout
from autoddl.make_plan import Assigned, estimate
from autoddl.perfmodel import memory
from autoddl.perfmodel.timeline import predict
from autoddl.plan import Estimate, Rows
from autoddl.sbp.mesh import Mesh
from autoddl.search import builder
from autoddl.search.baselines import assignments
from autoddl.search.random import random_assignment
from tests.clusters import cluster
from tests.programs import mlp, transformer


@pytest.mark.parametrize("mesh", ["4", "2x2"])
@pytest.mark.parametrize("make", [mlp, transformer])
def test_a_step_is_never_below_its_bound(make, mesh: str) -> None:  # type: ignore[no-untyped-def]
    problem = builder.build(make(), Mesh.parse(mesh), cluster())
    points = [*assignments(problem).values(), *(random_assignment(problem, s) for s in range(3))]
    for assignment in points:
        found = Assigned(problem, assignment)
        row = estimate("row", problem, assignment)
        assert found.estimate("row") == row
        assert found.step_s == row.step_s
        assert 0 < found.least_step_s <= row.step_s


@pytest.mark.parametrize("mesh", ["4", "2x2"])
@pytest.mark.parametrize("make", [mlp, transformer])
def test_a_step_takes_what_its_layout_says(make, mesh: str) -> None:  # type: ignore[no-untyped-def]
    problem = builder.build(make(), Mesh.parse(mesh), cluster())
    points = [*assignments(problem).values(), *(random_assignment(problem, s) for s in range(5))]
    for assignment in points:
        found = Assigned(problem, assignment).prediction
        layout = assigned_layout(problem, assignment)
        expected = predict(problem.program, problem.mesh, problem.profile, layout)
        assert found.step_s == pytest.approx(expected.step_s, rel=1e-12)
        assert found.cost == pytest.approx(expected.cost, rel=1e-12)


@pytest.mark.parametrize("compute_stream", [False, True])
def test_memory_is_that_of_the_layout_whatever_was_asked_before(compute_stream: bool) -> None:
    problem = builder.build(transformer(), Mesh.parse("2x2"), cluster())
    points = [*assignments(problem).values(), *(random_assignment(problem, s) for s in range(5))]
    sizes = problem.sizes
    for layout in [assigned_layout(problem, assignment) for assignment in points] * 2:
        alone, shared = (
            memory.estimate(
                problem.program, (2, 2), layout, sizes=known, compute_stream=compute_stream
            )
            for known in (None, sizes)
        )
        assert alone == shared


def test_rows_are_made_once_and_only_when_they_are_read() -> None:
    made = []
    expected = (Estimate("a", 1.0, 2.0, 3), Estimate("b", 4.0, 5.0, 6))

    def make() -> tuple[Estimate, ...]:
        made.append(1)
        return expected

    rows = Rows(make)
    assert not made
    assert [row.name for row in rows] == ["a", "b"]
    assert (len(rows), rows[1], rows[:1]) == (2, expected[1], expected[:1])
    assert rows == expected and expected == rows and rows == Rows(lambda: expected)
    assert rows != expected[:1]
    assert (hash(rows), repr(rows)) == (hash(expected), repr(expected))
    assert pickle.loads(pickle.dumps(rows)) == expected
    assert made == [1]
