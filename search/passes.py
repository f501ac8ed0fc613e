"""Tensors of the forward pass that the backward pass reads: the state in which they wait for it.

A tensor may wait as it was made, and then be redistributed for either pass, or as some reader wanted
it, so that the backward pass need not pay again; or as a smaller part of it. Which is best depends on
what memory is worth. So each such tensor gets a node, which reads it in the forward pass, holds it,
and is what the backward pass reads from.

Of the memory then counts what is there between the two passes, whatever else a plan does: parameters
with their optimizer's states, and the tensors that wait. What a plan takes is more than that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from autoddl.perfmodel.inplace import is_view
from autoddl.perfmodel.memory import local_bytes
from autoddl.sbp.program import Program
from autoddl.search import walks
from autoddl.search.problem import KEPT, TENSOR, Edge, Ints, Node, Problem
from autoddl.search.result import Assignment

SMALL = 1e-3  # of the largest tensor that waits; smaller ones come once for both passes

Readers = tuple[tuple[int, Ints], ...]


def with_kept(problem: Problem) -> Problem:
    """Return the problem with a node for each large tensor that waits for the backward pass."""
    return _Kept(problem).make()


def waiting_for_loss(program: Program) -> frozenset[str]:
    """Return the ops that run when the loss is there: the backward pass, as far as it waits for that.

    What does not wait runs as soon as it can, whichever pass it belongs to.
    """
    late = np.flatnonzero(walks.waiting_for_loss(program))
    return frozenset([program.ops[op].name for op in late.tolist()])


def last_before(program: Program, readers: Iterable[str]) -> str:
    """Return the last op that the first of some others waits for; "" if there is none."""
    place = program.order.number
    first = program.op[min(readers, key=place.__getitem__)]
    makers = [program.producer.get(tensor) for _, tensor in first.inputs]
    names = [op.name for op in makers if op is not None]
    return max(names, key=place.__getitem__, default="")


def as_read(problem: Problem, others: Sequence[int]) -> Assignment:
    """Return an assignment whose tensors wait as their first late reader wants them.

    `others` are the choices of all other nodes, in their order.
    """
    given = iter(others)
    found = [-1 if node.kind == KEPT else next(given) for node in problem.nodes]
    for _, second in _pairs(problem):
        reader, wanted = second.readers[0]
        goal = wanted[found[reader]]
        found[second.producer] = int(np.flatnonzero(second.source == goal)[0])
    return tuple(found)


def made_again(problem: Problem, assignment: Sequence[int]) -> Assignment:
    """Return an assignment whose tensors wait in the states in which they were made."""
    found = list(assignment)
    for first, second in _pairs(problem):
        made = first.source[found[first.producer]]
        found[second.producer] = int(np.flatnonzero(second.source == made)[0])
    return tuple(found)


def _pairs(problem: Problem) -> Iterator[tuple[Edge, Edge]]:
    """Yield the edges of each kept tensor: from its maker, and, behind that one, from its node."""
    for first, second in pairwise(problem.edges):
        if problem.nodes[second.producer].kind == KEPT:
            yield first, second


class _Kept:
    """Nodes and edges of a problem, with new ones in between; equal ones share their arrays."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.program = problem, problem.program
        late = waiting_for_loss(self.program)
        self.before = [node.kind != "op" or node.name not in late for node in problem.nodes]
        waiting = {e.tensor: e for e in problem.edges if self._parted(e)[1]}
        sizes = {name: self.program.tensor[name].size_bytes for name in waiting}
        least = SMALL * max(sizes.values(), default=0)
        self.waiting = {name: edge for name, edge in waiting.items() if sizes[name] >= least}
        self.small = frozenset(waiting) - self.waiting.keys()
        self.seen = frozenset(  # in views that wait, too: one memory
            name
            for view in self.waiting
            if view in self.program.producer and is_view(self.program.producer[view])
            for _, name in self.program.producer[view].inputs[:1]
        )
        self.known: dict[object, Any] = {}
        self.states: dict[int, Ints] = {}  # of kept tensors by choice, as indices into their tables

    def make(self) -> Problem:
        places: list[int] = []
        nodes: list[Node] = []
        by_producer: dict[int, list[Edge]] = {}
        for edge in self.waiting.values():
            by_producer.setdefault(edge.producer, []).append(edge)
        numbers: dict[str, int] = {}
        for index, node in enumerate(self.problem.nodes):
            places.append(len(nodes))
            nodes.append(self._held(node))
            for edge in by_producer.get(index, ()):
                numbers[edge.tensor] = len(nodes)
                nodes.append(self._node(edge))
        edges = tuple(self._edges(places, numbers, nodes))
        return replace(self.problem, nodes=tuple(nodes), edges=edges)

    def _parted(self, edge: Edge) -> tuple[Readers, Readers]:
        """Return the readers of a tensor by pass; those of the backward pass only if it waits."""
        nodes = self.problem.nodes
        if not self.before[edge.producer]:
            return edge.readers, ()
        sooner = tuple(r for r in edge.readers if self.before[r[0]])
        later = tuple(r for r in edge.readers if not self.before[r[0]])
        if nodes[edge.producer].kind != "op" and not (sooner and later):
            return edge.readers, ()  # it is there anyway
        return sooner, later

    def _node(self, edge: Edge) -> Node:
        tensor = self.program.tensor[edge.tensor]
        free = edge.tensor in self.seen
        key = id(edge.table), id(edge.source), tuple(id(s) for _, s in edge.readers), free
        if key not in self.known:
            arrays = (edge.source, *(states for _, states in edge.readers))
            states = np.unique(np.concatenate(arrays))
            choices = tuple({TENSOR: edge.table.states[i]} for i in states.tolist())
            sizes = [local_bytes(tensor, c[TENSOR], self.problem.mesh.shape) for c in choices]
            memory = np.array(sizes, dtype=np.int64) * (0 if free else 1)
            self.known[key] = choices, np.zeros(len(choices)), memory
            self.states[id(choices)] = states
        choices, seconds, memory = self.known[key]
        return Node(KEPT, edge.tensor, choices, seconds, memory)

    def _edges(
        self, places: Sequence[int], numbers: dict[str, int], nodes: Sequence[Node]
    ) -> Iterator[Edge]:
        for edge in self.problem.edges:
            producer = places[edge.producer]
            readers = tuple([(places[n], states) for n, states in edge.readers])
            name, table, operands = edge.tensor, edge.table, edge.operands
            if name not in numbers:
                yield Edge(name, table, producer, edge.source, readers, operands)
                continue
            node = numbers[name]
            states = self.states[id(nodes[node].choices)]
            ends = list(zip(readers, operands[1:], strict=True))
            before = [self.before[old] for old, _ in edge.readers]
            sooner = [end for end, soon in zip(ends, before, strict=True) if soon]
            later = [end for end, soon in zip(ends, before, strict=True) if not soon]
            sooner.append(((node, states), TENSOR))
            yield Edge(name, table, producer, edge.source, *_ends(operands[0], sooner))
            yield Edge(name, table, node, states, *_ends(TENSOR, later))

    def _held(self, node: Node) -> Node:
        """Return a node with those of its bytes that are there between the passes.

        What waits in a node of its own does not count here.
        """
        tensor, shape = self.program.tensor, self.problem.mesh.shape
        if node.kind == "op":
            op = self.program.op[node.name]
            parts = [(o, t) for o, t in op.outputs if t in self.small]
            parts += [(o, t) for o, t in op.inputs if self.problem.written.get(t) == (op.name, o)]
        elif node.name in self.waiting:
            parts = [(TENSOR, node.name)]
        else:
            return node
        form = tuple((o, tensor[t].shape, tensor[t].dtype) for o, t in parts)
        key = id(node.memory_bytes), id(node.choices), form
        if key not in self.known:
            sums = np.array(
                [sum(local_bytes(tensor[t], c[o], shape) for o, t in parts) for c in node.choices],
                dtype=np.int64,
            )
            self.known[key] = sums if node.kind == "op" else node.memory_bytes - sums
        return replace(node, memory_bytes=self.known[key])


def _ends(
    made: str, readers: Sequence[tuple[tuple[int, Ints], str]]
) -> tuple[Readers, tuple[str, ...]]:
    """Return the readers of an edge, and what its ends call the tensor."""
    return tuple([reader for reader, _ in readers]), (made, *[name for _, name in readers])
