"""Problems with so few assignments that all of them can be looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from autoddl.sbp.mesh import Mesh
from autoddl.search import builder
from autoddl.search.problem import Edge, Node, Problem
from tests.clusters import cluster
from tests.programs import mlp


def one_layer(batch: int = 64, features: int = 64, out: int = 32, mesh: str = "2") -> Problem:
    """A linear layer, its loss, backward and update: fourteen nodes."""
    program = mlp(batch, (features, out), optimizer="sgd", act="", bias=False)
    return builder.build(program, Mesh.parse(mesh), cluster())


def restricted(problem: Problem, kept: Mapping[int, int]) -> Problem:
    """The same problem with the first `kept[node]` choices of some nodes, one of each other node."""
    counts = [kept.get(i, 1) for i in range(len(problem.nodes))]
    nodes = tuple(_first(node, n) for node, n in zip(problem.nodes, counts, strict=True))

    def cut(edge: Edge) -> Edge:
        readers = tuple((i, states[: counts[i]]) for i, states in edge.readers)
        return replace(edge, source=edge.source[: counts[edge.producer]], readers=readers)

    return replace(problem, nodes=nodes, edges=tuple(cut(edge) for edge in problem.edges))


def _first(node: Node, count: int) -> Node:
    assert count <= len(node.choices)
    return replace(
        node,
        choices=node.choices[:count],
        compute_s=node.compute_s[:count],
        memory_bytes=np.asarray(node.memory_bytes[:count]),
    )
