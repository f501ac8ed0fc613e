"""Costs from flat arrays: against sums over nodes and edges one by one."""

from __future__ import annotations

import pytest

from autoddl.sbp.mesh import Mesh
from autoddl.search import builder
from autoddl.search.problem import Problem
from autoddl.search.random import random_assignment
from tests.clusters import cluster
from tests.programs import mlp, transformer


@pytest.fixture(params=["mlp 4", "mlp 2x2", "transformer 2x2"])
def problem(request: pytest.FixtureRequest) -> Problem:
    name, mesh = request.param.split()
    return builder.build(
        {"mlp": mlp, "transformer": transformer}[name](), Mesh.parse(mesh), cluster()
    )


@pytest.mark.parametrize("seed", range(4))
def test_costs_are_those_of_the_nodes_and_edges(problem: Problem, seed: int) -> None:
    assignment = random_assignment(problem, seed)
    pairs = list(zip(problem.nodes, assignment, strict=True))
    compute_s = sum(node.compute_s[choice] for node, choice in pairs)
    assert problem.compute_s(assignment) == pytest.approx(compute_s, rel=1e-12)
    assert problem.memory_bytes(assignment) == sum(n.memory_bytes[c] for n, c in pairs)
    communication_s = 0.0
    for edge in problem.edges:
        source = edge.source[assignment[edge.producer]]
        wanted = {int(states[assignment[node]]) for node, states in edge.readers}
        communication_s += sum(edge.table.cost[source, goal] for goal in wanted)
    assert communication_s > 0
    assert problem.communication_s(assignment) == pytest.approx(communication_s, rel=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_the_first_reader_pays_for_a_state(problem: Problem, seed: int) -> None:
    assignment = random_assignment(problem, seed)
    expected = []
    for edge in problem.edges:
        here = edge.source[assignment[edge.producer]]
        paid = {int(here)}
        for node, states in edge.readers:
            goal = int(states[assignment[node]])
            if goal not in paid:
                paid.add(goal)
                expected.append((node, edge.table.cost[here, goal]))
    nodes, seconds = problem.flat.payments(assignment)
    assert list(zip(nodes.tolist(), seconds.tolist(), strict=True)) == expected


@pytest.mark.parametrize("seed", range(4))
def test_redistributed_are_the_edges_with_another_state(problem: Problem, seed: int) -> None:
    assignment = random_assignment(problem, seed)
    moved = [
        index
        for index, edge in enumerate(problem.edges)
        if edge.wanted(assignment) != {edge.source[assignment[edge.producer]]}
    ]
    assert moved
    assert problem.redistributed(assignment) == moved
