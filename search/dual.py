"""A lower bound for all plans, and for all plans with a given choice: dual ascent in batches.

The cost network has a term for every node and one for every tensor, which hangs on the states that
its producer and its readers have chosen. Any messages that move cost between a tensor and its nodes
leave

    Σ_nodes (1 − Σ γ)·min_x θ(x)  +  Σ_tensors min [cost of the tensor − messages + γ·θ of its nodes]

a lower bound, where each node lends a part γ of its cost θ to tensors that it shares with nodes on
one side of it. Messages are updated node by node as in SRMP (Kolmogorov 2015), which is TRW-S for
terms of more than two nodes; what a tensor can take over is computed exactly (sharing.py). Nodes of
equal ops are updated together as rows of one array: the layers of a deep model cost one NumPy call.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoddl.search.problem import Edge, Floats, Ints, Problem
from autoddl.search.sharing import MOST_READERS, seen_by_producer, seen_by_reader

Compressed = tuple[Floats, Ints, tuple[Ints, ...]]


@dataclass(frozen=True, eq=False)
class Term:
    """What a tensor costs by the states of its ends: the producer's and those of (some) readers.

    `ends` numbers them. A tensor with many readers has several terms, `scale` is the part of its
    prices that this one has.
    """

    edge: int
    readers: tuple[int, ...]
    scale: float
    ends: Ints


@dataclass(frozen=True, eq=False)
class _Pull:
    """Ends that take over what their tensors can give: all producers, or readers, of such terms.

    `mine` are the ends, `terms` theirs, `source` the producers' ends if `mine` are readers, `wants`
    those of all (other) readers.
    """

    mine: Ints
    terms: Ints
    source: Ints | None
    wants: Ints


@dataclass(frozen=True, eq=False)
class _Batch:
    """Nodes with equal costs that touch equal tensors in equal ways and not each other.

    `cost` [nodes, choices], infinite for choices that have been dropped. Each node has the same
    number of ends; `ends` [nodes, ends] are their numbers, `states` [ends, choices] the state of
    the tensor under each choice, `once` [ends] one over how many of them are in the same term. `order` sorts the choices of all ends by state, `starts` are where
    each of `present` (positions in [ends, states]) begins in it. By direction (backward, forward):
    `lends` [nodes, ends] to which tensors nodes lend, `rest` [nodes] what they keep, and `pulls`;
    `part` [nodes] is what each of those tensors gets.
    """

    nodes: Ints
    cost: Floats
    ends: Ints
    states: Ints
    once: Floats
    order: Ints
    starts: Ints
    present: Ints
    part: Floats
    lends: tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]
    rest: tuple[Floats, Floats]
    pulls: tuple[tuple[_Pull, ...], tuple[_Pull, ...]]


class Dual:
    """The relaxation of one problem; `byte_s` prices memory (a Lagrange multiplier, in s/B)."""

    def __init__(
        self,
        problem: Problem,
        *,
        byte_s: float = 0.0,
        most_s: float = np.inf,
        before: Dual | None = None,
        edges: Sequence[int | None] | None = None,
    ) -> None:
        """Start with the messages of `before`, if given.

        That is a relaxation of the same problem with more choices, or of one whose edge `edges[e]`
        stands for edge e. `most_s` is more than what the best plan costs: what is not possible
        (infinite) is as good as that.
        """
        self.problem, self.byte_s, self.most_s = problem, byte_s, most_s
        self._terms(problem)
        shape = self.count, self.prices.shape[1]
        self.messages, self.lent = np.zeros(shape), np.full(shape, np.inf)
        if before is not None:
            self._carry(before, range(len(problem.edges)) if edges is None else edges)
        self.batches = self._batches(problem)
        self.forward = before is None or before.forward
        for batch in self.batches:
            self._lend(batch)

    def _terms(self, problem: Problem) -> None:
        """Make the terms, number their ends, and collect prices [tables, s, w]."""
        shared: dict[object, Compressed] = {}
        found = [compressed(edge, shared) for edge in problem.edges]
        self.occurring = [occurring for _, occurring, _ in found]
        self.states = [states for _, _, states in found]
        self.terms: list[Term] = []
        self.of_edge: list[list[int]] = []
        self.count = 0
        tables: dict[tuple[int, float], int] = {}
        costs, table = [], []
        for index, (cost, _, _) in enumerate(found):
            self.of_edge.append([])
            for readers in _groups(len(problem.edges[index].readers)):
                scale = len(readers) / len(problem.edges[index].readers)
                if (id(cost), scale) not in tables:
                    tables[id(cost), scale] = len(costs)
                    costs.append(np.minimum(cost, self.most_s) * scale)
                table.append(tables[id(cost), scale])
                ends = self.count + np.arange(len(readers) + 1)
                self.of_edge[-1].append(len(self.terms))
                self.terms.append(Term(index, readers, scale, ends))
                self.count += len(ends)
        states = max((len(cost) for cost in costs), default=1)
        self.prices = np.zeros((len(costs), states, states))
        for index, cost in enumerate(costs):
            self.prices[index, : len(cost), : len(cost)] = cost
        self.table = np.array(table, dtype=np.int64)
        self.alike: dict[int, Ints] = {  # terms by number of readers
            n: np.array([i for i, t in enumerate(self.terms) if len(t.readers) == n])
            for n in {len(t.readers) for t in self.terms}
        }

    def _carry(self, before: Dual, edges: Sequence[int | None]) -> None:
        """Take over messages; every state here occurs there as well."""
        for index, same in enumerate(edges):
            if same is None:
                continue
            states = self.occurring[index]
            left = np.searchsorted(before.occurring[same], states)
            for mine, theirs in zip(self.of_edge[index], before.of_edge[same], strict=True):
                old = before.messages[before.terms[theirs].ends]
                self.messages[self.terms[mine].ends, : len(states)] = old[:, left]

    def bound(self) -> float:
        """Return seconds that no assignment stays below."""
        total = 0.0
        for batch in self.batches:
            total += float((batch.rest[self.forward] * self._total(batch).min(axis=1)).sum())
        return total + float(self.parts().sum())

    def parts(self) -> Floats:
        """Return what each term adds to the bound."""
        found = np.zeros(len(self.terms))
        free = self.lent - self.messages
        for terms in self.alike.values():
            ends = self._ends_of(terms)
            least = seen_by_producer(self.prices[self.table[terms]], free[ends[:, 1:]])
            found[terms] = (least + free[ends[:, 0]]).min(axis=1)
        return found

    def ascend(self, rounds: int) -> float:
        """Improve the bound by so many rounds and return it."""
        for _ in range(rounds):
            for forward in (True, False):
                self.forward = forward
                for batch in self.batches if forward else reversed(self.batches):
                    for pull in batch.pulls[forward]:
                        self._pull(pull)
                    self._lend(batch)
        return self.bound()

    def rounded(self) -> list[int]:
        """Return an assignment that the messages suggest: node after node, given those before."""
        free, told = self.lent - self.messages, self.messages.copy()
        found = np.zeros(len(self.problem.nodes), dtype=np.int64)
        for batch in self.batches:
            for pull in batch.pulls[True]:
                told[pull.mine] = self._seen(pull, free)
            total = batch.cost + told[batch.ends[:, :, None], batch.states].sum(axis=1)
            choice = total.argmin(axis=1)
            found[batch.nodes] = choice
            free[batch.ends] = np.inf
            slots = np.arange(len(batch.states))
            free[batch.ends, batch.states[slots, choice[:, None]]] = 0.0
        return found.tolist()

    def excess(self) -> list[Floats]:
        """Return for every node and choice what a plan with it costs at least beyond the bound."""
        slack = np.zeros_like(self.messages)
        free = self.lent - self.messages
        for terms in self.alike.values():
            ends = self._ends_of(terms)
            for column in range(ends.shape[1]):
                pull = _pull_of(ends, column, terms)
                value = self._seen(pull, free) + free[ends[:, column]]
                slack[ends[:, column]] = value - value.min(axis=1, keepdims=True)
        found: list[Floats] = [np.zeros(0)] * len(self.problem.nodes)
        for batch in self.batches:
            mine = slack[batch.ends[:, :, None], batch.states] * batch.once[:, None]
            value = self._own(batch) + mine.sum(axis=1)
            for node, row in zip(batch.nodes, value, strict=True):
                found[node] = row
        return found

    def unary(self) -> list[Floats]:
        """Return what each choice costs its node beyond its part of the bound, >= 0, by node."""
        found: list[Floats] = [np.zeros(0)] * len(self.problem.nodes)
        for batch in self.batches:
            for node, row in zip(batch.nodes, self._own(batch), strict=True):
                found[node] = row
        return found

    def drop(self, kept: Sequence[Ints]) -> None:
        """Leave only the `kept` choices of every node."""
        for batch in self.batches:
            dropped = np.ones(batch.cost.shape, dtype=bool)
            for row, node in enumerate(batch.nodes):
                dropped[row, kept[node]] = False
            batch.cost[dropped] = np.inf
            self._lend(batch)

    def price_memory(self, byte_s: float) -> None:
        """Give memory another price."""
        for batch in self.batches:
            held = self.problem.nodes[batch.nodes[0]].memory_bytes
            batch.cost[:] += (byte_s - self.byte_s) * held
            self._lend(batch)
        self.byte_s = byte_s

    def _ends_of(self, terms: Ints) -> Ints:
        """Return the ends of terms with equally many readers [terms, ends]."""
        return np.array([self.terms[i].ends for i in terms])

    def _own(self, batch: _Batch) -> Floats:
        """Return θ less what is lent, beyond its least [nodes, choices]; infinite for the dropped."""
        total = self._total(batch)
        dropped = np.isinf(total)
        total[dropped] = 0.0
        lent = self.lent[batch.ends[:, :, None], batch.states]
        value = total - np.where(dropped[:, None], 0.0, lent).sum(axis=1)
        value[dropped] = np.inf
        return np.maximum(value - value.min(axis=1, keepdims=True), 0.0)

    def _total(self, batch: _Batch) -> Floats:
        """Return θ [nodes, choices] with all messages."""
        told: Floats = self.messages[batch.ends[:, :, None], batch.states]
        return batch.cost + told.sum(axis=1)

    def _lend(self, batch: _Batch) -> None:
        """Lend to the tensors that nodes on one side touch as well; elsewhere states are free."""
        ends, states = len(batch.states), self.messages.shape[1]
        if not ends:
            return
        total = self._total(batch) * batch.part[:, None]
        lent = np.full((len(total), ends * states), np.inf)
        least = np.minimum.reduceat(total[:, batch.order], batch.starts, axis=1)
        lent[:, batch.present] = least
        lent = lent.reshape(len(total), ends, states)
        here = batch.lends[self.forward][:, :, None]
        self.lent[batch.ends] = np.where(here | np.isinf(lent), lent, 0.0)

    def _pull(self, pull: _Pull) -> None:
        """Move what tensors can give to the nodes of these ends."""
        message = self._seen(pull, self.lent - self.messages)
        self.messages[pull.mine] = message - message.min(axis=1, keepdims=True)

    def _seen(self, pull: _Pull, free: Floats) -> Floats:
        """Return the least that tensors cost by the state of one end [ends, states].

        `free` [all ends, states] is what the others are lent less what they were told.
        """
        prices = self.prices[self.table[pull.terms]]
        if pull.source is None:
            return seen_by_producer(prices, free[pull.wants])
        return seen_by_reader(prices, free[pull.source], free[pull.wants])

    def _batches(self, problem: Problem) -> tuple[_Batch, ...]:
        """Group nodes that can be updated together; their order is that of the first of each."""
        touched = self._touched(problem)
        beside: list[set[int]] = [set() for _ in problem.nodes]
        for edge in problem.edges:
            nodes = {edge.producer, *(n for n, _ in edge.readers)}
            for node in nodes:
                beside[node] |= nodes
        groups: list[list[int]] = []
        known: dict[object, list[int]] = {}
        place = np.full(len(problem.nodes), -1)
        for index, node in enumerate(problem.nodes):
            looks = tuple((id(states), role, size) for _, _, role, size, states in touched[index])
            candidates = known.setdefault((id(node.compute_s), id(node.memory_bytes), looks), [])
            taken = {place[other] for other in beside[index]}
            group = next((g for g in candidates if g not in taken), len(groups))
            if group == len(groups):
                groups.append([])
                candidates.append(group)
            groups[group].append(index)
            place[index] = group
        span = self._span(problem, place)
        return tuple(self._batch(nodes, [touched[n] for n in nodes], span) for nodes in groups)

    def _touched(self, problem: Problem) -> list[list[tuple[int, int, int, int, Ints]]]:
        """Return for each node its ends: number, term, role in it, readers of it, states."""
        found: list[list[tuple[int, int, int, int, Ints]]] = [[] for _ in problem.nodes]
        for number, term in enumerate(self.terms):
            edge, states = problem.edges[term.edge], self.states[term.edge]
            size = len(term.readers)
            found[edge.producer].append((int(term.ends[0]), number, 0, size, states[0]))
            for role, reader in enumerate(term.readers, 1):
                node = edge.readers[reader][0]
                found[node].append((int(term.ends[role]), number, role, size, states[reader + 1]))
        return found

    def _span(self, problem: Problem, place: Ints) -> tuple[Ints, Ints]:
        """Return for each term the first and the last batch that touches it."""
        first, last = [], []
        for term in self.terms:
            edge = problem.edges[term.edge]
            here = place[[edge.producer, *(edge.readers[r][0] for r in term.readers)]]
            first.append(here.min())
            last.append(here.max())
        self.place = place
        return np.array(first, dtype=np.int64), np.array(last, dtype=np.int64)

    def _batch(
        self, nodes: list[int], touched: list[list[tuple[int, int, int, int, Ints]]],
        span: tuple[Ints, Ints],
    ) -> _Batch:  # fmt: skip
        first, width = self.problem.nodes[nodes[0]], self.messages.shape[1]
        cost = np.tile(first.compute_s + self.byte_s * first.memory_bytes, (len(nodes), 1))
        states = np.array([end[4] for end in touched[0]], dtype=np.int64).reshape(-1, cost.shape[1])
        shape = len(nodes), len(states)
        ends = np.array([[e[0] for e in row] for row in touched], dtype=np.int64).reshape(shape)
        terms = np.array([[e[1] for e in row] for row in touched], dtype=np.int64).reshape(shape)
        here = self.place[nodes[0]]
        earlier, later = span[0][terms] < here, span[1][terms] > here
        order = np.argsort(states, axis=1, kind="stable")
        sorted_states = np.take_along_axis(states, order, axis=1)
        present, starts = np.unique(
            (sorted_states + width * np.arange(len(states))[:, None]).ravel(), return_index=True
        )
        once = 1.0 / (terms[0][:, None] == terms[0]).sum(axis=1)
        behind, ahead = earlier.sum(axis=1), later.sum(axis=1)
        part = 1.0 / np.maximum(1, np.maximum(ahead, behind))
        return _Batch(
            np.array(nodes), cost, ends, states, once, order.ravel(), starts, present, part,
            (earlier, later), (1.0 - part * behind, 1.0 - part * ahead),
            (self._pulls(touched, later), self._pulls(touched, earlier)),
        )  # fmt: skip

    def _pulls(
        self, touched: list[list[tuple[int, int, int, int, Ints]]], gives: npt.NDArray[np.bool_]
    ) -> tuple[_Pull, ...]:
        """Group the ends whose tensors can give something by what they are in them.

        A node's ends in the same term pull one after the other.
        """
        groups: dict[tuple[int, bool, int], list[tuple[int, int]]] = defaultdict(list)
        for row, slots in enumerate(touched):
            for slot, (_, term, role, size, _) in enumerate(slots):
                if gives[row, slot]:
                    again = sum(other[1] == term for other in slots[:slot])
                    groups[size, role == 0, again].append((term, role))
        found = []
        for pairs in groups.values():
            terms = np.array([term for term, _ in pairs])
            ends = self._ends_of(terms)
            columns = np.array([role for _, role in pairs])
            found.append(_pull_of(ends, columns, terms))
        return tuple(found)


def _pull_of(ends: Ints, columns: Ints | int, terms: Ints) -> _Pull:
    """Return the pull of one end of each term: `columns` says which, all 0 or none."""
    columns = np.broadcast_to(columns, len(ends))
    mine = ends[np.arange(len(ends)), columns]
    if not columns.any():
        return _Pull(mine, terms, None, ends[:, 1:])
    others = ends[:, 1:][ends[:, 1:] != mine[:, None]].reshape(len(ends), -1)
    return _Pull(mine, terms, ends[:, 0], others)


def _groups(readers: int) -> list[tuple[int, ...]]:
    """Part readers into groups that one term can have."""
    count = -(-readers // MOST_READERS)
    return [tuple(map(int, part)) for part in np.array_split(np.arange(readers), count)]


def compressed(edge: Edge, shared: dict[object, Compressed]) -> Compressed:
    """Return a tensor's prices among the states that occur, these, and those of producer and readers.

    `shared` keeps what was computed, so that equal tensors get the same arrays.
    """
    arrays = (edge.source, *(states for _, states in edge.readers))
    key = (id(edge.table), *map(id, arrays))
    if key not in shared:
        occurring = np.unique(np.concatenate(arrays))
        cost_key = (id(edge.table), occurring.tobytes())
        if cost_key not in shared:
            shared[cost_key] = edge.table.cost[np.ix_(occurring, occurring)], occurring, ()
        cost, occurring, _ = shared[cost_key]
        shared[key] = cost, occurring, tuple(np.searchsorted(occurring, a) for a in arrays)
    return shared[key]
