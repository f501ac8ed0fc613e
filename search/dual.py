"""A lower bound for all plans, and for all plans with a given choice: dual ascent in batches.

The cost network is relaxed to pairs (producer, reader) of nodes: the price of turning a tensor from
state s into state w is shared out among its readers, so that those who want the same state pay
together what the tensor is charged once. Any shares >= 0 that add up to the price, and any messages
that move cost between a pair and its two nodes, leave

    Σ_nodes (1 − Σ γ)·min_x θ(x)  +  Σ_pairs min_(s,w) [φ(s, w) + γ·θ(s) of one end]

a lower bound, where each node lends a part γ of its cost θ to pairs that it shares with nodes on one
side of it. Messages are updated node by node as in TRW-S (Kolmogorov 2006), shares tensor by tensor:
what a pair can do without goes to the readers that need it. Nodes of equal ops are updated together
as rows of one array: the layers of a deep model cost one NumPy call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoddl.search.problem import Edge, Floats, Ints, Problem

PRODUCER, READER = 0, 1  # the two ends of a pair
_TIGHT = 1e-12  # relative to the bound; less slack than that is none

Compressed = tuple[Floats, Ints, tuple[Ints, ...]]


@dataclass(frozen=True, eq=False)
class _Ends:
    """The pairs that a batch tells something in one direction, for one side.

    `row` of the batch and `slot` of its ends, `pair`; `mine` and `other` are message numbers.
    """

    side: int
    row: Ints
    slot: Ints
    pair: Ints
    mine: Ints
    other: Ints


@dataclass(frozen=True, eq=False)
class _Batch:
    """Nodes with equal costs that touch equal tensors in equal ways and not each other.

    `cost` [nodes, choices], infinite for choices that have been dropped. Each node has the same
    number of ends; `ends` [nodes, ends] are their messages, `states` [ends, choices] the state of
    the tensor under each choice. `order` sorts the choices of all ends by state, `starts` are where
    each of `present` (positions in [ends, states]) begins in it. `later` [nodes, ends] tells whether
    the node at the other end comes later; `part` and `rest` [direction][nodes] how much of its cost
    a node lends to each pair on that side, and what it keeps.
    """

    nodes: Ints
    cost: Floats
    ends: Ints
    states: Ints
    order: Ints
    starts: Ints
    present: Ints
    later: npt.NDArray[np.bool_]
    part: Floats
    rest: tuple[Floats, Floats]
    tells: tuple[tuple[_Ends, ...], tuple[_Ends, ...]]


class Dual:
    """The relaxation of one problem; `byte_s` prices memory (a Lagrange multiplier, in s/B).

    Pair p has messages p (to its producer) and p + pairs (to its reader), each [states].
    """

    def __init__(
        self,
        problem: Problem,
        *,
        byte_s: float = 0.0,
        most_s: float = np.inf,
        before: Dual | None = None,
        edges: Sequence[int | None] | None = None,
    ) -> None:
        """Start with the shares and messages of `before`, if given.

        That is a relaxation of the same problem with more choices, or of one whose edge `edges[e]`
        stands for edge e. `most_s` is more than what the best plan costs: what is not possible
        (infinite) is as good as that.
        """
        self.problem, self.byte_s, self.most_s = problem, byte_s, most_s
        self._pairs(problem)
        count, states = len(self.shares), self.shares.shape[1]
        self.messages = np.zeros((2 * count, states))
        self.lent = np.full((2 * count, states), np.inf)
        if before is not None:
            self._carry(before, range(len(problem.edges)) if edges is None else edges)
        self.batches = self._batches(problem)
        self.forward = True
        for batch in self.batches:
            self._lend(batch, True)

    def _pairs(self, problem: Problem) -> None:
        """Number the pairs; share prices equally."""
        shared: dict[object, Compressed] = {}
        found = [compressed(edge, shared) for edge in problem.edges]
        states = max((len(cost) for cost, _, _ in found), default=1)
        self.first = np.cumsum([0, *(len(edge.readers) for edge in problem.edges)])
        self.occurring = [occurring for _, occurring, _ in found]
        self.states = [mine for _, _, mine in found]
        self.shares = np.full((int(self.first[-1]), states, states), 0.0)
        groups: dict[tuple[int, int], list[int]] = {}
        for index, (cost, _, _) in enumerate(found):
            groups.setdefault((id(cost), len(problem.edges[index].readers)), []).append(index)
        for (_, readers), edges in groups.items():
            cost = np.minimum(found[edges[0]][0], self.most_s)
            pairs = self.first[edges][:, None] + np.arange(readers)
            self.shares[pairs.ravel(), : len(cost), : len(cost)] = cost / readers
        self.joint = {
            readers: np.concatenate([self.first[e] for (_, r), e in groups.items() if r == readers])[
                :, None
            ]
            + np.arange(readers)
            for readers in {r for _, r in groups if r > 1}
        }

    def _carry(self, before: Dual, edges: Sequence[int | None]) -> None:
        """Take over shares and messages; every state here occurs there as well."""
        old_count, count = len(before.shares), len(self.shares)
        for index, same in enumerate(edges):
            if same is None:
                continue
            states, here, there = self.occurring[index], self.first[index], before.first[same]
            left, size = np.searchsorted(before.occurring[same], states), len(states)
            readers = self.first[index + 1] - here
            old = before.shares[there : there + readers]
            self.shares[here : here + readers, :size, :size] = old[:, left][:, :, left]
            for shift, old_shift in ((0, 0), (count, old_count)):
                told = before.messages[old_shift + there : old_shift + there + readers]
                self.messages[shift + here : shift + here + readers, :size] = told[:, left]

    def bound(self) -> float:
        """Return seconds that no assignment stays below."""
        nodes = sum(
            float((batch.rest[self.forward] * self._total(batch).min(axis=1)).sum())
            for batch in self.batches
        )
        return nodes + float(self._remaining().min(axis=(1, 2)).sum())

    def ascend(self, rounds: int) -> float:
        """Improve the bound by so many rounds and return it; it never falls."""
        tight = _TIGHT * max(1e-9, abs(self.bound()))
        for _ in range(rounds):
            for forward in (True, False):
                self.forward = forward
                for batch in self.batches if forward else reversed(self.batches):
                    self._tell(batch, forward)
                self._share_out(tight)
        return self.bound()

    def prices(self) -> Floats:
        """Return what each pair would pay alone [pairs, s, w]."""
        found = self.shares.copy()
        for pairs in self.joint.values():
            found[pairs] = self.shares[pairs].sum(axis=1, keepdims=True)
        return found

    def reduced(self) -> Floats:
        """Return what each pair costs beyond its part of the bound [pairs, s, w], >= 0."""
        left = self._remaining()
        return left - left.min(axis=(1, 2), keepdims=True)

    def unary(self) -> list[Floats]:
        """Return what each choice costs its node beyond its part of the bound, >= 0, by node."""
        found: list[Floats] = [np.zeros(0)] * len(self.problem.nodes)
        for batch in self.batches:
            for node, row in zip(batch.nodes, self._own(batch), strict=True):
                found[node] = row
        return found

    def excess(self) -> list[Floats]:
        """Return for every node and choice what a plan with it costs at least beyond the bound."""
        left = self.reduced()
        ends = np.concatenate([left.min(axis=2), left.min(axis=1)])
        found: list[Floats] = [np.zeros(0)] * len(self.problem.nodes)
        for batch in self.batches:
            value = self._own(batch) + ends[batch.ends[:, :, None], batch.states].sum(axis=1)
            for node, row in zip(batch.nodes, value, strict=True):
                found[node] = row
        return found

    def _own(self, batch: _Batch) -> Floats:
        """Return θ less what is lent, beyond its least [nodes, choices]; infinite for the dropped."""
        total = self._total(batch)
        dropped = np.isinf(total)
        total[dropped] = 0.0
        lent = self.lent[batch.ends[:, :, None], batch.states]
        value = total - np.where(dropped[:, None], 0.0, lent).sum(axis=1)
        value[dropped] = np.inf
        return np.maximum(value - value.min(axis=1, keepdims=True), 0.0)

    def drop(self, kept: Sequence[Ints]) -> None:
        """Leave only the `kept` choices of every node."""
        for batch in self.batches:
            dropped = np.ones(batch.cost.shape, dtype=bool)
            for row, node in enumerate(batch.nodes):
                dropped[row, kept[node]] = False
            batch.cost[dropped] = np.inf
        for batch in self.batches:
            self._lend(batch, self.forward)

    def _total(self, batch: _Batch) -> Floats:
        """Return θ [nodes, choices] with all messages."""
        told: Floats = self.messages[batch.ends[:, :, None], batch.states]
        return batch.cost + told.sum(axis=1)

    def _by_state(self, batch: _Batch, values: Floats) -> Floats:
        """Return the least of `values` [nodes, choices] by end and state; infinite without any."""
        ends, states = len(batch.states), self.messages.shape[1]
        found = np.full((len(values), ends * states), np.inf)
        if ends:
            ordered = values[:, batch.order]
            found[:, batch.present] = np.minimum.reduceat(ordered, batch.starts, axis=1)
        return found.reshape(len(values), ends, states)

    def _lend(self, batch: _Batch, forward: bool) -> Floats:
        """Lend to the pairs on one side; return what each end could lend [nodes, ends, states]."""
        mine = self._by_state(batch, self._total(batch) * batch.part[:, None])
        none = np.where(np.isinf(mine), np.inf, 0.0)
        self.lent[batch.ends] = np.where((batch.later == forward)[:, :, None], mine, none)
        return mine

    def _tell(self, batch: _Batch, forward: bool) -> None:
        """Lend to the pairs with later (or earlier) nodes, and tell those nodes."""
        lent = self._lend(batch, forward)
        for ends in batch.tells[forward]:
            value = lent[ends.row, ends.slot] - self.messages[ends.mine]
            shares = self.shares[ends.pair]
            if ends.side == PRODUCER:
                message = (shares + value[:, :, None]).min(axis=1)
            else:
                message = (shares + value[:, None, :]).min(axis=2)
            self.messages[ends.other] = message - message.min(axis=1, keepdims=True)

    def _remaining(self) -> Floats:
        """Return φ + γ·θ [pairs, s, w], infinite where a state is absent."""
        count = len(self.shares)
        free = self.lent - self.messages
        return self.shares + free[:count, :, None] + free[count:, None, :]

    def _share_out(self, tight: float) -> None:
        """Give what pairs can do without to the readers of the same tensor that need it."""
        count = len(self.shares)
        free = self.lent - self.messages
        for pairs in self.joint.values():
            shares = self.shares[pairs]
            left = shares + free[pairs][..., None] + free[pairs + count][:, :, None, :]
            slack = left - left.min(axis=(2, 3), keepdims=True)
            spare = np.minimum(slack, shares)
            needs = slack <= tight
            needy = needs.sum(axis=1, keepdims=True)
            freed = spare.sum(axis=1, keepdims=True)
            equal = freed / pairs.shape[1]
            self.shares[pairs] = (
                shares - spare + np.where(needy > 0, needs * freed / np.maximum(needy, 1), equal)
            )

    def _batches(self, problem: Problem) -> tuple[_Batch, ...]:
        ends = self._ends(problem)
        beside: list[set[int]] = [set() for _ in problem.nodes]
        for edge in problem.edges:
            for reader, _ in edge.readers:
                beside[edge.producer].add(reader)
                beside[reader].add(edge.producer)
        groups: list[list[int]] = []
        known: dict[object, list[int]] = {}
        place = np.full(len(problem.nodes), -1)
        for index, node in enumerate(problem.nodes):
            looks = tuple((side, id(states)) for side, _, states, _ in ends[index])
            candidates = known.setdefault((id(node.compute_s), id(node.memory_bytes), looks), [])
            taken = {place[other] for other in beside[index]}
            group = next((g for g in candidates if g not in taken), len(groups))
            if group == len(groups):
                groups.append([])
                candidates.append(group)
            groups[group].append(index)
            place[index] = group
        return tuple(self._batch(problem, nodes, [ends[n] for n in nodes], place) for nodes in groups)

    def _ends(self, problem: Problem) -> list[list[tuple[int, int, Ints, int]]]:
        """Return for each node its ends: side, pair, states by choice, node at the other end."""
        ends: list[list[tuple[int, int, Ints, int]]] = [[] for _ in problem.nodes]
        for index, edge in enumerate(problem.edges):
            source, *wanted = self.states[index]
            for number, ((node, _), states) in enumerate(zip(edge.readers, wanted, strict=True)):
                pair = int(self.first[index]) + number
                ends[edge.producer].append((PRODUCER, pair, source, node))
                ends[node].append((READER, pair, states, edge.producer))
        return ends

    def _batch(
        self, problem: Problem, nodes: list[int],
        ends: list[list[tuple[int, int, Ints, int]]], place: Ints,
    ) -> _Batch:  # fmt: skip
        first, count, width = problem.nodes[nodes[0]], len(self.shares), self.messages.shape[1]
        cost = np.tile(first.compute_s + self.byte_s * first.memory_bytes, (len(nodes), 1))
        states = np.array([end[2] for end in ends[0]], dtype=np.int64).reshape(-1, cost.shape[1])
        sides = np.array([end[0] for end in ends[0]], dtype=np.int64)
        pairs = np.array([[end[1] for end in row] for row in ends], dtype=np.int64)
        pairs = pairs.reshape(len(nodes), len(sides))
        others = np.array([[end[3] for end in row] for row in ends], dtype=np.int64)
        later = place[others.reshape(pairs.shape)] > place[nodes[0]]
        order = np.argsort(states, axis=1, kind="stable")
        place_of = (np.take_along_axis(states, order, axis=1) + width * np.arange(len(sides))[:, None])
        present, starts = np.unique(place_of.ravel(), return_index=True)
        ahead, behind = later.sum(axis=1), (~later).sum(axis=1)
        part = 1.0 / np.maximum(1, np.maximum(ahead, behind))

        def tells(forward: bool) -> tuple[_Ends, ...]:
            found = []
            for side in (PRODUCER, READER):
                row, slot = np.nonzero((later == forward) & (sides == side))
                pair = pairs[row, slot]
                mine, other = pair + side * count, pair + (1 - side) * count
                if len(row):
                    found.append(_Ends(side, row, slot, pair, mine, other))
            return tuple(found)

        return _Batch(
            np.array(nodes), cost, pairs + sides * count, states,
            order.ravel(), starts, present, later,
            part, (1.0 - part * behind, 1.0 - part * ahead), (tells(False), tells(True)),
        )  # fmt: skip


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
