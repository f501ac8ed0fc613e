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

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from autoddl.search import sweeps
from autoddl.search.ends import Ends
from autoddl.search.network import network
from autoddl.search.problem import Floats, Ints, Problem
from autoddl.search.terms import (
    FEW_READERS,
    Compressed,
    End,
    Fold,
    Term,
    compressed,
    many_readers,
    node_at,
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
        nodes = problem.nodes
        copies = np.ones(len(nodes)) if fold is None else np.array(fold.copies, dtype=float)
        occurring = self._whole(fold)
        self.network = network(
            nodes, copies, self.ends, list(occurring), np.array([*occurring.values()], dtype=float),
            self.prices,
        )  # fmt: skip
        self.held = np.concatenate([node.memory_bytes for node in nodes])
        self.cost = np.concatenate([node.compute_s for node in nodes]) + byte_s * self.held
        shape = len(self.ends), max((len(cost) for cost in self.prices), default=1)
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

    def _terms(self, problem: Problem) -> None:
        """Make the terms, number their ends, and collect prices [tables, s, w]."""
        shared: dict[object, Compressed] = {}
        self.occurring = self._occurring(problem)
        pairs = zip(problem.edges, self.occurring, strict=True)
        found = [compressed(*pair, shared) for pair in pairs]
        self.states = [states for _, states in found]
        self.terms: list[Term] = []
        self.ends: list[End] = []
        self.prices: list[Floats] = []  # tables [s, w]
        self.end_at: dict[tuple[int, int, int], int] = {}  # by edge, position, group of readers
        tables: dict[tuple[int, float], int] = {}
        for index, (edge, (cost, states)) in enumerate(zip(problem.edges, found, strict=True)):
            for group, readers in enumerate(self._groups(index)):
                key = id(cost), len(readers) / (len(states) - 1)
                if key not in tables:
                    tables[key] = len(self.prices)
                    self.prices.append(np.minimum(cost, self.most_s) * key[1])
                positions = (0, *(reader + 1 for reader in readers))
                numbers = np.arange(len(self.ends), len(self.ends) + len(positions))
                for position, end in zip(positions, numbers.tolist(), strict=True):
                    node = node_at(edge, position)
                    self.ends.append(End(node, len(self.terms), tables[key], states[position]))
                    self.end_at[index, position, group] = end
                at = tuple((index, position) for position in positions)
                self.terms.append(Term(at, group, tables[key], numbers))

    def _groups(self, edge: int) -> tuple[tuple[int, ...], ...]:
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

    def _whole(self, fold: Fold | None) -> dict[tuple[int, ...], int]:
        """Return the terms of the whole problem by their ends, with how often they occur."""
        if fold is None:
            return {tuple(term.ends.tolist()): 1 for term in self.terms}
        found: dict[tuple[int, ...], int] = defaultdict(int)
        for edges, count in fold.edges.items():
            for group, readers in enumerate(self._groups(edges[0])):
                at = [(edges[i], i, group) for i in (0, *(reader + 1 for reader in readers))]
                found[tuple(self.end_at[key] for key in at)] += count
        return found

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
        found = sweeps.excess(self.network, self._own(), self.messages, self.lent)
        return self._by_node(found)

    def unary(self) -> list[Floats]:
        """Return what each choice costs its node beyond its part of the bound, >= 0, by node."""
        return self._by_node(self._own())

    def drop(self, kept: Sequence[Ints]) -> None:
        """Leave only the `kept` choices of every node."""
        begins = self.network.nodes["choice"].tolist()
        left = np.concatenate([at + choices for at, choices in zip(begins, kept, strict=False)])
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

    def _lend(self) -> None:
        sweeps.lend(self.network, self.cost, self.messages, self.lent, int(self.forward))

    def _own(self) -> Floats:
        return sweeps.own(self.network, self.cost, self.messages, self.lent)

    def _by_node(self, values: Floats) -> list[Floats]:
        begins = self.network.nodes["choice"].tolist()
        return [values[first:last] for first, last in pairwise(begins)]
