"""A lower bound for all assignments, and for all with a given choice: dual ascent of the LP relaxation.

The cost network has a unary for every variable and a factor for every tensor, which hangs on the states
that its producer and its readers have chosen. Any messages that move cost between a factor and its
variables leave

    Σ_variables (1 − Σ γ)·min_x θ(x)  +  Σ_factors min [cost of the factor − messages + γ·θ of its
    variables]

a lower bound, where each variable lends a part γ of its reparametrised unary θ to the factors that it
shares with variables on one side of it. Messages are updated variable by variable as in SRMP, which is
TRW-S for factors of more than two variables; min-marginals are exact (srmp.py).

    unaries (0, 4) and (1, 0), factor [[0, 2], [2, 0]]: without messages 0 + 0 + 0; after a sweep 1, the
    optimum.

Source: Kolmogorov 2015 (SRMP); Nesterov 1983 (momentum).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from autoddl.search.network.cost_network import CostNetwork, Floats, Ints
from autoddl.search.reductions.prices import SUM, Prices
from autoddl.search.reductions.quotient import Multiplicities, ScopeMap
from autoddl.search.relaxation import srmp
from autoddl.search.relaxation.factor_graph import Terms, graph_of

# So much of the last round's move do messages repeat at most before the next; from 1 on nothing damps it.
FASTEST = 0.9


class Dual:
    """The relaxation of one network; `prices.byte_s` is a Lagrangian multiplier of memory, in s/B."""

    def __init__(
        self,
        network: CostNetwork,
        *,
        prices: Prices = SUM,
        most_s: float = np.inf,
        copies: Multiplicities | None = None,
        before: Dual | None = None,
        scopes: ScopeMap | None = None,
    ) -> None:
        """Start with the messages of `before`, if given: of the same network with more choices.

        Or of another one: for each end of our factors, `scopes` has which end of which of its factors
        stands for that (see Quotient). With `copies` it is the relaxation of the whole network of which
        `network` is the quotient. `most_s` is more than what the best plan costs: what is not possible
        (infinite) is as good as that.
        """
        self.network, self.prices, self.most_s, self.copies = network, prices, most_s, copies
        self.terms = Terms(network, copies=copies, most_s=most_s)
        self.graph = graph_of(self.terms, network.variables.sizes, copies)
        variables = network.variables
        domains = [variables.domains[number] for number in variables.domain.tolist()]
        self.held = np.concatenate([domain.memory_bytes for domain in domains])
        self.compute = np.concatenate([domain.compute_s for domain in domains])
        self.cost = prices.choice_s(self.compute, self.held)
        shape = len(self.terms.variable), max((len(cost) for cost in self.terms.prices), default=1)
        self.messages, self.lent = np.zeros(shape), np.full(shape, np.inf)
        if before is not None:
            self._carry(before, scopes)
        self.forward: bool = before is None or before.forward
        self.stop()
        self._lend()

    def stop(self) -> None:
        """Forget in which direction messages move: the next round is one without momentum."""
        self.past: Floats | None = None
        self.moves = 0

    def _carry(self, before: Dual, scopes: ScopeMap | None) -> None:
        """Take over messages, where there is such an end and state."""
        terms, known = self.terms, before.terms
        factor, position = terms.factor[terms.term], terms.position
        if scopes is not None:
            at = scopes.begin[factor] + position
            factor, position = scopes.factor[at], scopes.position[at]
        there = np.flatnonzero(factor >= 0)
        told = before._told(factor[there], position[there], terms.term[there], terms)
        mine = terms.place[terms.set[terms.factor[terms.term[there]]]]
        theirs = known.place[known.set[factor[there]]]
        row, state = np.nonzero(
            (mine[:, : theirs.shape[1]] >= 0) & (theirs[:, : mine.shape[1]] >= 0)
        )
        self.messages[there[row], mine[row, state]] = told[row, theirs[row, state]]

    def _told(self, factor: Ints, position: Ints, term: Ints, wanted: Terms) -> Floats:
        """Return the messages of some ends, which may be those of `wanted` terms with other readers."""
        terms, groups = self.terms, np.diff(self.terms.first)[factor]
        counts = np.diff(wanted.first)[wanted.factor[term]]
        group = np.where(groups == counts, wanted.group[term], 0)
        producer = terms.begin[terms.first[factor] + group]
        readers = terms.reader[self.network.factors.begin[factor] + position]
        found = self.messages[np.where(position == 0, producer, readers)]
        for row in np.flatnonzero((position == 0) & (groups != counts)).tolist():
            ends = terms.begin[terms.first[factor[row]] : terms.first[factor[row] + 1]]
            found[row] = 1 / counts[row] * self.messages[ends].sum(axis=0)
        return np.asarray(found)

    def bound(self) -> float:
        """Return seconds that no assignment (of the whole problem) stays below."""
        return srmp.bound(self.graph, self.cost, self.messages, self.lent, int(self.forward))

    def ascend(self, rounds: int) -> float:
        """Improve the bound by so many rounds and return it; from the second one on with momentum.

        Before each of them messages go on in the direction of the last one (as in Nesterov 1983). Where
        they creep that takes far fewer rounds, but the bound may fall on the way. Without momentum
        it never does but with `copies`, where rounds are no exact ascent: there is none there.
        """
        for _ in range(rounds):
            here = self.messages.copy()
            if self.past is not None:
                speed = min(self.moves / (self.moves + 3), FASTEST)
                self.messages += speed * (here - self.past)
                self._lend()
            if self.copies is None:
                self.past = here
                self.moves += 1
            for forward in (True, False):
                self.forward = forward
                srmp.sweep(self.graph, self.cost, self.messages, self.lent, int(forward))
        return self.bound()

    def rounded(self) -> list[int]:
        """Return an assignment that the messages suggest: node after node, given those before."""
        found: list[int] = srmp.rounded(self.graph, self.cost, self.messages, self.lent).tolist()
        return found

    def reduced_costs(self) -> Floats:
        """Return the reduced costs of all choices: what a plan with one costs more than the bound."""
        return srmp.excess(self.graph, self.cost, self.messages, self.lent)

    def kept(self, slack_s: float) -> list[Ints]:
        """Return which choices of each node may be part of a plan within the slack; one at least."""
        excess, begins = self.reduced_costs(), self.graph.nodes["choice"]
        least = np.repeat(np.minimum.reduceat(excess, begins[:-1]), np.diff(begins))
        found = np.flatnonzero(excess <= np.maximum(slack_s, least))
        ends = np.searchsorted(found, begins)
        choices = found - np.repeat(begins[:-1], np.diff(ends))
        return [choices[first:last] for first, last in pairwise(ends.tolist())]

    def drop(self, kept: Sequence[Ints]) -> None:
        """Leave only the `kept` choices of every node."""
        begins = self.graph.nodes["choice"][:-1]
        left = np.concatenate(kept) + np.repeat(begins, list(map(len, kept)))
        dropped = np.ones(len(self.cost), dtype=bool)
        dropped[left] = False
        self.cost[dropped] = np.inf
        self._lend()

    def begin(self, kept: Sequence[Ints]) -> None:
        """Begin anew, with only the `kept` choices of every node."""
        self.messages[:], self.forward = 0, True
        self.cost = self.prices.choice_s(self.compute, self.held)
        self.stop()
        self.drop(kept)

    def _lend(self) -> None:
        srmp.lend(self.graph, self.cost, self.messages, self.lent, int(self.forward))
