"""Rhino's O3: cones contracted, an integer linear program over what is left.

A root has several inputs, or several readers. A cone is a root with the nodes before it that have one
input at most and one reader. What a chain of these costs at least, by the state that goes in and the one
that the root wants, is a shortest path over states: the min-plus product of its nodes' costs. That is
exact; the chain becomes a table between its root and what comes before it. Its first node stays where the
input has other readers, too, as those who want one state pay for it together.

    gelu → cast → matmul, from x in state S or B to a matmul that wants S or B:
    gelu costs (1 5; 0 2), cast (1 3; 9 2), together (2 4; 1 3): from S to S 1 + 1, from B to B 0 + 3.

By the paper's rule each choice of the root decides its cone: the nodes take what is cheapest inside the
cone, and what comes into it pays for that. Fewer variables are left, and plans may be dearer.

Source: Rhino §4.2, §4.3.2; readers as roots, and the exact contraction, are derived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from autoddl.errors import InfeasibleError
from autoddl.perfmodel.redistribution import RedistributionTable
from autoddl.search.heuristics.descent import replicated
from autoddl.search.incumbent import Incumbent
from autoddl.search.network.cost_network import CostNetwork, Floats, Ints, as_ints, ints
from autoddl.search.network.evaluator import Flags
from autoddl.search.result import DEFAULTS, Assignment, Point, SearchOptions, SearchResult
from autoddl.search.solvers import ilp

O3 = "O3"


def search(
    problem: CostNetwork, options: SearchOptions = DEFAULTS, *, by_root: bool = False
) -> SearchResult:
    """Return the optimal assignment, or the best one that the budget brings.

    With `by_root` cones are decided by their roots, as in the paper; where what they decide has no way
    between them, everything is whole everywhere. The seed has no effect.

    Raises:
        InfeasibleError: no assignment fits into the memory, or none has a finite cost, or the budget
            ended before any was found.
    """
    run = Incumbent(problem, options)
    for start in (*options.starts, replicated(problem)):
        run.offer(start)
    cones = Cones.apply(problem, by_root=by_root, limited=run.limit is not None)
    left = None if run.limit is None else run.limit - cones.held_bytes
    asked = replace(options, budget=run.left_s(), memory_bytes=left, starts=(), progress=None)
    try:
        found = ilp.search(cones.network, asked)
    except InfeasibleError:
        if not by_root:
            raise
    else:
        run.evaluations += found.evaluations
        run.offer(cones.invert(found.assignment))
        run.raise_to(-np.inf if by_root else found.lower_bound_s)
    return run.result(O3)


class Step(NamedTuple):
    """A node of a chain: by choice the state that goes in, and what each state behind it costs."""

    states: Ints
    onward: Floats


@dataclass(frozen=True, eq=False)
class ConeChain:
    """Nodes of one cone in a row, between two ends of factors.

    The first one reads at `entry`, -1 if it reads nothing, and the root at `end`. `ways[k][i, s]` is the
    least that the first k nodes cost if the chain begins in state i, and what is next reads in state s.
    """

    nodes: Sequence[int]
    entry: int
    end: int
    steps: Sequence[Step]
    ways: Sequence[Floats]

    def way(self, begin: int, wanted: int) -> tuple[list[int], int]:
        """Return what the nodes choose on the cheapest way, and the state in which the first reads."""
        choices = []
        for (states, onward), way in zip(reversed(self.steps), self.ways[-2::-1], strict=True):
            choices.append(int((way[begin, states] + onward[:, wanted]).argmin()))
            wanted = int(states[choices[-1]])
        return choices[::-1], wanted


@dataclass(frozen=True, eq=False)
class Cones:
    """`network` has the variables `kept` of the whole one, which lacks those of the `chains`.

    These hold `held_bytes`, whatever they choose.
    """

    whole: CostNetwork
    network: CostNetwork
    kept: Ints
    chains: Sequence[ConeChain]
    held_bytes: int
    by_root: bool

    @classmethod
    def apply(cls, whole: CostNetwork, *, by_root: bool = False, limited: bool = False) -> Cones:
        """Contract the cones; where memory is limited, without nodes whose choices differ in bytes."""
        chains = _Chains(whole, by_root, limited).found()
        inside = np.zeros(len(whole), dtype=np.bool_)
        inside[[node for chain in chains for node in chain.nodes]] = True
        least = ints([int(domain.memory_bytes.min()) for domain in whole.variables.domains])
        held = int(least[whole.variables.domain[inside]].sum())
        joined = _Joined(whole, by_root)
        for chain in chains:
            joined.add(chain)
        return cls(whole, joined.without(inside), np.flatnonzero(~inside), chains, held, by_root)

    def invert(self, assignment: Point) -> Assignment:
        """Return the assignment of the whole network in which chains take their cheapest ways."""
        point, net, factors = (
            np.zeros(len(self.whole), np.int64),
            self.whole.arrays,
            self.whole.factors,
        )
        point[self.kept] = as_ints(assignment)
        for chain in self.chains:
            decided = chain.entry < 0 or self.by_root
            before = -1 if decided else int(factors.begin[factors.factor[chain.entry]])
            begin, wanted = (
                int(net.states[net.states_at[end] + point[factors.variable[end]]])
                for end in (before, chain.end)
            )
            point[list(chain.nodes)] = chain.way(0 if decided else begin, wanted)[0]
        return Assignment(point)


class _Chains:
    """Find the chains of a network; what equal ones cost is computed once."""

    def __init__(self, whole: CostNetwork, by_root: bool, limited: bool) -> None:
        self.whole, self.by_root, factors = whole, by_root, whole.factors
        self.entry, self.made = np.full((2, len(whole)), -1)
        self.entry[factors.variable[factors.reads]] = np.flatnonzero(factors.reads)
        self.made[factors.producer] = factors.begin[:-1]
        self.inside = is_inner(whole)
        if not by_root:
            alone = np.append(np.diff(factors.begin) == 2, True)
            self.inside &= alone[np.append(factors.factor, -1)[self.entry]]
        if limited:
            same = [
                bool((d.memory_bytes == d.memory_bytes[0]).all()) for d in whole.variables.domains
            ]
            self.inside &= np.array(same)[whole.variables.domain]
        self.steps: dict[tuple[int, ...], Step] = {}
        self.ways: dict[object, list[Floats]] = {}

    def found(self) -> list[ConeChain]:
        """Return the chains, in the order of the ends at which roots read from them."""
        factors = self.whole.factors
        last = self.inside[factors.producer[factors.factor]] & factors.reads
        ends = np.flatnonzero(last & ~self.inside[factors.variable])
        return [self._chain(end) for end in ends.tolist()]

    def _chain(self, end: int) -> ConeChain:
        factors, nodes, at = self.whole.factors, list[int](), end
        while at >= 0 and self.inside[node := int(factors.producer[factors.factor[at]])]:
            nodes.append(node)
            at = int(self.entry[node])
        nodes.reverse()
        steps = [self._step(node) for node in nodes]
        start = np.zeros((1, 1))
        if at >= 0:
            start = factors.tables[factors.table[factors.factor[at]]].cost
        key = (at >= 0 and id(start), *map(id, steps))
        if key not in self.ways:
            ways = [np.zeros((1, len(start))) if self.by_root else start]
            for states, onward in steps:
                ways.append(min_plus(ways[-1][:, states], onward))
            self.ways[key] = ways
        return ConeChain(nodes, at, end, steps, self.ways[key])

    def _step(self, node: int) -> Step:
        whole, factors = self.whole, self.whole.factors
        entry, made = int(self.entry[node]), int(self.made[node])
        read = int(factors.states[entry]) if entry >= 0 else -1
        makes, table = int(factors.states[made]), int(factors.table[factors.factor[made]])
        key = int(whole.variables.domain[node]), read, makes, table
        if key not in self.steps:
            seconds = whole.variables.of(node).compute_s
            states = factors.arrays[read] if entry >= 0 else np.zeros(len(seconds), dtype=np.int64)
            onward = seconds[:, None] + factors.tables[table].cost[factors.arrays[makes]]
            self.steps[key] = Step(states, onward)
        return self.steps[key]


class _Joined:
    """Domains and factors of a network in which roots read what the chains before them read.

    What chains have in common is made once, and shared.
    """

    def __init__(self, whole: CostNetwork, by_root: bool) -> None:
        self.whole, self.by_root = whole, by_root
        factors, variables = whole.factors, whole.variables
        self.domains, self.domain = list(variables.domains), variables.domain.copy()
        self.tables, self.table = list(factors.tables), factors.table.copy()
        self.arrays, self.states = list(factors.arrays), factors.states.copy()
        self.variable = factors.variable.copy()
        self.known: dict[object, int] = {}

    def add(self, chain: ConeChain) -> None:
        """Let the root read at a chain's entry, over the chain, or let its choices decide the chain."""
        if chain.entry < 0 or self.by_root:
            self._decided(chain)
        if chain.entry >= 0:
            (self._moved if self.by_root else self._over)(chain)
            self.variable[chain.entry] = self.whole.factors.variable[chain.end]

    def _decided(self, chain: ConeChain) -> None:
        """Let each choice of the root cost what the chain does, which nothing else has a say in."""
        factors, cost = self.whole.factors, chain.ways[-1]
        root, number = int(factors.variable[chain.end]), int(factors.states[chain.end])
        old = self.domains[self.domain[root]]
        self.domain[root] = self._once(
            (int(self.domain[root]), id(cost), number), self.domains,
            lambda: old._replace(compute_s=old.compute_s + cost[0, self.arrays[number]]),
        )  # fmt: skip

    def _moved(self, chain: ConeChain) -> None:
        """Let the root want the states in which the chain reads, by what its choices decide."""
        number, cost = int(self.whole.factors.states[chain.end]), chain.ways[-1]

        def read() -> Ints:
            first = [chain.way(0, state)[1] for state in range(cost.shape[1])]
            return ints(first)[self.arrays[number]]

        self.states[chain.entry] = self._once((id(cost), number), self.arrays, read)

    def _over(self, chain: ConeChain) -> None:
        """Give the factor before a chain the chain's prices, from its own states to the root's."""
        factors, cost = self.whole.factors, chain.ways[-1]
        number, rows = int(factors.states[chain.end]), len(cost)
        first, last = factors.factor[[chain.entry, chain.end]]
        before, behind = (factors.tables[factors.table[factor]] for factor in (first, last))
        self.table[first] = self._once(
            id(cost), self.tables, lambda: _chained(before, behind, cost)
        )
        self.states[chain.entry] = self._once(
            (rows, number), self.arrays, lambda: rows + self.arrays[number]
        )

    def _once(self, key: object, made: list[Any], make: Callable[[], Any]) -> int:
        """Return the number of what is known by a key; it is made where it is not."""
        if key not in self.known:
            self.known[key] = len(made)
            made.append(make())
        return self.known[key]

    def without(self, inside: Flags) -> CostNetwork:
        """Return the network without some variables, and without what they make."""
        whole = self.whole
        variables = whole.variables._replace(domains=self.domains, domain=self.domain)
        factors = whole.factors._replace(
            tables=self.tables, table=self.table, arrays=self.arrays, states=self.states,
            variable=self.variable,
        )  # fmt: skip
        left = ~inside[whole.factors.producer][whole.factors.factor]
        changed = replace(whole, variables=variables, factors=factors)
        return part_of(changed, np.flatnonzero(~inside), left)


def part_of(network: CostNetwork, kept: Ints, ends: Flags) -> CostNetwork:
    """Return the network of some variables, and of some ends of factors, where a reader is left."""
    variables, factors = network.variables, network.factors
    number, of = np.full(len(network), -1), factors.factor
    number[kept] = np.arange(len(kept))
    ends = ends & (np.bincount(of[ends], minlength=len(factors.table)) > 1)[of]
    which, counts = np.unique(of[ends], return_counts=True)
    return replace(
        network,
        variables=variables._replace(
            kind=variables.kind[kept], name=[variables.name[v] for v in kept.tolist()],
            domain=variables.domain[kept], op=variables.op[kept],
        ),
        factors=factors._replace(
            tensor=factors.tensor[which], table=factors.table[which],
            begin=np.concatenate(([0], np.cumsum(counts))), variable=number[factors.variable[ends]],
            states=factors.states[ends], operand=factors.operand[ends],
        ),
    )  # fmt: skip


def is_inner(network: CostNetwork) -> Flags:
    """Tell of every variable whether it has one input at most, and one reader of all that it makes."""
    factors, count = network.factors, len(network)
    inputs = np.bincount(factors.variable[factors.reads], minlength=count)
    readers = np.bincount(factors.producer, np.diff(factors.begin) - 1, minlength=count)
    found: Flags = (inputs <= 1) & (readers == 1)
    return found


def min_plus(left: Floats, right: Floats) -> Floats:
    """Return the least left[i, k] + right[k, j] over k, for all i and j."""
    found: Floats = (left[:, :, None] + right).min(axis=1)
    return found


def _chained(
    before: RedistributionTable, behind: RedistributionTable, cost: Floats
) -> RedistributionTable:
    """Return the table of a chain: from the states of the first, its rows, to those of the last one."""
    rows, columns = cost.shape
    square = np.full((rows + columns, rows + columns), np.inf)
    np.fill_diagonal(square, 0.0)
    square[:rows, rows:] = cost
    straight = np.tile(np.arange(rows + columns, dtype=np.int32), (rows + columns, 1))
    return RedistributionTable(behind.shape, (*before.states, *behind.states), square, straight)
