"""Variables and factors: against the program, and ops that are alike against each alone."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest

from autoddl.sbp.mesh import Mesh
from autoddl.search.network import builder
from autoddl.search.network.cost_network import GRADIENT, TENSOR, CostNetwork
from autoddl.search.reductions.saved_tensors import SavedTensors
from autoddl.search.result import Assignment
from experiments.lib.oneflow_problems import build
from tests.search.network import test_batchnorm as batchnorm
from tests.search.objects import edges_of, nodes_of, replaced
from tests.search.random_problems import graph
from tests.support.clusters import cluster
from tests.support.programs import mlp, tied, transformer

PROBLEMS = {
    "mlp": lambda: build(mlp(), Mesh.parse("2x2"), cluster()),
    "tied": lambda: build(tied(), Mesh.parse("2"), cluster()),
    "transformer": lambda: build(transformer(), Mesh.parse("2x2"), cluster()),
    "batchnorm": lambda: batchnorm.build("2", layers=2, allow=batchnorm.ALLOW),
    "shared batchnorm": lambda: batchnorm.build("2", layers=2, shared=True),
}


@pytest.fixture(params=PROBLEMS)
def problem(request: pytest.FixtureRequest) -> CostNetwork:
    return PROBLEMS[request.param]()


def test_edges_are_who_makes_and_reads_each_tensor(problem: CostNetwork) -> None:
    made: dict[str, tuple[int, str]] = {}
    read: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for index, node in enumerate(nodes_of(problem)):
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
            holder = problem.variables.name.index(parameter.tensor)
            read[parameter.gradient].append((holder, GRADIENT))
    wanted = {name: [made[name], *readers] for name, readers in read.items() if name in made}
    assert [edge.tensor for edge in edges_of(problem)] == list(wanted)
    for edge in edges_of(problem):
        nodes = [edge.producer, *[node for node, _ in edge.readers]]
        assert list(zip(nodes, edge.operands, strict=True)) == wanted[edge.tensor]
        tensor = problem.program.tensor[edge.tensor]
        assert edge.table.shape == tensor.shape
        arrays = [edge.source, *[states for _, states in edge.readers]]
        for node, operand, states in zip(nodes, edge.operands, arrays, strict=True):
            choices = nodes_of(problem)[node].choices
            assert [edge.table.states[i] for i in states] == [c[operand] for c in choices]


@pytest.mark.parametrize("name", PROBLEMS)
def test_ops_that_are_alike_are_what_each_of_them_is(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = PROBLEMS[name]()
    monkeypatch.setattr(builder, "MOST_RESULTS", 0)  # every op with results is looked at alone
    alone = PROBLEMS[name]()
    for node, other in zip(nodes_of(together), nodes_of(alone), strict=True):
        assert (node.kind, node.name, node.choices) == (other.kind, other.name, other.choices)
        assert (node.compute_s == other.compute_s).all()
        assert (node.memory_bytes == other.memory_bytes).all()


@pytest.mark.parametrize("kept", [False, True])
def test_ops_and_tensors_are_those_of_the_names(problem: CostNetwork, kept: bool) -> None:
    """Numbers of the program are what looking names up gives."""
    found = SavedTensors.apply(problem).network if kept else problem
    place = found.program.columns.place
    ops = [place[node.name] if node.kind == "op" else -1 for node in nodes_of(found)]
    assert found.variables.op.tolist() == ops
    assert (found.factors.producer[1:] != found.factors.producer[:-1]).any()
    for edge in edges_of(found):
        maker = nodes_of(found)[edge.producer]
        if maker.kind == "op" and edge.tensor not in found.written:
            assert edge.tensor in [name for _, name in found.program.op[maker.name].outputs]


@pytest.mark.parametrize("kept", [False, True])
def test_variables_have_the_factors_that_they_are_in(problem: CostNetwork, kept: bool) -> None:
    found = SavedTensors.apply(problem).network if kept else problem
    begin, factor = found.incidence
    of = [set(factor[a:b].tolist()) for a, b in pairwise(begin.tolist())]
    wanted: list[set[int]] = [set() for _ in nodes_of(found)]
    for index, edge in enumerate(edges_of(found)):
        for node in (edge.producer, *[n for n, _ in edge.readers]):
            wanted[node].add(index)
    assert of == wanted
    assert found.least_memory_bytes == sum(int(n.memory_bytes.min()) for n in nodes_of(found))
    assert found.lower_bound_s() == pytest.approx(sum(n.compute_s.min() for n in nodes_of(found)))


@pytest.mark.parametrize("seed", range(3))
def test_objects_and_arrays_are_one_network(seed: int) -> None:
    problem = graph(seed)
    same, rng = replaced(problem), np.random.default_rng(0)
    for _ in range(5):
        point = rng.integers(0, problem.variables.sizes)
        assert same.costs(point) == problem.costs(point)


def test_assignments_are_equal_by_their_choices_and_never_change() -> None:
    one, two = Assignment.of([1, 2, 3]), Assignment.of(np.array([1, 2, 3]))
    assert one == two and hash(one) == hash(two) and one != Assignment.of([1, 2, 4])
    assert list(one) == [1, 2, 3] and len(one) == 3 and Assignment.of(one) is one
    point = np.array([0, 0])
    kept = Assignment.of(point)
    point[0] = 5
    assert list(kept) == [0, 0]
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(kept)[0] = 1
