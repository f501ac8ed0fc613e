"""Nodes and edges as columns: against the program, and against objects made one by one."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from autoddl.sbp.mesh import Mesh
from autoddl.search import builder
from autoddl.search.builder import build
from autoddl.search.columns import EdgeColumns, Edges, NodeColumns, Nodes
from autoddl.search.kept import with_kept
from autoddl.search.problem import GRADIENT, TENSOR, Problem
from tests.clusters import cluster
from tests.programs import mlp, tied, transformer
from tests.search import test_batchnorm as batchnorm
from tests.search.random_problems import graph

PROBLEMS = {
    "mlp": lambda: build(mlp(), Mesh.parse("2x2"), cluster()),
    "tied": lambda: build(tied(), Mesh.parse("2"), cluster()),
    "transformer": lambda: build(transformer(), Mesh.parse("2x2"), cluster()),
    "batchnorm": lambda: batchnorm.build("2", layers=2, allow=batchnorm.ALLOW),
    "shared batchnorm": lambda: batchnorm.build("2", layers=2, shared=True),
}


@pytest.fixture(params=PROBLEMS)
def problem(request: pytest.FixtureRequest) -> Problem:
    return PROBLEMS[request.param]()


def test_edges_are_who_makes_and_reads_each_tensor(problem: Problem) -> None:
    made: dict[str, tuple[int, str]] = {}
    read: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for index, node in enumerate(problem.nodes):
        if node.kind == "op":
            op = problem.program.op[node.name]
            made |= {tensor: (index, operand) for operand, tensor in op.outputs}
            for operand, tensor in op.inputs:
                if problem.written.get(tensor) == (op.name, operand):
                    made[tensor] = (index, operand)
                else:
                    read[tensor].append((index, operand))
        elif node.kind == "output":
            read[node.name].append((index, TENSOR))
        else:
            made[node.name] = (index, TENSOR)
    for parameter in problem.program.parameters:
        if parameter.gradient is not None:
            holder = problem.position["parameter", parameter.tensor]
            read[parameter.gradient].append((holder, GRADIENT))
    wanted = {name: [made[name], *readers] for name, readers in read.items() if name in made}
    assert [edge.tensor for edge in problem.edges] == list(wanted)
    for edge in problem.edges:
        nodes = [edge.producer, *[node for node, _ in edge.readers]]
        assert list(zip(nodes, edge.operands, strict=True)) == wanted[edge.tensor]
        tensor = problem.program.tensor[edge.tensor]
        assert edge.table.shape == tensor.shape
        arrays = [edge.source, *[states for _, states in edge.readers]]
        for node, operand, states in zip(nodes, edge.operands, arrays, strict=True):
            choices = problem.nodes[node].choices
            assert [edge.table.states[i] for i in states] == [c[operand] for c in choices]


@pytest.mark.parametrize("name", PROBLEMS)
def test_ops_that_are_alike_are_what_each_of_them_is(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = PROBLEMS[name]()
    monkeypatch.setattr(builder, "MOST_RESULTS", 0)  # every op with results is looked at alone
    alone = PROBLEMS[name]()
    for node, other in zip(together.nodes, alone.nodes, strict=True):
        assert (node.kind, node.name, node.choices) == (other.kind, other.name, other.choices)
        assert (node.compute_s == other.compute_s).all()
        assert (node.memory_bytes == other.memory_bytes).all()


@pytest.mark.parametrize("kept", [False, True])
def test_ops_and_tensors_are_those_of_the_names(problem: Problem, kept: bool) -> None:
    """Who makes a problem notes them; they are what looking names up gives."""
    found = with_kept(problem) if kept else problem
    same = replace(found)  # without notes
    assert (found.ops == same.ops).all()
    assert (found.tensors == same.tensors).all()
    place = found.program.columns.place
    ops = [place[node.name] if node.kind == "op" else -1 for node in found.nodes]
    assert found.ops.tolist() == ops


@pytest.mark.parametrize("seed", range(3))
def test_columns_of_objects_make_these_objects(seed: int) -> None:
    problem = graph(seed)
    nodes = Nodes(NodeColumns.of(problem.nodes))
    edges = Edges(EdgeColumns.of(problem.edges))
    for node, made in zip(problem.nodes, nodes, strict=True):
        assert (node.kind, node.name) == (made.kind, made.name)
        assert node.choices is made.choices
        assert node.compute_s is made.compute_s
        assert node.memory_bytes is made.memory_bytes
    for edge, wired in zip(problem.edges, edges, strict=True):
        assert (edge.tensor, edge.producer, edge.operands) == (
            wired.tensor, wired.producer, wired.operands
        )  # fmt: skip
        assert edge.table is wired.table
        assert edge.source is wired.source
        pairs = zip(edge.readers, wired.readers, strict=True)
        assert all(n == m and a is b for (n, a), (m, b) in pairs)


def test_objects_and_columns_are_one_problem(problem: Problem) -> None:
    kept = with_kept(problem)
    objects = replace(kept, nodes=tuple(kept.nodes), edges=tuple(kept.edges))
    rng = np.random.default_rng(0)
    for _ in range(5):
        point = [int(rng.integers(len(node.choices))) for node in kept.nodes]
        assert objects.cost_s(point) == kept.cost_s(point)
        assert objects.memory_bytes(point) == kept.memory_bytes(point)
    assert list(objects.touching) == list(kept.touching)
    for index, edge in enumerate(kept.edges):
        assert all(
            index in kept.touching[n] for n in (edge.producer, *[n for n, _ in edge.readers])
        )
    assert objects.position == kept.position
    assert objects.least_memory_bytes == kept.least_memory_bytes
    assert objects.lower_bound_s() == kept.lower_bound_s()


def test_an_item_is_made_once() -> None:
    problem = PROBLEMS["mlp"]()
    assert problem.nodes[-1] is problem.nodes[len(problem.nodes) - 1]
    assert problem.edges[0:2] == (problem.edges[0], problem.edges[1])
    with pytest.raises(IndexError):
        problem.nodes[len(problem.nodes)]
