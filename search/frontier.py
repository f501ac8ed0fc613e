"""Plans that cost little more than a lower bound: dynamic programming over sets of open nodes.

The dual (dual.py) rewrites the cost of a plan as its bound plus terms >= 0 of single nodes, of pairs
and of tensors. Nodes are decided one after another; of all partial plans that agree on the nodes
which later terms still hang on, the cheapest stays, and none stays whose terms already exceed what a
better plan may cost. Under a memory limit a dearer one that holds less stays, too. With a good bound
few partial plans are left at any time: if none ever had to be given up for their number, the result
is proven.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autoddl.search.dual import Dual
from autoddl.search.problem import Floats, Ints

MOST_ENTRIES, MOST_ENDS = 1 << 20, 24  # of a tensor's table
MOST_TERM_ENTRIES = 1 << 24  # of that of one of its terms, which can't be parted


@dataclass(frozen=True, eq=False)
class Found:
    """The cheapest plan within the slack, if there is one; `proven` that no other is cheaper."""

    assignment: list[int] | None
    proven: bool


@dataclass(frozen=True, eq=False)
class _Table:
    """Part of the cost of a tensor, by the states of its nodes in the order in which they are decided.

    `nodes` are its ends' (one may have two), `states` their states by position in the domain, as
    numbers from 0. `least[j]` is the least cost once j of the ends are decided, by these.
    """

    nodes: tuple[int, ...]
    states: tuple[Ints, ...]
    least: tuple[Floats, ...]


def cheapest(
    dual: Dual,
    domains: Sequence[Ints],
    slack_s: float,
    width: int,
    memory_bytes: int | None = None,
    late: Callable[[], bool] = lambda: False,
    *,
    beam: bool = True,
) -> Found:
    """Return the cheapest plan of `domains` that costs at most `slack_s` more than `dual.bound()`.

    Where the dual prices memory, both costs include that. Of more than `width` partial plans the
    cheapest so far stay as a `beam`, and nothing is proven; without one there is no plan then. The
    plan holds at most `memory_bytes`. When it gets `late`, or a table too large, there is none, and
    nothing is proven.
    """
    try:
        frontier = _Frontier(dual, domains, slack_s, width, memory_bytes)
    except _TooLarge:
        return Found(None, False)
    return frontier.run(late, beam)


class _TooLarge(Exception):
    """One term of a tensor has more entries than a table may have."""


@dataclass(frozen=True, eq=False)
class _Whole:
    """A tensor with too many readers for one table: what it costs beyond its terms' tables."""

    edge: int
    nodes: tuple[int, ...]
    states: tuple[Ints, ...]


class _Frontier:
    """The terms that hang on nodes with a choice left, and the partial plans."""

    def __init__(
        self, dual: Dual, domains: Sequence[Ints], slack_s: float, width: int, limit: int | None
    ) -> None:
        self.dual, self.domains, self.slack, self.width = dual, domains, slack_s, width
        self.limit = limit
        self.parts = dual.parts()
        self.terms = [dual.terms.of(edge) for edge in range(len(dual.problem.edges))]
        self.given = dual.lent - dual.messages
        self.unary = [u[d] for u, d in zip(dual.unary(), domains, strict=True)]
        self.free = dict.fromkeys(i for i, domain in enumerate(domains) if len(domain) > 1)
        self.spent = sum(float(v[0]) for i, v in enumerate(self.unary) if i not in self.free)
        self.open: dict[int, set[int]] = {i: set() for i in self.free}
        self.tensors = [self._open(index) for index in range(len(dual.problem.edges))]
        self.turn = {node: i for i, node in enumerate(self._order())}
        self.tables: dict[int, list[_Table]] = {i: [] for i in self.free}
        self.wholes: dict[int, list[_Whole]] = {i: [] for i in self.free}
        for index, nodes in enumerate(self.tensors):
            self._add(index, nodes)

    def _ends(self, edge: int) -> tuple[tuple[int, ...], list[Ints]]:
        """Return the nodes at the ends of a tensor and their states by position in the domain."""
        tensor = self.dual.problem.edges[edge]
        nodes = (tensor.producer, *(n for n, _ in tensor.readers))
        pairs = zip(nodes, self.dual.terms.by_choice(edge), strict=True)
        return nodes, [states[self.domains[n]] for n, states in pairs]

    def _open(self, edge: int) -> list[int]:
        """Note which nodes a tensor holds together: those that may choose between its states."""
        pairs = zip(*self._ends(edge), strict=True)
        nodes = [n for n, s in pairs if n in self.free and (s != s[0]).any()]
        for node in nodes:
            self.open[node].update(n for n in nodes if n != node)
        return nodes

    def _add(self, edge: int, open_nodes: Sequence[int]) -> None:
        """Make the table of a tensor, or one for each of its terms where that would be too large."""
        nodes, states = self._ends(edge)
        sizes = [len(np.unique(s)) for s in states]
        if len(nodes) <= MOST_ENDS and math.prod(sizes) <= MOST_ENTRIES:
            self._table(range(len(nodes)), edge, self.terms[edge], open_nodes)
            return
        for term in self.terms[edge]:
            ends = [position for _, position in self.dual.terms.ends(term)]
            self._table(ends, edge, [term], open_nodes)
        whole = _Whole(edge, nodes, tuple(states))
        if len(self.terms[edge]) > 1 and open_nodes:
            self.wholes[max(open_nodes, key=self.turn.__getitem__)].append(whole)
        elif len(self.terms[edge]) > 1:
            self.spent += float(self._beyond(whole, -1, {}).item())

    def _table(
        self, ends: Sequence[int], edge: int, terms: Sequence[int], open_nodes: Sequence[int]
    ) -> None:
        """Give the table of some terms of a tensor to its open nodes; without any, that is spent."""
        nodes, states = self._ends(edge)
        turn = [self.turn[nodes[i]] if nodes[i] in open_nodes else -1 for i in ends]
        found = [np.unique(states[i], return_inverse=True) for i in ends]
        if math.prod(len(values) for values, _ in found) > MOST_TERM_ENTRIES:
            raise _TooLarge
        grid: list[Ints] = [np.zeros(1, dtype=np.int64)] * len(nodes)
        for position, values in zip(ends, np.ix_(*(values for values, _ in found)), strict=True):
            grid[position] = values
        order = sorted(range(len(ends)), key=lambda i: turn[i])
        part = (len(ends) - 1) / (len(nodes) - 1)
        paid = part * self._paid(edge, [grid[i] for i in ends])
        least = [np.maximum(paid + self._given(terms, grid), 0.0).transpose(order)]
        for axis in reversed(range(len(order))):
            least.append(least[-1].min(axis=axis))
        self.spent += float(least[-1])
        table = _Table(
            tuple(nodes[ends[i]] for i in order),
            tuple(found[i][1].ravel() for i in order),
            tuple(reversed(least)),
        )
        for node in {n for n, when in zip(table.nodes, sorted(turn), strict=True) if when >= 0}:
            self.tables[node].append(table)

    def _paid(self, edge: int, states: Sequence[Ints]) -> Floats:
        """Return what a tensor's redistributions cost; `states` are arrays of ends' that broadcast."""
        source, *wanted = states
        total: Floats = np.zeros(np.broadcast_shapes(*(s.shape for s in states)))
        here = self.dual.terms.occurring[edge]
        prices = self.dual.problem.edges[edge].table.cost[np.ix_(here, here)]
        prices = np.minimum(prices, self.dual.most_s)
        for number, want in enumerate(wanted):
            paid = np.zeros((), dtype=bool)
            for earlier in wanted[:number]:
                paid = paid | (want == earlier)
            total += np.where(paid, 0.0, prices[source, want])
        return total

    def _given(self, terms: Sequence[int], states: Sequence[Ints]) -> Floats:
        """Return what terms of a tensor are lent, less their messages and their part of the bound."""
        total: Floats = np.zeros(np.broadcast_shapes(*(s.shape for s in states)))
        for index in terms:
            for end, position in self.dual.terms.ends(index):
                total = total + self.given[end][states[position]]
            total = total - self.parts[index]
        return total

    def _beyond(self, whole: _Whole, node: int, columns: dict[int, Ints]) -> Floats:
        """Return what a tensor costs beyond its terms [partial plans, choices of the last node]."""
        states = []
        for other, mine in zip(whole.nodes, whole.states, strict=True):
            if other == node:
                states.append(mine[None, :])
            elif other in columns:
                states.append(mine[columns[other]][:, None])
            else:
                states.append(mine[:1, None])
        total = self._paid(whole.edge, states)
        for index in self.terms[whole.edge]:
            here = [states[position] for _, position in self.dual.terms.ends(index)]
            total = total - (len(here) - 1) / (len(states) - 1) * self._paid(whole.edge, here)
        return np.maximum(total, 0.0)

    def _order(self) -> list[int]:
        """Return the free nodes so that few are open at a time (greedily)."""
        weight = {n: math.log(len(self.domains[n])) for n in self.free}
        left = {n: set(others) for n, others in self.open.items()}  # which are not decided yet
        waiting = dict(self.free)
        queue: list[tuple[float, int]] = []
        order: list[int] = []

        def growth(node: int) -> float:
            """Return by how much the size of what is open grows, as a logarithm."""
            closes = [o for o in self.open[node] if o not in waiting and len(left[o]) == 1]
            return (weight[node] if left[node] else 0.0) - sum(weight[o] for o in closes)

        for root in self.free:
            if root in waiting:
                queue.append((growth(root), root))
            while queue:
                value, node = heapq.heappop(queue)
                if node not in waiting or value != growth(node):
                    continue  # decided, or there is a newer entry
                order.append(node)
                del waiting[node]
                changed: set[int] = set()
                for other in self.open[node]:
                    left[other].discard(node)
                    changed |= {other, *left[other]}
                for other in sorted(changed & waiting.keys()):
                    heapq.heappush(queue, (growth(other), other))
        return order

    def run(self, late: Callable[[], bool], beam: bool) -> Found:
        """Decide node after node."""
        order = list(self.turn)
        last = {n: max((self.turn[o] for o in self.open[n]), default=-1) for n in order}
        columns: dict[int, Ints] = {}
        values: Floats = np.array([self.spent])
        held: Ints = np.zeros(1, dtype=np.int64)
        spare = self._spare(order)
        history: list[tuple[Ints, Ints]] = []
        proven = True
        for step, node in enumerate(order):
            more: Floats = np.broadcast_to(
                self.unary[node], (len(values), len(self.unary[node]))
            ).copy()
            for table in self.tables[node]:
                more += self._more(table, node, columns)
            for whole in self.wholes[node]:
                more += self._beyond(whole, node, columns)
            total: Floats = np.add(values[:, None], more)
            holds = held[:, None] + self.memory[node]
            row, choice = np.nonzero((total <= self.slack) & (holds <= spare))
            values, held = total[row, choice], holds[row, choice]
            open_now = [(n, c[row]) for n, c in columns.items() if last[n] > step]
            if last[node] > step:
                open_now.append((node, choice))
            retires = len(open_now) <= len(columns)
            kept = self._kept(open_now, values, held) if retires else np.arange(len(values))
            if len(kept) > self.width:
                if not beam:
                    return Found(None, False)
                proven = False
                kept = kept[np.sort(np.argsort(values[kept], kind="stable")[: self.width])]
            row, choice, values, held = row[kept], choice[kept], values[kept], held[kept]
            open_now = [(n, c[kept]) for n, c in open_now]
            columns = dict(open_now)
            history.append((row, choice))
            if not len(values):
                return Found(None, proven)
            if late():
                return Found(None, False)
        best = int((values - self.dual.byte_s * held).argmin())
        return Found(self._traced(order, history, best), proven)

    def _spare(self, order: Sequence[int]) -> int:
        """Return the bytes that a plan may hold beyond the least; set `memory` to match.

        Without a limit nothing holds anything, so that only costs decide.
        """
        nodes = self.dual.problem.nodes
        bytes_of = [node.memory_bytes[d] for node, d in zip(nodes, self.domains, strict=True)]
        if self.limit is None:
            self.memory = {n: 0 * bytes_of[n] for n in order}
            return 0
        self.memory = {n: bytes_of[n] - bytes_of[n].min() for n in order}
        return self.limit - sum(int(b.min()) for b in bytes_of)

    def _more(self, table: _Table, node: int, columns: dict[int, Ints]) -> Floats:
        """Return by how much the least cost of a tensor grows [partial plans, choices of a node]."""
        first = table.nodes.index(node)
        after = first + table.nodes.count(node)  # its ends stand together
        index: list[Ints] = []
        for other, states in zip(table.nodes[:after], table.states, strict=False):
            if other == node:
                index.append(states[None, :])
            elif other in columns:
                index.append(states[columns[other]][:, None])
            else:
                index.append(states[:1, None])
        more: Floats = table.least[after][tuple(index)] - table.least[first][tuple(index[:first])]
        return more

    def _kept(self, columns: Sequence[tuple[int, Ints]], values: Floats, held: Ints) -> Ints:
        """Return which partial plans no other is better than that agrees on the open nodes."""
        key, size = np.zeros(len(values), dtype=np.int64), 1
        for node, column in columns:
            here = len(self.domains[node])
            if size * here >= 1 << 62:
                key = np.unique(key, return_inverse=True)[1]
                size = len(key)
            key = key * here + column
            size *= here
        if self.limit is None:
            order = np.lexsort((values, key))
            first = np.ones(len(order), dtype=bool)
            first[1:] = key[order][1:] != key[order][:-1]
            return np.sort(order[first])
        order = np.lexsort((held, values - self.dual.byte_s * held, key))
        group = np.cumsum(np.diff(key[order], prepend=key[order[:1]]) != 0)
        falling = held[order] - group * (int(held.max(initial=0)) + 1)  # restarts with every group
        least = np.minimum.accumulate(falling)
        first = np.ones(len(order), dtype=bool)
        first[1:] = falling[1:] < least[:-1]
        return np.sort(order[first])

    def _traced(self, order: list[int], history: list[tuple[Ints, Ints]], row: int) -> list[int]:
        point = [int(domain[0]) for domain in self.domains]
        for node, (rows, choices) in zip(reversed(order), reversed(history), strict=True):
            point[node] = int(self.domains[node][choices[row]])
            row = int(rows[row])
        return point
