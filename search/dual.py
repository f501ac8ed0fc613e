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
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from autoddl.search.problem import Edge, Floats, Ints, Problem

PRODUCER = -1  # the role of a slot that makes its tensor; readers have their number
_TIGHT = 1e-12  # relative to the bound; less slack than that is none

Bools = npt.NDArray[np.bool_]
Compressed = tuple[Floats, Ints, tuple[Ints, ...]]


@dataclass(eq=False)
class Kind:
    """Tensors with one table and one number of readers, as rows.

    `cost` are the prices among those `states` of the table that occur. `shares` [tensors, readers, s,
    w] (one row for all where there is one reader), messages to the producer [tensors, readers, s] and
    to the readers [tensors, readers, w]; `lent_*` is what the node at that end lends, by state:
    infinite for states that it never has.
    """

    cost: Floats
    states: Ints
    readers: int
    edges: list[int] = field(default_factory=list)
    shares: Floats = field(init=False)
    to_producer: Floats = field(init=False)
    to_reader: Floats = field(init=False)
    lent_producer: Floats = field(init=False)
    lent_reader: Floats = field(init=False)

    def start(self) -> None:
        """Share prices equally; no messages yet."""
        count, states = len(self.edges), len(self.cost)
        rows = count if self.readers > 1 else 1
        share = self.cost / self.readers
        self.shares = np.broadcast_to(share, (rows, self.readers, states, states)).copy()
        self.to_producer = np.zeros((count, self.readers, states))
        self.to_reader = np.zeros((count, self.readers, states))
        self.lent_producer = np.full((count, self.readers, states), np.inf)
        self.lent_reader = np.full((count, self.readers, states), np.inf)

    def remaining(self) -> Floats:
        """Return φ + γ·θ [tensors, readers, s, w], infinite where a state is absent."""
        left = self.shares + (self.lent_producer - self.to_producer)[..., None]
        left += (self.lent_reader - self.to_reader)[:, :, None, :]
        return left

    def share_out(self, tight: float) -> None:
        """Give what pairs can do without to the readers of the same tensor that need it."""
        if self.readers == 1:
            return
        left = self.remaining()
        slack = left - left.min(axis=(2, 3), keepdims=True)
        spare = np.minimum(slack, self.shares)
        needs = slack <= tight
        needy = needs.sum(axis=1, keepdims=True)
        freed = spare.sum(axis=1, keepdims=True)
        extra = np.where(needy > 0, needs * freed / np.maximum(needy, 1), freed / self.readers)
        self.shares += extra - spare

    def carry(self, old: Kind, rows: Ints, old_rows: Ints) -> None:
        """Take over the shares and messages of tensors that had more states."""
        states = np.searchsorted(old.states, self.states)
        self.to_producer[rows] = old.to_producer[old_rows][:, :, states]
        self.to_reader[rows] = old.to_reader[old_rows][:, :, states]
        if self.readers > 1:
            self.shares[rows] = old.shares[old_rows][:, :, states][:, :, :, states]


@dataclass(frozen=True, eq=False)
class Slot:
    """Where a batch of nodes touches tensors: node i of the batch is at row `rows[i]` of `kind`.

    `order` sorts the choices by state, `starts` are where each of `present` begins in it. `later`
    [nodes, readers of the pairs] tells whether the node at the other end comes later.
    """

    kind: Kind
    role: int
    states: Ints
    rows: Ints
    order: Ints
    starts: Ints
    present: Ints
    later: Bools

    @property
    def readers(self) -> Sequence[int]:
        """Return the readers of the pairs that the nodes are in."""
        return range(self.kind.readers) if self.role == PRODUCER else (self.role,)

    def by_state(self, values: Floats) -> Floats:
        """Return the least of `values` [nodes, choices] for every state, infinite where none has it."""
        found = np.full((len(values), len(self.kind.cost)), np.inf)
        found[:, self.present] = np.minimum.reduceat(values[:, self.order], self.starts, axis=1)
        return found


@dataclass(frozen=True, eq=False)
class Batch:
    """Nodes with equal costs that touch equal tensors in equal ways and not each other."""

    nodes: Ints
    cost: Floats
    slots: tuple[Slot, ...]

    def total(self) -> Floats:
        """Return θ [nodes, choices] with all messages."""
        total = np.broadcast_to(self.cost, (len(self.nodes), len(self.cost))).copy()
        for slot in self.slots:
            kind = slot.kind
            if slot.role == PRODUCER:
                total += kind.to_producer[slot.rows].sum(axis=1)[:, slot.states]
            else:
                total += kind.to_reader[slot.rows, slot.role][:, slot.states]
        return total

    def weight(self, forward: bool) -> tuple[Floats, Floats]:
        """Return [nodes]: the part γ that each pair gets, and what is left for the node."""
        each = len(self.nodes)
        ahead = np.add.reduce([np.zeros(each), *(s.later.sum(axis=1) for s in self.slots)])
        ends = sum(slot.later.shape[1] for slot in self.slots)
        part = 1.0 / np.maximum(1, np.maximum(ahead, ends - ahead))
        return part, 1.0 - part * (ahead if forward else ends - ahead)

    def send(self, forward: bool, tell: bool = True) -> None:
        """Lend to the pairs with later (or earlier) nodes, and tell those nodes unless not to."""
        part, _ = self.weight(forward)
        total = self.total() * part[:, None]
        for slot in self.slots:
            kind, mine = slot.kind, slot.by_state(total)
            none = np.where(np.isinf(mine), np.inf, 0.0)
            produces = slot.role == PRODUCER
            lent = kind.lent_producer if produces else kind.lent_reader
            back = kind.to_producer if produces else kind.to_reader
            other = kind.to_reader if produces else kind.to_producer
            for column, reader in enumerate(slot.readers):
                to_it = slot.later[:, column] == forward
                lent[slot.rows, reader] = np.where(to_it[:, None], mine, none)
                chosen = np.flatnonzero(to_it)
                if not tell or not len(chosen):
                    continue
                rows = slot.rows[chosen]
                shares = kind.shares[rows if kind.readers > 1 else [0], reader]
                value = mine[chosen] - back[rows, reader]
                if produces:
                    message = (shares + value[:, :, None]).min(axis=1)
                else:
                    message = (shares + value[:, None, :]).min(axis=2)
                other[rows, reader] = message - message.min(axis=1, keepdims=True)

    def bound(self, forward: bool) -> float:
        """Return the nodes' part of the bound."""
        return float((self.weight(forward)[1] * self.total().min(axis=1)).sum())

    def excess(self, forward: bool) -> Floats:
        """Return what each choice costs at least beyond the bound [nodes, choices]."""
        part, rest = self.weight(forward)
        total = self.total()
        found: Floats = rest[:, None] * (total - total.min(axis=1, keepdims=True))
        for slot in self.slots:
            left = slot.kind.remaining()[slot.rows]
            left -= left.min(axis=(2, 3), keepdims=True)
            for column, reader in enumerate(slot.readers):
                pair = left[:, reader].min(axis=2 if slot.role == PRODUCER else 1)
                found += pair[:, slot.states]
                lends = part * (slot.later[:, column] == forward)
                found += lends[:, None] * (total - slot.by_state(total)[:, slot.states])
        return found


class Dual:
    """The relaxation of one problem; `byte_s` prices memory (a Lagrange multiplier, in s/B)."""

    def __init__(
        self, problem: Problem, *, byte_s: float = 0.0, before: Dual | None = None
    ) -> None:
        self.problem, self.byte_s = problem, byte_s
        self.kinds: list[Kind] = []
        self.place: list[tuple[Kind, int]] = []
        ends = self._kinds(problem)
        for kind in self.kinds:
            kind.start()
        if before is not None:
            self._carry(before)
        self.batches = self._batches(problem, ends)
        self.forward = True
        for batch in self.batches:
            batch.send(True, tell=False)

    def bound(self) -> float:
        """Return seconds that no assignment stays below."""
        nodes = sum(batch.bound(self.forward) for batch in self.batches)
        return nodes + sum(float(k.remaining().min(axis=(2, 3)).sum()) for k in self.kinds)

    def ascend(self, rounds: int) -> float:
        """Improve the bound by so many rounds and return it; it never falls."""
        tight = _TIGHT * max(1e-9, abs(self.bound()))
        for _ in range(rounds):
            for forward in (True, False):
                self.forward = forward
                for batch in self.batches if forward else reversed(self.batches):
                    batch.send(forward)
                for kind in self.kinds:
                    kind.share_out(tight)
        return self.bound()

    def excess(self) -> list[Floats]:
        """Return for every node and choice what a plan with it costs at least beyond the bound."""
        found: list[Floats] = [np.zeros(0)] * len(self.problem.nodes)
        for batch in self.batches:
            for node, excess in zip(batch.nodes, batch.excess(self.forward), strict=True):
                found[node] = excess
        return found

    def _kinds(self, problem: Problem) -> list[list[tuple[Kind, int, Ints, int]]]:
        """Sort the tensors into kinds; return for each node where it touches them."""
        kinds: dict[tuple[int, int], Kind] = {}
        shared: dict[object, Compressed] = {}
        ends: list[list[tuple[Kind, int, Ints, int]]] = [[] for _ in problem.nodes]
        for index, edge in enumerate(problem.edges):
            cost, occurring, states = compressed(edge, shared)
            key = id(cost), len(edge.readers)
            if key not in kinds:
                kinds[key] = Kind(cost, occurring, len(edge.readers))
            kind, row = kinds[key], len(kinds[key].edges)
            kind.edges.append(index)
            self.place.append((kind, row))
            ends[edge.producer].append((kind, PRODUCER, states[0], row))
            for role, ((node, _), mine) in enumerate(zip(edge.readers, states[1:], strict=True)):
                ends[node].append((kind, role, mine, row))
        self.kinds = list(kinds.values())
        return ends

    def _carry(self, before: Dual) -> None:
        for kind in self.kinds:
            groups: dict[int, tuple[Kind, list[int], list[int]]] = {}
            for row, edge in enumerate(kind.edges):
                old, old_row = before.place[edge]
                _, rows, old_rows = groups.setdefault(id(old), (old, [], []))
                rows.append(row)
                old_rows.append(old_row)
            for old, rows, old_rows in groups.values():
                kind.carry(old, np.array(rows), np.array(old_rows))

    def _batches(
        self, problem: Problem, ends: list[list[tuple[Kind, int, Ints, int]]]
    ) -> tuple[Batch, ...]:
        beside: list[set[int]] = [set() for _ in problem.nodes]
        for edge in problem.edges:
            for reader, _ in edge.readers:
                beside[edge.producer].add(reader)
                beside[reader].add(edge.producer)
        groups: list[list[int]] = []
        known: dict[object, list[int]] = {}
        place = [-1] * len(problem.nodes)
        for index, node in enumerate(problem.nodes):
            slots = tuple((id(kind), role, id(states)) for kind, role, states, _ in ends[index])
            candidates = known.setdefault((id(node.compute_s), id(node.memory_bytes), slots), [])
            taken = {place[other] for other in beside[index]}
            group = next((g for g in candidates if g not in taken), len(groups))
            if group == len(groups):
                groups.append([])
                candidates.append(group)
            groups[group].append(index)
            place[index] = group
        return tuple(
            self._batch(problem, nodes, [ends[n] for n in nodes], place) for nodes in groups
        )

    def _batch(
        self, problem: Problem, nodes: list[int],
        ends: list[list[tuple[Kind, int, Ints, int]]], place: list[int],
    ) -> Batch:  # fmt: skip
        here = place[nodes[0]]
        slots = []
        for number, (kind, role, states, _) in enumerate(ends[0]):
            rows = np.array([end[number][3] for end in ends])
            edges = [problem.edges[kind.edges[row]] for row in rows]
            others = [
                [n for n, _ in e.readers] if role == PRODUCER else [e.producer] for e in edges
            ]
            later = np.array([[place[n] > here for n in row] for row in others])
            order = np.argsort(states, kind="stable")
            present, starts = np.unique(states[order], return_index=True)
            slots.append(Slot(kind, role, states, rows, order, starts, present, later))
        first = problem.nodes[nodes[0]]
        cost = first.compute_s + self.byte_s * first.memory_bytes
        return Batch(np.array(nodes), cost, tuple(slots))


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
