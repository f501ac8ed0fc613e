"""Trees: choose for many nodes at once, exactly, while the rest of the assignment is fixed.

Nodes and tensors are the two sides of a graph. Nodes that close no cycle in it form a forest, over
which dynamic programming finds their joint optimum: each node sends up what its choices cost with
everything below, each tensor what its states cost. Another random forest is taken every time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from autoddl.search import node_moves
from autoddl.search.forest import Network, Star, improve
from autoddl.search.problem import Floats, Ints, Problem


class Forests:
    """Improve assignments of one problem tree by tree; `frozen` nodes never move."""

    def __init__(self, problem: Problem, frozen: frozenset[int] = frozenset()) -> None:
        whole = problem.flat.network
        self.net, twice = _occurring(whole, problem.flat.touching)
        nodes = np.repeat(np.arange(len(whole.choices)), whole.choices)
        choice = np.arange(len(nodes)) - self.net.first[nodes]
        self.compute_s = whole.compute[whole.compute_at[nodes] + choice]
        self.memory_bytes = whole.memory[whole.memory_at[nodes] + choice]
        self.star = _room(self.net)
        self.evaluations = 0  # choices of free nodes that were priced
        self.movable = [
            i
            for i, count in enumerate(whole.choices.tolist())
            if count > 1 and i not in frozen and i not in twice
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
        nodes = [n for n in self.movable if within is None or n in within]
        best = np.array(point, dtype=np.int64)
        turns = np.array(nodes, dtype=np.int64)[rng.permutation(len(nodes))]
        total = self.compute_s + byte_s * self.memory_bytes
        order, above = np.empty((2, len(point) + len(self.net.size)), dtype=np.int64)
        self.evaluations += improve(self.net, self.star, turns, total, best, order, above)
        found: list[int] = best.tolist()
        return found


def _room(net: Network) -> Star:
    """Return room for any tensor."""
    size, ends = int(net.size.max(initial=1)), int(np.diff(net.begin).max(initial=1))
    return Star(
        below=np.empty(ends, dtype=np.int64),
        offers=np.empty((ends, size)),
        paid=np.empty(size, dtype=np.int64),
        made=np.empty(size, dtype=np.int64),
        start=np.empty(size),
        served=np.empty((size, size)),
        common=np.empty((size, size), dtype=np.int64),
        extra=np.empty(size),
        some=np.empty(size),
        sums=np.empty(size),
    )


def _occurring(net: node_moves.Network, touching: node_moves.Touching) -> tuple[Network, set[int]]:
    """Return the network with only those states of each tensor's table that some choice means.

    Besides, the nodes that have a tensor at two ends; they have the states of the last one at both.
    """
    begin, tables = net.begin.tolist(), net.table_at.tolist()
    nodes, at = net.node.tolist(), net.states_at.tolist()
    known: dict[tuple[int, ...], tuple[int, int, list[int]]] = {}
    costs: list[Floats] = [np.zeros(0)]
    states: list[Ints] = [np.zeros(0, dtype=np.int64)]
    priced, held = 0, 0
    edges: list[tuple[int, int]] = []
    ends: list[int] = []
    twice: set[int] = set()
    for edge, table in enumerate(tables):
        first, last = begin[edge], begin[edge + 1]
        mine = nodes[first:last]
        if len(set(mine)) < len(mine):
            twice |= {node for node in mine if mine.count(node) > 1}
        key = table, *at[first:last]
        if key not in known:
            size = int(net.size[edge])
            arrays = [
                net.states[a : a + net.choices[n]]
                for n, a in zip(mine, at[first:last], strict=True)
            ]
            occurring, where = np.unique(np.concatenate(arrays), return_inverse=True)
            cost = net.cost[table : table + size * size].reshape(size, size)
            costs.append(cost[np.ix_(occurring, occurring)].reshape(-1))
            states.append(where)
            offsets = np.cumsum([held, *map(len, arrays)]).tolist()
            known[key] = priced, len(occurring), offsets[:-1]
            priced, held = priced + costs[-1].size, offsets[-1]
        where_, size_, offsets_ = known[key]
        edges.append((where_, size_))
        last_at = dict(zip(mine, offsets_, strict=True))
        ends += [last_at[node] for node in mine]
    table_at, sizes = np.array(edges, dtype=np.int64).reshape(-1, 2).T.copy()
    return Network(
        np.cumsum([0, *net.choices]), *touching, net.begin, net.node,
        np.concatenate(states), np.array(ends, dtype=np.int64),
        np.concatenate(costs), table_at, sizes,
    ), twice  # fmt: skip
