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

import numpy as np

from autoddl.search.batches import batches
from autoddl.search.ends import Ends
from autoddl.search.problem import Floats, Ints, Problem
from autoddl.search.sharing import (
    FEW_READERS,
    many_readers,
    seen_by_producer,
    seen_by_reader,
)
from autoddl.search.terms import (
    Batch,
    Compressed,
    Fold,
    Pull,
    Term,
    Terms,
    compressed,
    pull_of,
    reader_groups,
)

FASTEST = 0.9  # so much of the last round's move do messages repeat at most before the next


class Dual:
    """The relaxation of one problem; `byte_s` prices memory (a Lagrange multiplier, in s/B)."""

    def __init__(
        self,
        problem: Problem,
        *,
        byte_s: float = 0.0,
        most_s: float = np.inf,
        fold: Fold | None = None,
        before: Dual | None = None,
        ends: Ends | None = None,
        wide: bool = False,
    ) -> None:
        """Start with the messages of `before`, if given: of the same problem with more choices.

        Or of another one: at each of our edges, `ends` has for the producer and each reader which end
        of which of its edges stands for that (see shorten.Shortened). With a `fold` it is the
        relaxation of the whole problem of which `problem` has a part of the layers. `most_s` is more
        than what the best plan costs: what is not possible (infinite) is as good as that. In a `wide`
        relaxation terms have as many readers as can be; its bound is better where tensors have many,
        its rounds take longer.
        """
        self.problem, self.byte_s, self.most_s, self.fold = problem, byte_s, most_s, fold
        self.wide = wide
        self._terms(problem)
        self._copies(fold)
        shape = self.count, max((len(cost) for cost in self.prices), default=1)
        self.messages, self.lent = np.zeros(shape), np.full(shape, np.inf)
        if before is not None:
            self._carry(before, ends)
        self.batches = batches(
            problem, self.terms, self.alike, self.states, byte_s=byte_s, width=shape[1]
        )
        self.forward: bool = before is None or before.forward
        self.stop()
        for batch in self.batches:
            self._lend(batch)

    def stop(self) -> None:
        """Forget in which direction messages move: the next round is one without momentum."""
        self.past: Floats | None = None
        self.moves = 0

    def _terms(self, problem: Problem) -> None:
        """Make the terms, number their ends, and collect prices [tables, s, w]."""
        shared: dict[object, Compressed] = {}
        self.occurring = self._occurring(problem)
        pairs = zip(problem.edges, self.occurring, strict=True)
        found = [compressed(*pair, shared) for pair in pairs]
        self.states = [states for _, states in found]
        self.terms: list[Term] = []
        self.count = 0  # of ends
        self.prices: list[Floats] = []  # tables [s, w]
        self.end_at: dict[tuple[int, int, int], int] = {}  # by edge, position, group of readers
        tables: dict[tuple[int, float], int] = {}
        for index, (cost, states) in enumerate(found):
            for group, readers in enumerate(self._groups(index)):
                key = id(cost), len(readers) / (len(states) - 1)
                if key not in tables:
                    tables[key] = len(self.prices)
                    self.prices.append(np.minimum(cost, self.most_s) * key[1])
                at = tuple((index, i) for i in (0, *(reader + 1 for reader in readers)))
                ends = self.count + np.arange(len(at))
                self.terms.append(Term(at, group, tables[key], ends))
                for (edge, position), end in zip(at, ends.tolist(), strict=True):
                    self.end_at[edge, position, group] = end
                self.count += len(at)

    def _groups(self, edge: int) -> list[tuple[int, ...]]:
        """Return the readers of an edge's terms."""
        most = many_readers(len(self.occurring[edge])) if self.wide else FEW_READERS
        return reader_groups(len(self.problem.edges[edge].readers), most)

    def _occurring(self, problem: Problem) -> list[Ints]:
        """Return which states occur at each edge, or at one whose ends stand for the same."""
        found = [
            np.unique(np.concatenate([e.source, *(states for _, states in e.readers)]))
            for e in problem.edges
        ]
        for edges in self.fold.edges if self.fold is not None else ():
            if len(set(edges)) > 1:
                both = np.unique(np.concatenate([found[e] for e in edges]))
                for edge in edges:
                    found[edge] = both
        return found

    def _copies(self, fold: Fold | None) -> None:
        """Note how often nodes and terms occur, `alike` by table and number of readers."""
        found: dict[tuple[int, ...], int] = defaultdict(int)
        self.weight = np.ones(len(self.problem.nodes))
        if fold is None:
            found.update((tuple(t.ends.tolist()), 1) for t in self.terms)
        else:
            self.weight = np.array(fold.copies, dtype=float)
            for edges, count in fold.edges.items():
                for group, readers in enumerate(self._groups(edges[0])):
                    at = [(edges[i], i, group) for i in (0, *(reader + 1 for reader in readers))]
                    found[tuple(self.end_at[key] for key in at)] += count
        table_of = np.repeat([t.table for t in self.terms], [len(t.ends) for t in self.terms])
        groups: dict[tuple[int, int], list[tuple[int, ...]]] = defaultdict(list)
        for ends in found:
            groups[len(ends), int(table_of[ends[0]])].append(ends)
        self.alike = []
        for (_, table), rows in groups.items():
            counts = np.array([float(found[row]) for row in rows])
            self.alike.append(Terms(np.array(rows), self.prices[table][None], counts))

    def _carry(self, before: Dual, ends: Ends | None) -> None:
        """Take over messages, where there is such an end and state."""
        for term in self.terms:
            for (edge, position), end in zip(term.at, term.ends.tolist(), strict=True):
                same = (edge, position) if ends is None else ends.at(edge, position)
                if same is None:
                    continue
                states, known = self.occurring[edge], before.occurring[same[0]]
                column = np.minimum(np.searchsorted(known, states), len(known) - 1)
                there = before.told(*same, term.group, len(self._groups(edge)))[column]
                self.messages[end, : len(states)] = np.where(known[column] == states, there, 0.0)

    def told(self, edge: int, position: int, group: int, groups: int) -> Floats:
        """Return the message of an end, which may be one of another number of groups of readers."""
        here = [
            self.end_at[edge, position, g]
            for g in range(len(self._groups(edge)))
            if (edge, position, g) in self.end_at
        ]
        if position == 0 and len(here) == groups:
            return np.asarray(self.messages[here[group]])
        share = 1 / groups if position == 0 else 1.0
        return np.asarray(share * self.messages[here].sum(axis=0))

    def bound(self) -> float:
        """Return seconds that no assignment (of the whole problem) stays below."""
        found = 0.0
        for batch in self.batches:
            kept = self.weight[batch.nodes] * batch.rest[self.forward]
            found += float((kept * self._total(batch).min(axis=1)).sum())
        for parts, terms in zip(self.parts(), self.alike, strict=True):
            found += float((parts * terms.count).sum())
        return found

    def parts(self) -> list[Floats]:
        """Return what each term adds to the bound, in the order of `alike`."""
        free, found = self.lent - self.messages, []
        for terms in self.alike:
            here = free[terms.ends][..., : terms.cost.shape[1]]
            least = seen_by_producer(terms.cost, here[:, 1:])
            found.append((least + here[:, 0]).min(axis=1))
        return found

    def parts_by_term(self) -> Floats:
        """Return what each of `terms` adds to the bound; without a fold."""
        first = {int(term.ends[0]): number for number, term in enumerate(self.terms)}
        found = np.zeros(len(self.terms))
        for terms, parts in zip(self.alike, self.parts(), strict=True):
            found[[first[end] for end in terms.ends[:, 0].tolist()]] = parts
        return found

    def ascend(self, rounds: int) -> float:
        """Improve the bound by so many rounds and return it; from the second one on with momentum.

        Before each of them messages go on in the direction of the last one (as in Nesterov 1983). Where
        they creep that takes far fewer rounds, but the bound may fall on the way. Without momentum
        it never does but in a fold, whose rounds are no exact ascent: there is none there.
        """
        for _ in range(rounds):
            here = self.messages.copy()
            if self.past is not None:
                speed = min(self.moves / (self.moves + 3), FASTEST)
                self.messages += speed * (here - self.past)
                for batch in self.batches:
                    self._lend(batch)
            if self.fold is None:
                self.past = here
                self.moves += 1
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
        found = [0] * len(self.problem.nodes)
        for batch in self.batches:
            for pull in batch.pulls[True]:
                told[pull.mine, : pull.cost.shape[1]] = self._mean(pull, pull.share, free)
            total = batch.cost + told.take(batch.slots).sum(axis=1)
            choice = total.argmin(axis=1)
            for node, mine in zip(batch.nodes.tolist(), choice.tolist(), strict=True):
                found[node] = mine
            free[batch.ends] = np.inf
            slots = np.arange(len(batch.states))
            free[batch.ends, batch.states[slots, choice[:, None]]] = 0.0
        return found

    def excess(self) -> list[Floats]:
        """Return for every node and choice what a plan with it costs at least beyond the bound."""
        slack = np.full(self.messages.shape, np.inf)
        free = self.lent - self.messages
        for terms in self.alike:
            for column in range(terms.ends.shape[1]):
                rows = np.arange(len(terms.ends))
                value = self._seen(pull_of(terms, rows, np.full(len(rows), column)), free)
                states = value.shape[1]
                value += free[terms.ends[:, column], :states]
                value -= value.min(axis=1, keepdims=True)
                for end, row in zip(terms.ends[:, column], value, strict=True):
                    np.minimum(slack[end, :states], row, out=slack[end, :states])
        found: list[Floats] = [np.zeros(0)] * len(self.problem.nodes)
        for batch in self.batches:
            mine = slack.take(batch.slots) * batch.once[:, None]
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

    def drop(self, kept: Sequence[Ints]) -> list[Ints]:
        """Leave only the `kept` choices of every node; return which ones some equal node still has."""
        found: list[Ints] = [np.zeros(0, dtype=np.int64)] * len(self.problem.nodes)
        for batch in self.batches:
            dropped = np.ones(batch.cost.shape, dtype=bool)
            for row, node in enumerate(batch.nodes):
                dropped[row, kept[node]] = False
            batch.cost[dropped] = np.inf
            self._lend(batch)
            some = np.flatnonzero(~dropped.all(axis=0))
            for node in batch.nodes:
                found[node] = some
        return found

    def price_memory(self, byte_s: float) -> None:
        """Give memory another price."""
        self.stop()
        for batch in self.batches:
            held = self.problem.nodes[batch.nodes[0]].memory_bytes
            batch.cost[:] += (byte_s - self.byte_s) * held
            self._lend(batch)
        self.byte_s = byte_s

    def _own(self, batch: Batch) -> Floats:
        """Return θ less what is lent, beyond its least [nodes, choices]; infinite for the dropped."""
        total = self._total(batch)
        dropped = np.isinf(total)
        total[dropped] = 0.0
        lent = self.lent.take(batch.slots)
        value = total - np.where(dropped[:, None], 0.0, lent).sum(axis=1)
        value[dropped] = np.inf
        found: Floats = np.maximum(value - value.min(axis=1, keepdims=True), 0.0)
        return found

    def _total(self, batch: Batch) -> Floats:
        """Return θ [nodes, choices] with all messages."""
        total: Floats = np.add.reduce(self.messages.take(batch.slots), axis=1)
        total += batch.cost
        return total

    def _lend(self, batch: Batch) -> None:
        """Lend to the tensors that nodes on one side touch as well; elsewhere states are free."""
        if not len(batch.states):
            return
        total = self._total(batch)
        total *= batch.part[:, None]
        least = np.minimum.reduceat(total.take(batch.order, axis=1), batch.starts, axis=1)
        stays = batch.lends[self.forward] | np.isinf(least)
        self.lent.put(batch.present, np.where(stays, least, 0.0))

    def _pull(self, pull: Pull) -> None:
        """Move what tensors can give to the nodes of these ends."""
        self.messages[pull.mine, : pull.cost.shape[1]] = self._mean(pull, pull.weight)

    def _mean(self, pull: Pull, weight: Floats, free: Floats | None = None) -> Floats:
        """Return what each end gets of its terms [ends, states], 0 for some state."""
        seen = self._seen(pull, free)
        seen -= np.minimum.reduce(seen, axis=1, keepdims=True)
        if len(pull.mine) == len(seen):
            return seen
        mean: Floats = np.add.reduceat(seen * weight[:, None], pull.starts)
        return mean

    def _seen(self, pull: Pull, free: Floats | None = None) -> Floats:
        """Return the least that terms cost by the state of one end [terms, states].

        `free` [all ends, states] is what the others are lent less what they were told.
        """
        states = pull.cost.shape[1]

        def at(ends: Ints) -> Floats:
            if free is not None:
                return free[ends, :states]
            found: Floats = self.lent.take(ends, axis=0)
            found -= self.messages.take(ends, axis=0)
            return found[..., :states]

        if pull.source is None:
            return seen_by_producer(pull.cost, at(pull.wants))
        return seen_by_reader(pull.cost, at(pull.source), at(pull.wants))
