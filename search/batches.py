"""Which nodes of a relaxation (dual.py) are updated together, and what each of them pulls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autoddl.search.problem import Ints, Problem
from autoddl.search.terms import Batch, End, Pull, Term, Terms, node_at, pull_of


def batches(
    problem: Problem,
    terms: Sequence[Term],
    alike: Sequence[Terms],
    states: Sequence[Sequence[Ints]],
    *,
    byte_s: float,
    width: int,
) -> tuple[Batch, ...]:
    """Return all nodes in groups of such as have equal costs and terms and do not touch each other.

    `alike` are all terms of the whole problem by kind, `states` those at the ends of each edge by
    choice, `byte_s` is the price of memory, `width` the length of a message.
    """
    return _Batches(problem, terms, alike, states, byte_s, width).make()


class _Batches:
    def __init__(
        self, problem: Problem, terms: Sequence[Term], alike: Sequence[Terms],
        states: Sequence[Sequence[Ints]], byte_s: float, width: int,
    ) -> None:  # fmt: skip
        self.problem, self.terms, self.alike, self.states = problem, terms, alike, states
        self.byte_s, self.width = byte_s, width
        self.count = sum(len(term.ends) for term in terms)

    def make(self) -> tuple[Batch, ...]:
        """Group the nodes; the order of groups is that of the first node of each."""
        problem, touched = self.problem, self._touched()
        beside: list[set[int]] = [set() for _ in problem.nodes]
        for edge in problem.edges:
            together = {edge.producer, *(n for n, _ in edge.readers)}
            for number in together:
                beside[number] |= together
        groups: list[list[int]] = []
        known: dict[object, list[int]] = {}
        place = np.full(len(problem.nodes), -1)
        for index, node in enumerate(problem.nodes):
            looks = tuple((id(e.states), e.role, e.table) for e in touched[index])
            candidates = known.setdefault((id(node.compute_s), id(node.memory_bytes), looks), [])
            taken = {place[other] for other in beside[index]}
            group = next((g for g in candidates if g not in taken), len(groups))
            if group == len(groups):
                groups.append([])
                candidates.append(group)
            groups[group].append(index)
            place[index] = group
        span = self._span(place)
        return tuple(
            self._batch(nodes, [touched[n] for n in nodes], group, span)
            for group, nodes in enumerate(groups)
        )

    def _touched(self) -> list[list[End]]:
        """Return the ends of each node."""
        found: list[list[End]] = [[] for _ in self.problem.nodes]
        for number, term in enumerate(self.terms):
            for role, (edge, position) in enumerate(term.at):
                states = self.states[edge][position]
                end = End(int(term.ends[role]), number, role, term.table, states)
                found[node_at(self.problem.edges[edge], position)].append(end)
        return found

    def _span(self, place: Ints) -> tuple[Ints, Ints]:
        """Return for each end the first and the last batch that touches one of its terms."""
        node_of = np.zeros(self.count, dtype=np.int64)
        for term in self.terms:
            node_of[term.ends] = [node_at(self.problem.edges[e], i) for e, i in term.at]
        first, last = np.full(self.count, len(place)), np.full(self.count, -1)
        for terms in self.alike:
            here = place[node_of[terms.ends]]
            np.minimum.at(first, terms.ends, here.min(axis=1, keepdims=True))
            np.maximum.at(last, terms.ends, here.max(axis=1, keepdims=True))
        return first, last

    def _batch(
        self, nodes: list[int], touched: list[list[End]], here: int, span: tuple[Ints, Ints]
    ) -> Batch:  # fmt: skip
        first, width = self.problem.nodes[nodes[0]], self.width
        cost = np.tile(first.compute_s + self.byte_s * first.memory_bytes, (len(nodes), 1))
        states = np.array([end.states for end in touched[0]], dtype=np.int64).reshape(
            -1, cost.shape[1]
        )
        shape = len(nodes), len(states)
        ends = np.array([[e.number for e in row] for row in touched], dtype=np.int64).reshape(shape)
        terms = np.array([[e.term for e in row] for row in touched], dtype=np.int64).reshape(shape)
        earlier, later = span[0][ends] < here, span[1][ends] > here
        order = np.argsort(states, axis=1, kind="stable")
        sorted_states = np.take_along_axis(states, order, axis=1)
        places, starts = np.unique(
            (sorted_states + width * np.arange(len(states))[:, None]).ravel(), return_index=True
        )
        slot, state = np.divmod(places, width)
        once = 1.0 / (terms[0][:, None] == terms[0]).sum(axis=1)
        behind, ahead = earlier.sum(axis=1), later.sum(axis=1)
        part = 1.0 / np.maximum(1, np.maximum(ahead, behind))
        return Batch(
            np.array(nodes), cost, ends, states, width * ends[:, :, None] + states, once, order.ravel(),
            starts, width * ends[:, slot] + state, part, (earlier[:, slot], later[:, slot]),
            (1.0 - part * behind, 1.0 - part * ahead),
            (self._pulls(touched, later), self._pulls(touched, earlier)),
        )  # fmt: skip

    def _pulls(self, touched: list[list[End]], gives: npt.NDArray[np.bool_]) -> tuple[Pull, ...]:
        """Group the ends whose tensors can give something by what they are in them.

        A node's ends in the same term pull one after the other.
        """
        groups: dict[tuple[int, bool, int], list[int]] = defaultdict(list)
        for row, slots in enumerate(touched):
            for slot, end in enumerate(slots):
                if gives[row, slot]:
                    again = sum(other.term == end.term for other in slots[:slot])
                    groups[self.terms_at[end.number][0][0], end.role == 0, again].append(end.number)
        found = []
        for (alike, _, _), ends in groups.items():
            where = [self.terms_at[end] for end in ends]
            _, rows, columns = np.array([place for places in where for place in places]).T
            each = np.array([len(places) for places in where])
            found.append(pull_of(self.alike[alike], rows, columns, each))
        return tuple(found)

    @cached_property
    def terms_at(self) -> list[list[tuple[int, int, int]]]:
        """Return for every end the terms that it is in: which are alike, number there, column."""
        found: list[list[tuple[int, int, int]]] = [[] for _ in range(self.count)]
        for number, terms in enumerate(self.alike):
            for row, ends in enumerate(terms.ends.tolist()):
                for column, end in enumerate(ends):
                    found[end].append((number, row, column))
        return found
