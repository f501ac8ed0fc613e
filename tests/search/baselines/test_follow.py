"""Ops that follow their producers, against the same node by node in Python."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.state import B, NdSbp, P
from autoddl.search.baselines.follow import follow, reads
from autoddl.search.network.cost_network import CostNetwork, Floats, Ints
from experiments.lib import oneflow_problems as builder
from tests.search.objects import Edge, edges_of, nodes_of
from tests.support.clusters import cluster
from tests.support.programs import transformer
from tests.support.zoo import separate_attention


def seconds(edge: Edge, node: int, state: int) -> list[Floats]:
    """Return what a node pays each time it reads a tensor in some state, by choice."""
    row = edge.table.cost[state]
    return [row[states] for reader, states in edge.readers if reader == node]


def reduced(edge: Edge, state: int) -> int:
    sbps = edge.table.states[state]
    return edge.table.index[NdSbp(B if s == P else s for s in sbps)]


def followed(
    p: CostNetwork, given: Sequence[int], allowed: Sequence[Ints], near: bool
) -> list[int]:
    point = [0] * len(p)
    for index, node in enumerate(nodes_of(p)):
        begin, factor = p.incidence
        edges = [edges_of(p)[e] for e in factor[begin[index] : begin[index + 1]]]
        edges = [e for e in edges if index in [reader for reader, _ in e.readers]]
        made = [int(e.source[point[e.producer]]) for e in edges]
        cost, mine = np.zeros(len(node.choices)), allowed[index]
        for edge, state in zip(edges, made, strict=True):
            for paid in seconds(edge, index, reduced(edge, state) if near else state):
                cost += paid
        order = (node.compute_s, cost) if near else (node.compute_s + cost,)
        best = int(mine[np.lexsort([by[mine] for by in order])[0]])
        point[index] = given[index] if given[index] >= 0 else best
    return point


@pytest.mark.parametrize("program", [transformer(layers=2), separate_attention()])
@pytest.mark.parametrize("near", [False, True])
def test_ops_follow_their_producers(program: Program, near: bool) -> None:
    p = builder.build(program, Mesh.parse("2x2"), cluster())
    rng = np.random.default_rng(0)
    found = set()
    for _ in range(8):
        counts = [len(node.choices) for node in nodes_of(p)]
        given = [
            -1 if node.kind == "op" else int(rng.integers(count))
            for node, count in zip(nodes_of(p), counts, strict=True)
        ]
        allowed = [np.sort(rng.permutation(n)[: 1 + int(rng.integers(n))]) for n in counts]
        masks = [np.isin(np.arange(n), a) for n, a in zip(counts, allowed, strict=True)]
        mask = np.concatenate(masks).astype(np.int64)
        point = follow(reads(p), np.array(given), mask, int(near)).tolist()
        assert point == followed(p, given, allowed, near)
        found.add(tuple(point))
    assert len(found) == 8
