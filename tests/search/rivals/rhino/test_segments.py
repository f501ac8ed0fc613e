"""Rhino's O2: exact where all goes through critical nodes, and what it says where there are none."""

from __future__ import annotations

import numpy as np
import pytest

from autoddl.errors import InfeasibleError
from autoddl.sbp.mesh import Mesh
from autoddl.search.incumbent import Incumbent
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.result import SearchOptions
from autoddl.search.rivals.rhino import segments
from autoddl.search.rivals.rhino.cones import Cones
from autoddl.search.rivals.rhino.critical import critical
from autoddl.search.solvers import exhaustive, ilp
from experiments.hap.share_toys import toy
from experiments.lib import oneflow_problems as builder
from tests.search.random_problems import graph
from tests.support.clusters import cluster
from tests.support.programs import mlp


def forward(seed: int) -> CostNetwork:
    """A random forward pass, of which nothing goes past a matrix product."""
    one = toy(seed)
    return one.problem(one.even)


def test_without_tensors_past_critical_nodes_it_is_exact() -> None:
    parallel = 0
    for seed in range(8):
        problem = forward(seed)
        parts = segments.segments(Cones.apply(problem))
        assert [len(part.variables) for part in parts] == [*[1] * (len(problem.program.ops) - 1), 2]
        found, best = segments.search(problem), ilp.search(problem)
        assert found.cost_s == pytest.approx(best.cost_s)
        assert found.cost_s == pytest.approx(problem.cost_s(found.assignment))
        parallel += found.cost_s < problem.cost_s([0] * len(problem))
    assert parallel > 0  # else all would be whole everywhere, and easy


def test_every_node_is_in_one_segment_which_its_critical_node_ends() -> None:
    problem = builder.build(mlp(64, (8, 16, 8, 4)), Mesh.parse("2"), cluster())
    cones = Cones.apply(problem)
    found = segments.segments(cones)
    every = np.concatenate([segment.variables for segment in found])
    assert sorted(every.tolist()) == list(range(len(cones.network)))
    ends = [cones.network.variables.op[s.pivot] for s in found if s.pivot is not None]
    assert ends == critical(problem.program).tolist()
    for segment in found:
        assert segment.pivot is None or segment.pivot in segment.variables.tolist()


def test_what_a_way_costs_so_far_is_what_its_choices_cost_in_the_end() -> None:
    problem = builder.build(mlp(64, (8, 16, 8)), Mesh.parse("2"), cluster())
    cones = Cones.apply(problem)
    run = Incumbent(problem, SearchOptions())
    found = segments.Stitching(cones.network, run).cheapest(segments.segments(cones))
    assert found is not None
    assert found.cost_s == pytest.approx(cones.network.cost_s(found.choices))


@pytest.mark.parametrize("batch", [8, 4096])
def test_a_step_costs_what_is_said_and_not_less_than_the_best(batch: int) -> None:
    program = mlp(batch, (64, 256, 16), optimizer="sgd", act="", bias=False)
    problem = builder.build(program, Mesh.parse("2"), cluster())
    found, best = segments.search(problem), ilp.search(problem)
    assert best.cost_s * (1 - 1e-9) <= found.cost_s < 1.5 * best.cost_s
    assert found.cost_s == pytest.approx(problem.cost_s(found.assignment))


def test_without_products_it_says_so_and_is_o3() -> None:
    problem = graph(3)
    with pytest.warns(UserWarning, match="'O2': the program has no matrix product or convolution"):
        found = segments.search(problem)
    assert found.solver == "O2"
    assert found.cost_s == pytest.approx(exhaustive.search(problem).cost_s)


def test_memory_that_it_does_not_know_is_told() -> None:
    problem = builder.build(mlp(8, (64, 256)), Mesh.parse("2"), cluster())
    held = segments.search(problem).memory_bytes
    with pytest.raises(InfeasibleError, match=r"'O2', which does not know of memory.* 1 B more"):
        segments.search(problem, SearchOptions(memory_bytes=held - 1))
