"""Whole plans on simulated ranks: what every device computes, in any order of the axes, is right."""

from __future__ import annotations

import numpy as np
import pytest

from autoddl.engine.oneflow.model.engine_model import ONEFLOW
from autoddl.sbp.local_program.local_lowering import lower
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.search.assigned.assigned_layout import assigned_layout
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.objective import COMMUNICATION, space
from autoddl.search.result import SearchOptions
from autoddl.search.rivals.random_sampling import random_assignment
from autoddl.search.solvers import coordinate
from experiments.lib.oneflow_problems import build
from experiments.proofs.lowered_steps import unlike, whole_values
from tests.support.clusters import cluster
from tests.support.local_programs import updatable
from tests.support.programs import mlp, transformer


def check(p: CostNetwork, assignment: tuple[int, ...]) -> None:
    local = lower(assigned_layout(p, assignment), p.mesh)
    assert unlike(local, whole_values(p.program, np.random.default_rng(1))) == []


def turned(p: CostNetwork, assignment: tuple[int, ...]) -> bool:
    """Tell whether axes cut in another order than the mesh's somewhere."""
    signatures = assigned_layout(p, assignment).signatures.values()
    return any(sbp.turn for states in signatures for state in states.values() for sbp in state)


@pytest.mark.parametrize(
    ("program", "mesh"),
    [(mlp(16, (8, 16, 8), act="relu"), "2x2x2"), (transformer(batch=4, length=4), "2x2")],
    ids=["mlp", "gpt"],
)
def test_random_plans_without_an_engine_are_right(program: Program, mesh: str) -> None:
    p = build(updatable(program), Mesh.parse(mesh), cluster(), engine=ONEFLOW.whole_space())
    points = [random_assignment(p, seed) for seed in range(6)]
    assert any(turned(p, point) for point in points)
    for point in points:
        check(p, point)


def test_the_plan_of_least_communication_is_right() -> None:
    program, every = updatable(mlp(16, (8, 16, 8), act="relu")), ONEFLOW.whole_space()
    p = build(program, Mesh.parse("2x2x2"), cluster(), engine=every)
    inner = space(p, COMMUNICATION)
    check(p, inner.invert(coordinate.search(inner.network, SearchOptions(budget=5.0)).assignment))
