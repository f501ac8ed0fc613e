"""The problem of a step in which micro-batches are many and updates come once.

With k stages and m micro-batches a step takes at least Σ t · ((m − 1) / k + 1) + Σ o / k: t are seconds
of the ops and redistributions of one micro-batch, o of what comes once per step, and the slowest
stage takes at least the mean. So a bound on this sum bounds the step of every cut into k stages.
"""

from __future__ import annotations

from dataclasses import replace

from autoddl.perfmodel.redistribute import RedistributionTable
from autoddl.search.problem import Edge, Floats, Ints, Node, Problem


def weights(stages: int, micro_batches: int) -> tuple[float, float]:
    """Return by how much seconds per micro-batch and seconds per step count at least."""
    return (micro_batches - 1) / stages + 1, 1 / stages


def repeated(problem: Problem, stages: int, micro_batches: int) -> Problem:
    """Return the problem of one micro-batch with the prices of a step; nodes that share arrays do still.

    Of a tensor that is read both in each micro-batch and once per step, only the former counts.
    Memory counts forward results for the micro-batches that are in flight in the mean stage, and
    gradients twice, as there is a sum besides each: what all stages of a device each hold together.
    """
    return _Maker(problem, stages, micro_batches).make()


class _Maker:
    def __init__(self, problem: Problem, stages: int, micro_batches: int) -> None:
        self.problem = problem
        self.micro, self.once = weights(stages, micro_batches)
        held = [min(micro_batches, stages - stage) for stage in range(stages)]
        self.in_flight = sum(held) / stages
        self.sums = 2 if micro_batches > 1 else 1
        self.prices: dict[tuple[int, float], Floats] = {}
        self.bytes: dict[tuple[int, float], Ints] = {}
        self.tables: dict[tuple[int, float], RedistributionTable] = {}

    def make(self) -> Problem:
        nodes = tuple(self._node(node) for node in self.problem.nodes)
        edges = tuple(self._edge(edge) for edge in self.problem.edges)
        return replace(self.problem, nodes=nodes, edges=edges)

    def _node(self, node: Node) -> Node:
        weight, held = self.once, 1.0
        if node.kind == "op":
            forward = self.problem.program.op[node.name].phase == "forward"
            weight, held = self.micro, self.in_flight if forward else self.sums
        key = id(node.compute_s), weight
        if key not in self.prices:
            self.prices[key] = node.compute_s * weight
        size = id(node.memory_bytes), held
        if size not in self.bytes:
            self.bytes[size] = (node.memory_bytes * held).astype(node.memory_bytes.dtype)
        return replace(node, compute_s=self.prices[key], memory_bytes=self.bytes[size])

    def _edge(self, edge: Edge) -> Edge:
        nodes = self.problem.nodes
        made, *names = edge.operands
        ends = [
            (reader, name)
            for reader, name in zip(edge.readers, names, strict=True)
            if nodes[reader[0]].kind not in ("parameter", "output")
        ]
        weight = self.micro if ends else self.once
        key = id(edge.table), weight
        if key not in self.tables:
            self.tables[key] = replace(edge.table, cost=edge.table.cost * weight)
        readers = tuple([reader for reader, _ in ends]) or edge.readers
        operands = (made, *[name for _, name in ends]) if ends else edge.operands
        return replace(edge, table=self.tables[key], readers=readers, operands=operands)
