"""A lower bound for all plans, and for all plans with a given choice: dual ascent.

The cost network has a term for every node and one for every tensor, which hangs on the states that
its producer and its readers have chosen. Any messages that move cost between a tensor and its nodes
leave

    Σ_nodes (1 − Σ γ)·min_x θ(x)  +  Σ_tensors min [cost of the tensor − messages + γ·θ of its nodes]

a lower bound, where each node lends a part γ of its cost θ to tensors that it shares with nodes on
one side of it. Messages are updated node by node as in SRMP (Kolmogorov 2015), which is TRW-S for
terms of more than two nodes; what a tensor can take over is computed exactly (sweeps.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from itertools import pairwise

import numpy as np

from autoddl.search import sweeps
from autoddl.search.ends import Ends
from autoddl.search.network import Contacts, Whole, network, repriced
from autoddl.search.problem import Floats, Ints, Problem
from autoddl.search.terms import Fold, Terms

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
        self.terms = Terms(problem.edge_columns, fold=fold, most_s=most_s, wide=wide)
        terms, nodes = self.terms, problem.node_columns
        choices = np.array([len(form.choices) for form in nodes.forms], dtype=np.int64)[nodes.form]
        copies = np.ones(len(choices)) if fold is None else np.array(fold.copies, dtype=float)
        table = terms.table[terms.term]
        contacts = Contacts(terms.node, terms.term, table, terms.states, terms.arrays)
        whole = Whole(*terms.occurrences(fold))
        self.network = network(choices, copies, contacts, whole, terms.prices)
        forms = [nodes.forms[form] for form in nodes.form.tolist()]
        self.held = np.concatenate([form.memory_bytes for form in forms])
        self.compute = np.concatenate([form.compute_s for form in forms])
        self.cost = self.compute + byte_s * self.held
        shape = len(terms.node), max((len(cost) for cost in terms.prices), default=1)
        self.messages, self.lent = np.zeros(shape), np.full(shape, np.inf)
        if before is not None:
            self._carry(before, ends)
        self.forward: bool = before is None or before.forward
        self.stop()
        self._lend()

    def stop(self) -> None:
        """Forget in which direction messages move: the next round is one without momentum."""
        self.past: Floats | None = None
        self.moves = 0

    def _carry(self, before: Dual, ends: Ends | None) -> None:
        """Take over messages, where there is such an end and state."""
        terms, known = self.terms, before.terms
        edge, position = terms.edge[terms.term], terms.position
        if ends is not None:
            at = ends.begin[edge] + position
            edge, position = ends.edge[at], ends.position[at]
        there = np.flatnonzero(edge >= 0)
        told = before._told(edge[there], position[there], terms.term[there], terms)
        pairs = terms.set[terms.edge[terms.term[there]]] * len(known.sets) + known.set[edge[there]]
        for pair in np.unique(pairs).tolist():
            mine, theirs = terms.sets[pair // len(known.sets)], known.sets[pair % len(known.sets)]
            column = np.minimum(np.searchsorted(theirs, mine), len(theirs) - 1)
            rows = np.flatnonzero(pairs == pair)
            found = np.where(theirs[column] == mine, told[rows[:, None], column], 0.0)
            self.messages[there[rows], : len(mine)] = found

    def _told(self, edge: Ints, position: Ints, term: Ints, wanted: Terms) -> Floats:
        """Return the messages of some ends, which may be those of `wanted` terms with other readers."""
        terms, groups = self.terms, np.diff(self.terms.first)[edge]
        counts = np.diff(wanted.first)[wanted.edge[term]]
        group = np.where(groups == counts, wanted.group[term], 0)
        producer = terms.begin[terms.first[edge] + group]
        readers = terms.reader[self.problem.edge_columns.begin[edge] + position]
        found = self.messages[np.where(position == 0, producer, readers)]
        for row in np.flatnonzero((position == 0) & (groups != counts)).tolist():
            ends = terms.begin[terms.first[edge[row]] : terms.first[edge[row] + 1]]
            found[row] = 1 / counts[row] * self.messages[ends].sum(axis=0)
        return np.asarray(found)

    def bound(self) -> float:
        """Return seconds that no assignment (of the whole problem) stays below."""
        forward = int(self.forward)
        return sweeps.bound(self.network, self.cost, self.messages, forward, self.parts())

    def parts(self) -> Floats:
        """Return what each of `terms` adds to the bound; without a fold."""
        return sweeps.parts(self.network, self.messages, self.lent)

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
                self._lend()
            if self.fold is None:
                self.past = here
                self.moves += 1
            for forward in (True, False):
                self.forward = forward
                sweeps.sweep(self.network, self.cost, self.messages, self.lent, int(forward))
        return self.bound()

    def rounded(self) -> list[int]:
        """Return an assignment that the messages suggest: node after node, given those before."""
        found: list[int] = sweeps.rounded(
            self.network, self.cost, self.messages, self.lent
        ).tolist()
        return found

    def excess(self) -> list[Floats]:
        """Return for every node and choice what a plan with it costs at least beyond the bound."""
        return self._by_node(self._excess())

    def kept(self, slack_s: float) -> list[Ints]:
        """Return which choices of each node may be part of a plan within the slack; one at least."""
        excess, begins = self._excess(), self.network.nodes["choice"]
        least = np.repeat(np.minimum.reduceat(excess, begins[:-1]), np.diff(begins))
        found = np.flatnonzero(excess <= np.maximum(slack_s, least))
        ends = np.searchsorted(found, begins)
        choices = found - np.repeat(begins[:-1], np.diff(ends))
        return [choices[first:last] for first, last in pairwise(ends.tolist())]

    def unary(self) -> list[Floats]:
        """Return what each choice costs its node beyond its part of the bound, >= 0, by node."""
        return self._by_node(self._own())

    def drop(self, kept: Sequence[Ints]) -> None:
        """Leave only the `kept` choices of every node."""
        begins = self.network.nodes["choice"][:-1]
        left = np.concatenate(kept) + np.repeat(begins, list(map(len, kept)))
        dropped = np.ones(len(self.cost), dtype=bool)
        dropped[left] = False
        self.cost[dropped] = np.inf
        self._lend()

    def price_memory(self, byte_s: float) -> None:
        """Give memory another price."""
        self.stop()
        self.cost += (byte_s - self.byte_s) * self.held
        self.byte_s = byte_s
        self._lend()

    def repriced(self, byte_s: float, edge: int, cost: Floats, memory: Mapping[int, Ints]) -> Dual:
        """Return the relaxation with another price of memory, other bytes of nodes, prices of an edge.

        The edge has one reader, and the `cost` is that of its table. It goes on with the messages from
        here and is there to ascend only: `problem` and `terms` stay what they are.
        """
        found, terms, net = copy(self), self.terms, self.network
        here = terms.occurring[edge]
        producers = net.members[net.terms["place"][:-1]]
        mine = np.flatnonzero(terms.edge[terms.term[producers]] == edge)
        found.network = repriced(net, mine, np.minimum(cost[np.ix_(here, here)], self.most_s))
        begins = net.nodes["choice"].tolist()
        found.held, found.byte_s = self.held.copy(), byte_s
        for node, held in memory.items():
            found.held[begins[node] : begins[node + 1]] = held
        found.cost = self.compute + byte_s * found.held
        found.messages, found.lent = self.messages.copy(), np.full(self.lent.shape, np.inf)
        found.stop()
        found._lend()
        return found

    def _lend(self) -> None:
        sweeps.lend(self.network, self.cost, self.messages, self.lent, int(self.forward))

    def _own(self) -> Floats:
        return sweeps.own(self.network, self.cost, self.messages, self.lent)

    def _excess(self) -> Floats:
        return sweeps.excess(self.network, self._own(), self.messages, self.lent)

    def _by_node(self, values: Floats) -> list[Floats]:
        begins = self.network.nodes["choice"].tolist()
        return [values[first:last] for first, last in pairwise(begins)]
