"""Exact minimum over restricted choices: variables are eliminated one by one (min-sum products).

A tensor is one factor over its producer and all its readers, so that what readers share is charged
once. Nodes with one choice left drop out; next goes the node whose product of factors is smallest.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoddl.search.network.cost_network import CostNetwork, Floats, Ints
from tests.search.objects import Edge, edges_of, nodes_of

MOST_ENTRIES = 1 << 23  # of one product: 64 MB


class TooWide(Exception):
    """A product would have too many entries."""


@dataclass(frozen=True, eq=False)
class _Factor:
    """A function of some nodes' choices: one dimension per node, in their order."""

    nodes: tuple[int, ...]
    values: Floats

    def over(self, nodes: tuple[int, ...]) -> Floats:
        """Return the values with dimensions for all of `nodes`."""
        order = sorted(range(len(self.nodes)), key=lambda i: nodes.index(self.nodes[i]))
        mine = set(self.nodes)
        sizes = iter(self.values.shape[i] for i in order)
        return self.values.transpose(order).reshape(
            [next(sizes) if n in mine else 1 for n in nodes]
        )


def minimum(
    problem: CostNetwork,
    domains: Sequence[Ints],
    *,
    byte_s: float = 0.0,
    most_entries: int = MOST_ENTRIES,
) -> list[int]:
    """Return the cheapest assignment in which every node has one of its `domains`.

    `byte_s` adds seconds for each byte of memory.

    Raises:
        TooWide: a product of factors would have more than `most_entries` entries.
    """
    return _Elimination(problem, domains, byte_s, most_entries).run()


class _Elimination:
    """The factors that are left, and for each node which of them touch it."""

    def __init__(
        self, problem: CostNetwork, domains: Sequence[Ints], byte_s: float, most: int
    ) -> None:
        self.domains, self.most = domains, most
        self.sizes = {i: len(domain) for i, domain in enumerate(domains) if len(domain) > 1}
        self.factors: list[_Factor] = []
        self.touching: dict[int, set[int]] = {node: set() for node in self.sizes}
        known: dict[object, Floats] = {}
        for edge in edges_of(problem):
            nodes = dict.fromkeys((edge.producer, *(n for n, _ in edge.readers)))
            scope = tuple(n for n in nodes if n in self.sizes)
            if scope:
                self._check(scope)
                self._add(_Factor(scope, _table(edge, tuple(nodes), scope, domains, known)))
        for node in self.sizes:
            here, left = nodes_of(problem)[node], domains[node]
            self._add(_Factor((node,), here.compute_s[left] + byte_s * here.memory_bytes[left]))

    def run(self) -> list[int]:
        point = [int(domain[0]) for domain in self.domains]
        position = [0] * len(self.domains)
        for node, others, best in reversed(self._eliminated()):
            position[node] = int(best[tuple(position[n] for n in others)])
            point[node] = int(self.domains[node][position[node]])
        return point

    def _eliminated(self) -> list[tuple[int, tuple[int, ...], Ints]]:
        """Return each node in turn with those its best choice depends on, and that choice."""
        queue = [(self._product(node), node) for node in self.sizes]
        heapq.heapify(queue)
        found = []
        while queue:
            entries, node = heapq.heappop(queue)
            if node not in self.touching:
                continue
            now = self._product(node)
            if now > entries:
                heapq.heappush(queue, (now, node))
                continue
            others = self._others(node)
            self._check((*others, node))
            values = self._collect(node, (*others, node))
            found.append((node, others, values.argmin(axis=-1)))
            if others:
                self._add(_Factor(others, values.min(axis=-1)))
            for other in others:  # entries that are out of date are put right when they come up
                heapq.heappush(queue, (self._product(other), other))
        return found

    def _others(self, node: int) -> tuple[int, ...]:
        scope = {n for number in self.touching[node] for n in self.factors[number].nodes}
        return tuple(sorted(scope - {node}))

    def _product(self, node: int) -> int:
        return math.prod(self.sizes[n] for n in self._others(node)) * self.sizes[node]

    def _collect(self, node: int, scope: tuple[int, ...]) -> Floats:
        """Take all factors of a node away and return their sum."""
        total: Floats = np.zeros([self.sizes[n] for n in scope])
        for number in sorted(self.touching.pop(node)):
            factor = self.factors[number]
            total += factor.over(scope)
            for other in factor.nodes:
                if other != node:
                    self.touching[other].discard(number)
        return total

    def _add(self, factor: _Factor) -> None:
        for node in factor.nodes:
            self.touching[node].add(len(self.factors))
        self.factors.append(factor)

    def _check(self, scope: tuple[int, ...]) -> None:
        if math.prod(self.sizes[n] for n in scope) > self.most:
            raise TooWide


def _table(
    edge: Edge,
    nodes: tuple[int, ...],
    scope: tuple[int, ...],
    domains: Sequence[Ints],
    known: dict[object, Floats],
) -> Floats:
    """Return what a tensor costs, by the choices of the nodes in `scope`; others have one left."""
    arrays = (edge.source, *(states for _, states in edge.readers))
    ends = (edge.producer, *(node for node, _ in edge.readers))
    axis = {node: i for i, node in enumerate(scope)}
    key = (
        id(edge.table), *map(id, arrays), *(nodes.index(n) for n in ends),
        *(domains[n].tobytes() for n in nodes),
    )  # fmt: skip
    if key not in known:
        states = []
        for node, array in zip(ends, arrays, strict=True):
            shape = [1] * len(scope)
            if node in axis:
                shape[axis[node]] = -1
            states.append(array[domains[node]].reshape(shape))
        source, *wanted = states
        total: Floats = np.zeros([len(domains[n]) for n in scope])
        for number, want in enumerate(wanted):
            paid = np.zeros([1] * len(scope), dtype=bool)
            for earlier in wanted[:number]:
                paid = paid | (want == earlier)
            total = total + np.where(paid, 0.0, edge.table.cost[source, want])
        known[key] = total
    return known[key]
