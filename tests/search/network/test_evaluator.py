"""Costs from arrays: against sums over variables and factors one by one."""

from __future__ import annotations

import numpy as np
import pytest

from autoddl.sbp.mesh import Mesh
from autoddl.search.heuristics.cells import block
from autoddl.search.network.cost_network import CostNetwork, as_ints
from autoddl.search.network.evaluator import block_of, factor_s, paid_of
from autoddl.search.rivals.random_sampling import random_assignment
from experiments.lib import oneflow_problems as builder
from tests.search.objects import edges_of, nodes_of
from tests.support.clusters import cluster
from tests.support.programs import mlp, transformer


@pytest.fixture(params=["mlp 4", "mlp 2x2", "transformer 2x2"])
def problem(request: pytest.FixtureRequest) -> CostNetwork:
    name, mesh = request.param.split()
    return builder.build(
        {"mlp": mlp, "transformer": transformer}[name](), Mesh.parse(mesh), cluster()
    )


@pytest.mark.parametrize("seed", range(4))
def test_costs_are_those_of_the_nodes_and_edges(problem: CostNetwork, seed: int) -> None:
    assignment = random_assignment(problem, seed)
    pairs = list(zip(nodes_of(problem), assignment, strict=True))
    compute_s = sum(node.compute_s[choice] for node, choice in pairs)
    assert problem.compute_s(assignment) == pytest.approx(compute_s, rel=1e-12)
    assert problem.memory_bytes(assignment) == sum(n.memory_bytes[c] for n, c in pairs)
    communication_s = 0.0
    for edge in edges_of(problem):
        source = edge.source[assignment[edge.producer]]
        wanted = {int(states[assignment[node]]) for node, states in edge.readers}
        communication_s += sum(edge.table.cost[source, goal] for goal in wanted)
    assert communication_s > 0
    assert problem.communication_s(assignment) == pytest.approx(communication_s, rel=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_the_first_reader_pays_for_a_state(problem: CostNetwork, seed: int) -> None:
    assignment = random_assignment(problem, seed)
    expected = []
    for edge in edges_of(problem):
        here = edge.source[assignment[edge.producer]]
        paid = {int(here)}
        for node, states in edge.readers:
            goal = int(states[assignment[node]])
            if goal not in paid:
                paid.add(goal)
                expected.append((node, edge.table.cost[here, goal]))
    paid, seconds = paid_of(problem.arrays, as_ints(assignment)).first(problem.arrays)
    nodes = problem.factors.variable[paid.end]
    assert list(zip(nodes.tolist(), seconds.tolist(), strict=True)) == expected


@pytest.mark.parametrize("seed", range(4))
def test_redistributed_are_the_edges_with_another_state(problem: CostNetwork, seed: int) -> None:
    assignment = random_assignment(problem, seed)
    moved = [
        index
        for index, edge in enumerate(edges_of(problem))
        if edge.wanted(assignment) != {edge.source[assignment[edge.producer]]}
    ]
    assert moved
    found = paid_of(problem.arrays, as_ints(assignment))
    assert np.unique(found.factor).tolist() == moved
    seconds = [edge.seconds(assignment) for edge in edges_of(problem)]
    assert factor_s(problem.arrays, as_ints(assignment)) == pytest.approx(seconds)


@pytest.mark.parametrize("seed", range(4))
def test_a_block_costs_what_the_whole_does_more(problem: CostNetwork, seed: int) -> None:
    rng = np.random.default_rng(seed)
    point = as_ints(random_assignment(problem, seed)).copy()
    before = point.copy()
    some = rng.choice(len(problem), 5, replace=False)
    columns = [rng.integers(0, problem.variables.sizes[v], 4) for v in some]
    seconds, held = block_of(problem.arrays, block(problem, some.tolist(), columns), point)
    assert (point == before).all()
    for alternative in range(4):
        point[some] = [column[alternative] for column in columns]
        cost_s, memory = problem.costs(point)
        if alternative == 0:
            first = cost_s, memory
        assert seconds[alternative] - seconds[0] == pytest.approx(cost_s - first[0], abs=1e-12)
        assert held[alternative] - held[0] == memory - first[1]
