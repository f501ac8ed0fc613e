"""Trees: choose for many nodes at once, exactly, while the rest of the assignment is fixed.

Nodes and tensors are the two sides of a graph. Nodes that close no cycle in it form a forest, over
which dynamic programming finds their joint optimum: each node sends up what its choices cost with
everything below, each tensor what its states cost. Another random forest is taken every time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from autoddl.search.problem import Edge, Floats, Ints, Problem

MOST_LEAVES = 1 << 14  # that are remembered

Groups = tuple[Ints, Ints, Ints]
"""Choices ordered by the state that they mean, where each state begins, and the states."""


@dataclass(frozen=True, eq=False)
class _Factor:
    """A tensor over the states that occur: `cost[s, t]` and the state under each node's choices.

    `states` and `groups` are by node.
    """

    cost: Floats
    producer: int
    states: dict[int, Ints]
    readers: tuple[int, ...]
    groups: dict[int, Groups]

    def by_state(self, node: int, total: Floats) -> Floats:
        """Return the least total of a node for every state of the tensor, infinity where it has none."""
        choices, begins, states = self.groups[node]
        best = np.full(len(self.cost), np.inf)
        best[states] = np.minimum.reduceat(total[choices], begins)
        return best


@dataclass
class _Tree:
    """A tree of free nodes and their tensors: (is it a node, which, the parent) from the root on."""

    order: list[tuple[bool, int, int]]
    children: dict[int, list[int]] = field(default_factory=dict)  # of tensors: nodes
    total: dict[int, Floats] = field(default_factory=dict)  # of nodes: by choice, with all below
    star: dict[int, _Star] = field(default_factory=dict)  # of tensors


class Forests:
    """Improve assignments of one problem tree by tree; `frozen` nodes never move."""

    def __init__(self, problem: Problem, frozen: frozenset[int] = frozenset()) -> None:
        self.problem = problem
        shared: dict[object, tuple[Floats, tuple[Ints, ...], tuple[Groups, ...]]] = {}
        self.factors = [_factor(edge, shared) for edge in problem.edges]
        twice = {
            node
            for edge in problem.edges
            for node in (n for n, _ in edge.readers)
            if sum(n == node for n, _ in ((edge.producer, None), *edge.readers)) > 1
        }
        self.leaves: dict[tuple[int, int, int, frozenset[int]], Floats] = {}
        self.evaluations = 0  # choices of free nodes that were priced
        self.movable = [
            i
            for i, node in enumerate(problem.nodes)
            if len(node.choices) > 1 and i not in frozen and i not in twice
        ]

    def improve(
        self,
        point: Sequence[int],
        rng: np.random.Generator,
        *,
        byte_s: float = 0.0,
        within: Collection[int] | None = None,
    ) -> list[int]:
        """Return the optimum over one random forest of free nodes, given the others.

        Minimised are seconds plus `byte_s` seconds per byte of memory. Where readers of one tensor
        want more than two new states between them the result may be above the optimum. Only nodes
        `within` that collection move.
        """
        best = list(point)
        nodes = [n for n in self.movable if within is None or n in within]
        free = self._free([nodes[i] for i in rng.permutation(len(nodes))])
        members = frozenset(free)
        self.evaluations += sum(len(self.problem.nodes[i].choices) for i in free)
        seen: set[int] = set()
        for root in free:
            if root not in seen:
                tree = self._tree(root, members, seen)
                self._up(tree, best, byte_s)
                self._down(tree, best)
        return best

    def _free(self, nodes: Sequence[int]) -> list[int]:
        """Return those of the nodes, taken in turn, that close no cycle over their tensors."""
        leader: dict[int, int] = {}

        def find(tensor: int) -> int:
            while leader.setdefault(tensor, tensor) != tensor:
                leader[tensor] = leader[leader[tensor]]
                tensor = leader[tensor]
            return tensor

        free = []
        for node in nodes:
            groups = {find(tensor) for tensor in self.problem.touching[node]}
            if len(groups) == len(self.problem.touching[node]):
                free.append(node)
                first = min(groups, default=0)
                for group in groups:
                    leader[group] = first
        return free

    def _tree(self, root: int, members: frozenset[int], seen: set[int]) -> _Tree:
        tree = _Tree([(True, root, -1)])
        seen.add(root)
        for is_node, index, parent in tree.order:  # grows while it is walked
            if is_node:
                tensors = self.problem.touching[index]
                tree.order += [(False, tensor, index) for tensor in tensors if tensor != parent]
            else:
                below = [n for n in self.factors[index].states if n in members and n not in seen]
                seen.update(below)
                tree.children[index] = below
                tree.order += [(True, node, index) for node in below]
        return tree

    def _up(self, tree: _Tree, point: Sequence[int], byte_s: float) -> None:
        """Fill in what every choice costs with all that hangs below it."""
        for is_node, index, _ in tree.order:
            if is_node:
                node = self.problem.nodes[index]
                tree.total[index] = node.compute_s + byte_s * node.memory_bytes
        for is_node, index, parent in reversed(tree.order):
            if is_node:
                continue
            factor = self.factors[index]
            if tree.children[index]:
                star = tree.star[index] = _Star(factor, tree, index, parent, point)
                message = star.message()[factor.states[parent]]
            else:
                message = self._leaf(factor, parent, point)
            tree.total[parent] = tree.total[parent] + message

    def _leaf(self, factor: _Factor, parent: int, point: Sequence[int]) -> Floats:
        """Return by choice of its one free node what a tensor costs; equal tensors are priced once."""
        fixed = frozenset([int(factor.states[n][point[n]]) for n in factor.readers if n != parent])
        known = parent != factor.producer
        source = int(factor.states[factor.producer][point[factor.producer]]) if known else -1
        key = id(factor.cost), id(factor.states[parent]), source, fixed
        if key not in self.leaves:
            if len(self.leaves) >= MOST_LEAVES:
                self.leaves.clear()
            paid = factor.cost[:, list(fixed)].sum(axis=1)
            if known:
                more = factor.cost[source].copy()
                more[list(fixed)] = 0.0
                paid = paid[source] + more
            self.leaves[key] = paid[factor.states[parent]]
        return self.leaves[key]

    def _down(self, tree: _Tree, point: list[int]) -> None:
        """Choose from the root on."""
        root = tree.order[0][1]
        point[root] = int(tree.total[root].argmin())
        for is_node, index, parent in tree.order:
            if not is_node and tree.children[index]:
                states = self.factors[index].states
                above = int(states[parent][point[parent]])
                for node, state in tree.star[index].states_below(above):
                    options = np.flatnonzero(states[node] == state)
                    point[node] = int(options[tree.total[node][options].argmin()])


def _factor(
    edge: Edge, shared: dict[object, tuple[Floats, tuple[Ints, ...], tuple[Groups, ...]]]
) -> _Factor:
    arrays = (edge.source, *(states for _, states in edge.readers))
    key = (id(edge.table), *map(id, arrays))
    if key not in shared:
        occurring = np.unique(np.concatenate(arrays))
        position = np.zeros(edge.table.cost.shape[0], dtype=np.int64)
        position[occurring] = np.arange(len(occurring))
        cost = edge.table.cost[np.ix_(occurring, occurring)]
        states = tuple(position[array] for array in arrays)
        shared[key] = cost, states, tuple(_groups(array) for array in states)
    cost, states, groups = shared[key]
    nodes = (edge.producer, *(node for node, _ in edge.readers))
    return _Factor(
        cost,
        edge.producer,
        dict(zip(nodes, states, strict=True)),
        nodes[1:],
        dict(zip(nodes, groups, strict=True)),
    )


def _groups(states: Ints) -> Groups:
    found, begins = np.unique(np.sort(states), return_index=True)
    return np.argsort(states, kind="stable"), begins, found


class _Star:
    """One tensor with the free nodes around it: `parent` above, the others below."""

    def __init__(
        self, factor: _Factor, tree: _Tree, index: int, parent: int, point: Sequence[int]
    ) -> None:
        self.factor, self.parent = factor, parent
        below = tree.children[index]
        free = {parent, *below}
        fixed = {int(factor.states[n][point[n]]) for n in factor.readers if n not in free}
        extra = factor.cost.copy()  # what the states cost beyond those that are wanted anyway
        start = np.zeros(len(extra))
        for state in fixed:
            start += factor.cost[:, state]
            extra[:, state] = 0.0
        self.below = [n for n in below if n != factor.producer]
        self.offers = [factor.by_state(n, tree.total[n]) for n in self.below]
        self.shared: list[int | None] = [None]
        if len(self.below) > 1:  # states that several may want: the present and the best one
            current = {int(factor.states[n][point[n]]) for n in self.below}
            together = (extra + np.add.reduce(self.offers)[None, :]).argmin(axis=1)
            self.shared += sorted((current | set(together.tolist())) - fixed)
        self.rows: Ints | slice = slice(None)  # those that the producer may give it
        if factor.producer in below:
            start += factor.by_state(factor.producer, tree.total[factor.producer])
            self.rows = np.flatnonzero(np.isfinite(start))
        elif factor.producer != parent:
            state = int(factor.states[factor.producer][point[factor.producer]])
            self.rows = slice(state, state + 1)
        self.start, self.extra = start[self.rows], extra[self.rows]

    def message(self) -> Floats:
        """Return the least cost of tensor and all below for every state of the parent."""
        if self.parent == self.factor.producer:
            if not self.below:
                return self.start
            return np.asarray(self.start + self._served.min(axis=1))
        return np.asarray((self.start[:, None] + self._served).min(axis=0))

    @cached_property
    def _served(self) -> Floats:
        """Return [s, t]: the cost of the readers below, from state s, where t is paid for as well."""
        if not self.offers:
            return self.extra
        return np.asarray(np.minimum.reduce([self._with(common) for common in self.shared]))

    def _with(self, common: int | None) -> Floats:
        """Return the same where state `common` is also paid for, other states by each reader alone."""
        extra, cost = self._paid(common)
        total = extra + cost[:, None]
        for offer in self.offers:
            alone = (offer[None, :] + extra).min(axis=1)
            total = total + np.minimum(offer[None, :], alone[:, None])
        return total

    def _paid(self, common: int | None) -> tuple[Floats, Floats]:
        if common is None:
            return self.extra, np.zeros(len(self.extra))
        extra = self.extra.copy()
        extra[:, common] = 0.0
        return extra, self.extra[:, common]

    def states_below(self, above: int) -> list[tuple[int, int]]:
        """Return (node, state) for all nodes below, once the parent has its state."""
        found = []
        if self.parent == self.factor.producer:
            row = above
            wanted = int(self._served[row].argmin()) if self.below else 0
        else:
            wanted = above
            row = int((self.start + self._served[:, wanted]).argmin())
            if not isinstance(self.rows, slice):
                found.append((self.factor.producer, int(self.rows[row])))
        if not self.below:
            return found
        common = self.shared[0]
        if len(self.shared) > 1:
            common = min(self.shared, key=lambda c: float(self._with(c)[row, wanted]))
        extra = self._paid(common)[0][row].copy()
        extra[wanted] = 0.0
        for node, offer in zip(self.below, self.offers, strict=True):
            found.append((node, int((offer + extra).argmin())))
        return found
