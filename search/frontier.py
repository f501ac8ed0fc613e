"""Plans that cost little more than a lower bound: dynamic programming over sets of open nodes.

The dual (dual.py) rewrites the cost of a plan as its bound plus terms >= 0 of single nodes, of pairs
and of tensors. Nodes are decided one after another; of all partial plans that agree on the nodes
which later terms still hang on, the cheapest stays, and none stays whose terms already exceed what a
better plan may cost. Under a memory limit a dearer one that holds less stays, too. With a good bound
few partial plans are left at any time: if none ever had to be given up for their number, the result
is proven.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoddl.search.dual import PRODUCER, READER, Dual
from autoddl.search.problem import Floats, Ints


@dataclass(frozen=True, eq=False)
class Found:
    """The cheapest plan within the slack, if there is one; `proven` that no other is cheaper."""

    assignment: list[int] | None
    proven: bool


@dataclass(frozen=True, eq=False)
class _Tensor:
    """A tensor whose readers share: what it costs as a whole beyond its pairs.

    `pairs` are those of its readers, `nodes` the producer and the readers, `states` theirs by
    position in the domain.
    """

    pairs: Ints
    nodes: tuple[int, ...]
    states: tuple[Ints, ...]


def cheapest(
    dual: Dual,
    domains: Sequence[Ints],
    slack_s: float,
    width: int,
    memory_bytes: int | None = None,
) -> Found:
    """Return the cheapest plan of `domains` that costs at most `slack_s` more than `dual.bound()`.

    Where the dual prices memory, both costs include that. Of more than `width` partial plans the
    cheapest so far stay, and nothing is proven. The plan holds at most `memory_bytes`.
    """
    return _Frontier(dual, domains, slack_s, width, memory_bytes).run()


class _Frontier:
    """The terms that hang on nodes with a choice left, and the partial plans."""

    def __init__(
        self, dual: Dual, domains: Sequence[Ints], slack_s: float, width: int, limit: int | None
    ) -> None:
        self.dual, self.domains, self.slack, self.width = dual, domains, slack_s, width
        self.limit = limit
        self.cost = dual.prices()
        self.unary = [u[d] for u, d in zip(dual.unary(), domains, strict=True)]
        self.spent = 0.0
        self.free = [i for i, domain in enumerate(domains) if len(domain) > 1]
        self.beside: dict[int, dict[int, list[Floats]]] = {i: {} for i in self.free}
        self.open: dict[int, set[int]] = {i: set() for i in self.free}
        self.tensors: list[_Tensor] = []
        self._pairs()
        for node, values in enumerate(self.unary):
            if node not in self.beside:
                self.spent += float(values[0])

    def _pairs(self) -> None:
        left = self.dual.reduced()
        for index, edge in enumerate(self.dual.problem.edges):
            nodes = (edge.producer, *(n for n, _ in edge.readers))
            states = tuple(
                s[self.domains[n]] for n, s in zip(nodes, self.dual.states[index], strict=True)
            )
            first = int(self.dual.first[index])
            pairs = np.arange(first, first + len(edge.readers))
            for pair, reader, wanted in zip(pairs, nodes[1:], states[1:], strict=True):
                self._pair(nodes[0], reader, left[pair][np.ix_(states[0], wanted)])
            if len(edge.readers) > 1:
                self._tensor(_Tensor(pairs, nodes, states))

    def _pair(self, producer: int, reader: int, values: Floats) -> None:
        """Note a term of two nodes, by position in their domains."""
        if producer == reader:
            self.unary[producer] = self.unary[producer] + values.diagonal()
        elif producer in self.beside and reader in self.beside:
            self.beside[producer].setdefault(reader, []).append(values)
            self.beside[reader].setdefault(producer, []).append(values.T)
            self.open[producer].add(reader)
            self.open[reader].add(producer)
        elif producer in self.beside:
            self.unary[producer] = self.unary[producer] + values[:, 0]
        elif reader in self.beside:
            self.unary[reader] = self.unary[reader] + values[0]
        else:
            self.spent += float(values[0, 0])

    def _tensor(self, tensor: _Tensor) -> None:
        """Note what a tensor costs as a whole, if it can cost anything."""
        producer = np.unique(tensor.states[0])
        prices = self.cost[tensor.pairs[0]][producer]
        wanted = np.unique(np.concatenate(tensor.states[1:]))
        if not (prices[:, wanted] > 0).any():
            return
        nodes = [n for n in dict.fromkeys(tensor.nodes) if n in self.beside]
        if not nodes:
            columns = [s[:1] for s in tensor.states]
            self.spent += float(self._whole(tensor, columns)[0])
        elif len(nodes) == 1:
            node = nodes[0]
            columns = [
                s if n == node else s[:1] for n, s in zip(tensor.nodes, tensor.states, strict=True)
            ]
            self.unary[node] = self.unary[node] + self._whole(tensor, columns)
        else:
            self.tensors.append(tensor)
            for node in nodes:
                self.open[node] |= set(nodes) - {node}

    def _whole(self, tensor: _Tensor, states: Sequence[Ints]) -> Floats:
        """Return what a tensor costs beyond its pairs; `states` are arrays that broadcast."""
        source, *wanted = states
        total: Floats = np.zeros(np.broadcast_shapes(*(s.shape for s in states)))
        for number, (pair, want) in enumerate(zip(tensor.pairs, wanted, strict=True)):
            paid = np.zeros((), dtype=bool)
            for earlier in wanted[:number]:
                paid = paid | (want == earlier)
            total += np.where(paid, 0.0, self.cost[pair][source, want])
            total -= self.dual.shares[pair][source, want]
        return np.maximum(total, 0.0)

    def _order(self) -> list[int]:
        """Return the free nodes so that few are open at a time (greedily)."""
        weight = {n: math.log(len(self.domains[n])) for n in self.free}
        left = {n: set(others) for n, others in self.open.items()}
        waiting, ready, order = dict.fromkeys(self.free), {}, []
        while waiting:
            candidates = ready or waiting

            def growth(node: int) -> tuple[float, int]:
                closes = sum(weight[o] for o in self.open[node] if o not in waiting and left[o] == {node})
                stays = any(o in waiting for o in self.open[node])
                return (weight[node] if stays else 0.0) - closes, node

            node = min(candidates, key=growth)
            order.append(node)
            del waiting[node]
            ready.pop(node, None)
            for other in self.open[node]:
                left[other].discard(node)
                if other in waiting:
                    ready[other] = None
        return order

    def run(self) -> Found:
        order = self._order()
        turn = {node: i for i, node in enumerate(order)}
        last = {n: max((turn[o] for o in self.open[n]), default=-1) for n in order}
        closing: dict[int, list[_Tensor]] = {}
        for tensor in self.tensors:
            when = max(turn[n] for n in tensor.nodes if n in turn)
            closing.setdefault(when, []).append(tensor)
        columns: dict[int, Ints] = {}
        values, held, spare = np.array([self.spent]), np.zeros(1, dtype=np.int64), self._spare(order)
        history: list[tuple[Ints, Ints]] = []
        proven = True
        for step, node in enumerate(order):
            more = np.broadcast_to(self.unary[node], (len(values), len(self.unary[node]))).copy()
            for other, tables in self.beside[node].items():
                if other in columns:
                    for table in tables:
                        more += table.T[columns[other]]
            for tensor in closing.get(step, ()):
                more += self._closed(tensor, columns, node)
            total, memory = values[:, None] + more, held[:, None] + self.memory[node]
            row, choice = np.nonzero((total <= self.slack) & (memory <= spare[step]))
            values, held = total[row, choice], memory[row, choice]
            open_now = [(n, c[row]) for n, c in columns.items() if last[n] > step]
            if last[node] > step:
                open_now.append((node, choice))
            retires = len(open_now) <= len(columns)
            kept = self._kept(open_now, values, held) if retires else np.arange(len(values))
            if len(kept) > self.width:
                proven = False
                kept = kept[np.sort(np.argsort(values[kept], kind="stable")[: self.width])]
            row, choice, values, held = row[kept], choice[kept], values[kept], held[kept]
            open_now = [(n, c[kept]) for n, c in open_now]
            columns = dict(open_now)
            history.append((row, choice))
            if not len(values):
                return Found(None, proven)
        best = int((values - self.dual.byte_s * held).argmin())
        return Found(self._traced(order, history, best), proven)

    def _spare(self, order: Sequence[int]) -> list[float]:
        """Return the bytes that may be held beyond the least after each step; set `memory` to match.

        Without a limit nothing holds anything, so that only costs decide.
        """
        nodes = self.dual.problem.nodes
        bytes_of = [node.memory_bytes[d] for node, d in zip(nodes, self.domains, strict=True)]
        if self.limit is None:
            self.memory = {n: 0 * bytes_of[n] for n in order}
            return [0.0] * len(order)
        spare = self.limit - sum(int(b.min()) for b in bytes_of)
        self.memory = {n: bytes_of[n] - bytes_of[n].min() for n in order}
        return [float(spare)] * len(order)

    def _closed(self, tensor: _Tensor, columns: dict[int, Ints], node: int) -> Floats:
        """Return what a tensor costs beyond its pairs [partial plans, choices of the last node]."""
        states = []
        for other, mine in zip(tensor.nodes, tensor.states, strict=True):
            if other == node:
                states.append(mine[None, :])
            elif other in columns:
                states.append(mine[columns[other]][:, None])
            else:
                states.append(mine[:1][:, None])
        return self._whole(tensor, states)

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
