"""The quotient by repeated layers: what is true of one of them is true of all.

Of a run of equal layers (sbp.program.blocks) a few at either end remain; the factors between layers
close the gap. Every variable of the whole network has a representative in the quotient, which occurs
with a multiplicity, and every end of every factor has one in the quotient's scopes. Messages of the
quotient are messages of the whole network: they bound all its assignments, also those with unequal
layers.

    layers a b c d e, all equal: a, b and e remain; c, d → b; multiplicities 1, 3, 1; the factor b–c is
    the pair (end of b–e at b, end of a–b at b) and occurs twice.

Source: Kersting 2012 (lifted probabilistic inference: orbit representatives and counts).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from autoddl.ragged import Ragged
from autoddl.sbp.program.blocks import Places
from autoddl.search.network.cost_network import (
    SAVED,
    TENSOR,
    CostNetwork,
    Domain,
    Factors,
    Ints,
    as_ints,
)
from autoddl.search.result import Assignment, Point

HEAD, TAIL = 2, 1  # periods of a run that remain at its begin and end; 1 and 1 leave far more to do


class ScopeMap(NamedTuple):
    """For each end of each factor of one network, where a variable has the same tensor in another one.

    The ends of factor f are numbered from `begin[f]` on; `factor` is the other network's factor,
    `position` which of its ends; -1 where it has none.
    """

    begin: Ints
    factor: Ints
    position: Ints

    @classmethod
    def identity(cls, factors: Factors) -> ScopeMap:
        """Return the map of every end to itself."""
        return cls(
            factors.begin,
            factors.factor,
            np.arange(len(factors.variable)) - factors.begin[factors.factor],
        )


class Multiplicities(NamedTuple):
    """How often the variables of a quotient occur in the whole network, and its factors.

    Pattern p of a factor occurs `times[p]` times: its ends are those of the quotient's factors
    `factor[begin[p] : begin[p + 1]]`, in order.
    """

    variable: Ints
    begin: Ints
    factor: Ints
    times: Ints


@dataclass(frozen=True, eq=False)
class Quotient:
    """`network` lacks layers of the whole one; `representative` is the variable of it for each whole one.

    `variables` are those of the whole network that its own are. `scopes` has for every end of the whole
    network where its representative has the same tensor. It is `exact` if each factor of the whole
    network is made of ends whose factors have its prices and readers; otherwise layers hang together in
    other ways than by pairs of neighbours.
    """

    network: CostNetwork
    representative: Ints
    variables: Ints
    scopes: ScopeMap
    exact: bool

    @classmethod
    def apply(cls, whole: CostNetwork, head: int = HEAD, tail: int = TAIL) -> Quotient:
        """Return a network without the layers that are equal to others, itself if there are none."""
        gap = _gap(whole, head, tail)
        kept = np.flatnonzero(gap.first < 0)
        if len(kept) == len(whole):
            return cls.identity(whole)
        number = np.full(len(whole), -1)
        number[kept] = np.arange(len(kept))
        representative, variables = number[gap.stand_in], whole.variables
        factors = gap.factors(whole.factors, number)
        shorter = variables._replace(
            kind=variables.kind[kept], name=[variables.name[i] for i in kept.tolist()],
            domain=variables.domain[kept], op=variables.op[kept],
        )  # fmt: skip
        scopes = _scopes(whole.factors, representative, factors)
        network = replace(whole, variables=shorter, factors=factors)
        exact = _equal(whole.factors, scopes, factors)
        return cls(network, representative, kept, scopes, exact)

    @classmethod
    def identity(cls, whole: CostNetwork) -> Quotient:
        """Return the network as it is."""
        every = np.arange(len(whole))
        return cls(whole, every, every, ScopeMap.identity(whole.factors), exact=True)

    def invert(self, assignment: Point) -> Assignment:
        """Return the assignment of the whole network in which all are like their representatives."""
        return Assignment(as_ints(assignment)[self.representative])

    def lifted(self, domains: Sequence[Ints]) -> list[Ints]:
        """Return the domains of the whole network, from those of the representatives."""
        return [domains[place] for place in self.representative.tolist()]

    @cached_property
    def multiplicities(self) -> Multiplicities:
        """Return how often variables and factors occur in the whole network, if it is exact."""
        ends = Ragged(self.scopes.begin, self.scopes.factor)
        first, which = ends.distinct()
        once = ends.take(first)
        return Multiplicities(
            np.bincount(self.representative), once.start, once.items, np.bincount(which)
        )


def quotient(network: CostNetwork) -> Quotient:
    """Return the quotient of a network; it is looked for once."""
    return network.derived(Quotient.apply)


class _Gap(NamedTuple):
    """What is left out: `first` and `last` are the first and last layer of a variable's run that are.

    Both are -1 for variables that remain; `stand_in` is the one that stands for each, or itself.
    """

    places: Places
    stand_in: Ints
    first: Ints
    last: Ints

    def factors(self, whole: Factors, number: Ints) -> Factors:
        """Return the factors of the variables that have a `number`.

        A reader that was left out is replaced across the gap.
        """
        of = whole.factor
        producer = whole.producer[of]
        ends = np.flatnonzero(number[producer] >= 0)
        variable = whole.variable[ends]
        left_out = number[variable] < 0
        variable[left_out] = self._across(producer[ends[left_out]], variable[left_out])
        variable = np.where(variable < 0, -1, number[variable])
        ends, variable = ends[variable >= 0], variable[variable >= 0]
        read = np.bincount(of[ends], minlength=len(whole.table)) > 1
        ends, variable = ends[read[of[ends]]], variable[read[of[ends]]]
        which, counts = np.unique(of[ends], return_counts=True)
        return whole._replace(
            tensor=whole.tensor[which], table=whole.table[which],
            begin=np.concatenate(([0], counts.cumsum())), variable=variable,
            states=whole.states[ends], operand=whole.operand[ends],
        )  # fmt: skip

    def _across(self, producer: Ints, reader: Ints) -> Ints:
        """Return which variables read instead of others: as far behind the gap, or before it; or -1."""
        places, first, last = self.places, self.first[reader], self.last[reader]
        layer, length = places.layer[reader], last - first + 1
        goal = layer + np.where(places.layer[producer] < layer, length, -length)
        there = (places.stack[producer] == places.stack[reader]) & ((goal < first) | (goal > last))
        return np.where(there, places.counterparts(reader, goal), -1)


def _gap(network: CostNetwork, head: int, tail: int) -> _Gap:
    """Return which variables are left out: those of runs of equal layers between head and tail."""
    blocks, variables = network.program.blocks, network.variables
    tensor = _held(network)
    held, places = np.flatnonzero(tensor >= 0), network.derived(places_of)
    looks = _looks(network)
    of_op = np.full(len(blocks.ops.stack), -1)
    of_op[variables.op[variables.op >= 0]] = looks[variables.op >= 0]
    of_tensor = np.full(len(blocks.tensors.stack), -1)
    for kind in ("parameter", SAVED):  # a parameter that is saved has a variable of either kind
        mine = held[variables.of_kind(kind)[held]]
        of_tensor[tensor[mine]] = (of_tensor[tensor[mine]] + 1) * (len(looks) + 1) + looks[mine]
    stand_in = np.arange(len(network))
    first, last = np.full((2, len(network)), -1)
    for run in blocks.runs_of(of_op, of_tensor, least=head + tail):
        repeat = run.repeat
        begin = repeat.start + head * repeat.period
        end = repeat.start + (repeat.count - tail) * repeat.period - 1
        left_out = (places.stack == run.stack) & (places.layer >= begin) & (places.layer <= end)
        here = np.flatnonzero(left_out)
        layer = [repeat.of_period(head - 1, index) for index in places.layer[here].tolist()]
        stand_in[here] = places.counterparts(here, np.array(layer, dtype=np.int64))
        first[here], last[here] = begin, end
    return _Gap(places, stand_in, first, last)


def _held(network: CostNetwork) -> Ints:
    """Return which tensor each variable holds that is no op, -1 if none: a parameter, or a saved one."""
    variables, number = network.variables, network.program.columns.number
    found = np.full(len(network), -1)
    held = np.flatnonzero(variables.of_kind("parameter", SAVED) & (variables.op < 0))
    found[held] = [number[variables.name[v]] for v in held.tolist()]
    return found


def places_of(network: CostNetwork) -> Places:
    """Return where the variables lie: where their ops do, or the tensors that they hold."""
    tensor = _held(network)
    blocks, kinds = network.program.blocks, len(network.variables.kinds)
    op, kind = network.variables.op, network.variables.kind
    ops = blocks.ops.position.max(initial=0) + 1

    def placed(of_op: Ints, of_tensor: Ints) -> Ints:
        found = np.append(of_tensor, -1)[tensor]
        found[op >= 0] = of_op[op[op >= 0]]
        return found

    position = placed(blocks.ops.position, blocks.tensors.position + ops) * kinds + kind
    stack = placed(blocks.ops.stack, blocks.tensors.stack)
    layer = placed(blocks.ops.layer, blocks.tensors.layer)
    return Places(stack, layer, np.where(stack >= 0, position, -1))


def _looks(network: CostNetwork) -> Ints:
    """Return equal numbers for variables with equal choices and costs."""
    variables = network.variables
    pair = 2 * variables.domain + (variables.op >= 0)
    numbers: dict[object, int] = {}
    found = np.zeros(2 * len(variables.domains), dtype=np.int64)
    for number in np.flatnonzero(np.bincount(pair)).tolist():
        look = _look(variables.domains[number // 2], number % 2 == 1)
        found[number] = numbers.setdefault(look, len(numbers))
    return np.asarray(found[pair])


def _look(domain: Domain, of_op: bool) -> object:
    """Return what equal variables of different layers have in common: choices and their costs."""
    if of_op:
        return id(domain.choices), id(domain.compute_s)  # equal ops share them
    states = tuple([choice[TENSOR] for choice in domain.choices])
    return states, domain.compute_s.tobytes(), domain.memory_bytes.tobytes()


def _scopes(whole: Factors, representative: Ints, short: Factors) -> ScopeMap:
    """Return at which factors the representatives have the same tensors; both number operands alike."""
    count, known_at = 2 * len(whole.operands), ScopeMap.identity(short)
    known = short.variable * count + 2 * short.operand + short.reads
    wanted = representative[whole.variable] * count + 2 * whole.operand + whole.reads
    order = np.argsort(known, kind="stable")
    found = order[np.searchsorted(known[order], wanted, side="right") - 1]
    there = known[found] == wanted
    return ScopeMap(
        whole.begin,
        np.where(there, known_at.factor[found], -1),
        np.where(there, known_at.position[found], -1),
    )


def _equal(whole: Factors, scopes: ScopeMap, short: Factors) -> bool:
    """Tell whether the factors that stand for each one have its prices, states and number of readers.

    Both number tables and arrays alike.
    """
    own = ScopeMap.identity(whole)
    if (scopes.position != own.position).any():
        return False
    same = np.diff(short.begin)[scopes.factor] == np.diff(whole.begin)[own.factor]
    same &= short.table[scopes.factor] == whole.table[own.factor]
    stand_in = short.begin[scopes.factor] + scopes.position
    return bool(same.all()) and bool((short.states[stand_in] == whole.states).all())
