"""The planning problem as an integer linear program: one binary per node and choice.

A tensor is one unit of flow from the state that its producer makes to the one that a reader wants.
Where several readers may want the same state, flows that serve some of them together are charged
once. Over one tensor with its nodes the relaxation is the convex hull for up to two readers; for more
it is as strong as one flow per reader, for every pair of states the largest of them charged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autoddl.search.network.cost_network import CostNetwork, Floats, Ints
from autoddl.search.result import Assignment

if TYPE_CHECKING:
    from scipy.optimize import LinearConstraint

GROUPED = 4  # up to so many readers have a flow for each group of them, 2^n − 1
# Relative: costs within EQUAL are the same sum in another order; arcs are only left out of tables
# whose costs are all above SMALL, so that two arcs can't each be left out for the other.
EQUAL, SMALL = 1e-12, 1e-9

Terms = tuple[Ints, Ints, float | Floats]  # rows, columns, coefficients


@dataclass(frozen=True, eq=False)
class _OneHot:
    """Columns that sum to 1 and the state of the tensor that each of them means."""

    columns: Ints
    states: Ints

    def at(self, states: Ints, sign: float) -> Terms:
        """Return the terms that stand for this side in rows, one per state (sorted)."""
        return np.searchsorted(states, self.states), self.columns, sign


@dataclass(frozen=True, eq=False)
class _Flow:
    """Arcs between `size` positions; `entry` and `leave`: where a state goes in and comes out."""

    tail: Ints
    head: Ints
    cost: Floats
    size: int
    entry: Ints
    leave: Ints


class Rows:
    """Minimise cost · x over 0 ≤ x ≤ 1 with lower ≤ matrix · x ≤ upper, grown block by block."""

    def __init__(self) -> None:
        self.costs: list[Floats] = []
        self.bounds: list[Floats] = []
        self.triplets: list[tuple[Ints, Ints, Floats]] = []
        self.width = self.height = 0

    def columns(self, cost: Floats) -> Ints:
        """Add a column per cost and return their indices."""
        self.costs.append(cost)
        self.width += len(cost)
        return np.arange(self.width - len(cost), self.width)

    def rows(self, count: int, terms: Sequence[Terms], lower: float, upper: float) -> None:
        """Add `count` rows, which the terms number from 0."""
        for row, column, value in terms:
            values = np.broadcast_to(value, column.shape)
            self.triplets.append((row + self.height, column, values))
        self.bounds.append(np.full((count, 2), (lower, upper)))
        self.height += count

    @property
    def cost(self) -> Floats:
        """Return the costs of all columns in seconds."""
        return np.concatenate(self.costs)

    @property
    def constraint(self) -> LinearConstraint:
        """Return all rows; the coefficients of one column in one row add up."""
        from scipy import optimize, sparse  # 600 modules that no other solver needs

        row, column, value = (np.concatenate(part) for part in zip(*self.triplets, strict=True))
        matrix = sparse.csr_matrix((value, (row, column)), shape=(self.height, self.width))
        return optimize.LinearConstraint(matrix, *np.concatenate(self.bounds).T)


class Model(Rows):
    """The program of one problem; the first `binaries` columns are the choices of its nodes."""

    def __init__(self, problem: CostNetwork, memory_bytes: int | None = None) -> None:
        super().__init__()
        self.problem, self.limit = problem, memory_bytes
        self.networks: dict[object, _Flow] = {}
        self.domains = [problem.variables.of(index) for index in range(len(problem))]
        self.kept = [self._kept(index) for index in range(len(problem))]
        self.choice: list[Ints] = []
        for domain, kept in zip(self.domains, self.kept, strict=True):
            self.choice.append(self.columns(domain.compute_s[kept]))
            self.rows(1, [(0 * kept, self.choice[-1], 1.0)], 1.0, 1.0)
        self.binaries = self.width
        for factor in range(len(problem.factors.table)):
            self._factor(factor)
        if memory_bytes is not None:
            self._memory(memory_bytes)

    def decode(self, x: Floats) -> Assignment:
        """Return the assignment that the columns mean: the largest of every node."""
        pairs = zip(self.kept, self.choice, strict=True)
        return Assignment(np.array([kept[x[columns].argmax()] for kept, columns in pairs]))

    def forbid(self, assignment: Assignment) -> None:
        """Cut off an assignment over the memory limit, with all that hold as much at its nodes.

        Source: cover inequalities of the knapsack polytope.
        """
        cover: list[Ints] = []
        for index, choice in enumerate(assignment):
            memory = self.domains[index].memory_bytes
            if memory[choice] > memory.min():
                cover.append(self.choice[index][memory[self.kept[index]] >= memory[choice]])
        columns = np.concatenate(cover)
        self.rows(1, [(0 * columns, columns, 1.0)], -np.inf, len(cover) - 1.0)

    def _kept(self, index: int) -> Ints:
        """Return the choices that fit and differ in a state, or in memory if limited: the cheapest."""
        node, (begin, factor) = self.domains[index], self.problem.incidence
        memory = node.memory_bytes
        keys: list[Ints] = [np.zeros_like(memory) if self.limit is None else memory]
        for which in factor[begin[index] : begin[index + 1]].tolist():
            keys += [s for user, s in self.problem.factors.ends(which) if user == index]
        order = np.argsort(node.compute_s, kind="stable")
        order = order[np.isfinite(node.compute_s[order])]
        if self.limit is not None:
            spare = self.limit - self.problem.least_memory_bytes
            order = order[memory[order] - memory.min() <= spare]
        _, first = np.unique(np.stack(keys, axis=1)[order], axis=0, return_index=True)
        return np.sort(order[first])

    def _memory(self, limit: int) -> None:
        """Add the memory row, in units of the largest coefficient."""
        pairs = zip(self.domains, self.kept, strict=True)
        more = [node.memory_bytes[kept] - node.memory_bytes.min() for node, kept in pairs]
        held, columns = np.concatenate(more), np.concatenate(self.choice)
        unit = float(max(1, held.max()))
        spare = (limit - self.problem.least_memory_bytes) / unit
        self.rows(1, [(0 * columns, columns, held / unit)], -np.inf, spare)

    def _factor(self, factor: int) -> None:
        """Add what a tensor costs."""
        factors = self.problem.factors
        cost = factors.tables[factors.table[factor]].cost
        (made, states), *readers = factors.ends(factor)
        source = _OneHot(self.choice[made], states[self.kept[made]])
        wants = {}
        for node, states in readers:
            wanted = states[self.kept[node]]
            wants[node, wanted.tobytes()] = _OneHot(self.choice[node], wanted)
        if len(wants) == 1:
            self._flow(cost, source, *wants.values())
        elif len(wants) <= GROUPED:
            self._grouped(cost, source, tuple(wants.values()))
        else:
            self._paired(cost, source, tuple(wants.values()))

    def _flow(self, cost: Floats, source: _OneHot, want: _OneHot) -> None:
        """Add a flow from the states of one side to those of the other."""
        key = (id(cost), source.states.tobytes(), want.states.tobytes())
        if key not in self.networks:
            self.networks[key] = _network(cost, source.states, want.states)
        net = self.networks[key]
        arcs = self.columns(net.cost)
        terms = [(net.tail, arcs, 1.0), (net.head, arcs, -1.0)]
        terms += [(net.entry, source.columns, -1.0), (net.leave, want.columns, 1.0)]
        self.rows(net.size, terms, 0.0, 0.0)

    def _grouped(self, cost: Floats, source: _OneHot, wants: Sequence[_OneHot]) -> None:
        """Add a flow per group of readers, which carries what exactly these want alike.

        The groups of any one reader together take all that the producer makes.
        """
        made, wanted = np.unique(source.states), [np.unique(want.states) for want in wants]
        taken = [[source.at(made, -1.0)] for _ in wants]
        given = [[want.at(s, -1.0)] for want, s in zip(wants, wanted, strict=True)]
        for bits in range(1, 1 << len(wants)):
            group = [i for i in range(len(wants)) if bits >> i & 1]
            common = wanted[group[0]]
            for i in group[1:]:
                common = np.intersect1d(common, wanted[i])
            if not len(common):
                continue
            part = _OneHot(self.columns(np.zeros(len(made))), made)
            served = _OneHot(self.columns(np.zeros(len(common))), common)
            self._flow(cost, part, served)
            for i in group:
                taken[i].append(part.at(made, 1.0))
                given[i].append(served.at(wanted[i], 1.0))
        for i, states in enumerate(wanted):
            self.rows(len(made), taken[i], 0.0, 0.0)
            self.rows(len(states), given[i], 0.0, 0.0)

    def _paired(self, cost: Floats, source: _OneHot, wants: Sequence[_OneHot]) -> None:
        """Add a column for every pair of states that is paid for, and one per reader that needs it."""
        made = np.unique(source.states)
        wanted = np.unique(np.concatenate([want.states for want in wants]))
        price = cost[np.ix_(made, wanted)]
        paid = np.full(price.shape, -1)
        charged = np.isfinite(price) & (price > 0)
        paid[charged] = self.columns(price[charged])
        for want in wants:
            mine = np.isfinite(price) & np.isin(wanted, want.states)
            start, goal = np.nonzero(mine)
            pairs = self.columns(np.zeros(len(start)))
            self.rows(len(made), [(start, pairs, 1.0), source.at(made, -1.0)], 0.0, 0.0)
            self.rows(len(wanted), [(goal, pairs, 1.0), want.at(wanted, -1.0)], 0.0, 0.0)
            both = charged[mine]
            row = np.arange(int(both.sum()))
            terms = [(row, paid[mine][both], 1.0), (row, pairs[both], -1.0)]
            self.rows(len(row), terms, 0.0, np.inf)


def _network(cost: Floats, source: Ints, want: Ints) -> _Flow:
    """Return arcs over which a unit gets from any source to any wanted state at its cost.

    Where no detour is cheaper than going straight, arcs that a detour replaces are left out: of a GPT
    with a layer on 2x2 three columns in five, and five sixths of the time.
    """
    states = np.unique(np.concatenate((source, want)))
    size = len(states)
    entry, leave = np.searchsorted(states, source), np.searchsorted(states, want)
    straight = cost[np.ix_(states, states)]
    apart = straight.copy()
    np.fill_diagonal(apart, np.inf)
    detour = _detours(apart)
    arcs = np.isfinite(apart)
    if np.diag(straight).any() or (detour < apart * (1 - EQUAL)).any():
        arcs = np.isfinite(straight) & np.isin(states, source)[:, None] & np.isin(states, want)
        tail, head = np.nonzero(arcs)
        return _Flow(tail, head + size, straight[arcs], 2 * size, entry, leave + size)
    if arcs.any() and apart.min() > SMALL * apart[arcs].max():
        arcs &= apart < detour * (1 - EQUAL)
    tail, head = np.nonzero(arcs)
    return _Flow(tail, head, straight[arcs], size, entry, leave)


def _detours(apart: Floats) -> Floats:
    """Return the least cost between two states by way of a third."""
    detour = np.full_like(apart, np.inf)
    for between in range(len(apart)):
        np.minimum(detour, apart[:, [between]] + apart[[between], :], out=detour)
    np.fill_diagonal(detour, np.inf)
    return detour
