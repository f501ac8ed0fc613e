"""A training step as a chain of units: the ops of its forward pass, in the order of the program.

The chain has the ops through which gradients flow from the parameters to the loss. Its cuts are where so
few of their results are still to be read that all combinations of these tensors' forms can be listed; the
ops between two cuts are a unit, within which no form changes. Parameters and inputs may be in any form:
what gathers a parameter, reduces its gradient and updates it comes once, from whichever form it is
cheapest to keep it in.

The backward pass is the mirror of the forward pass: a tensor that goes from form A to C there has a
gradient that goes from the dual of C to that of A, where S is its own dual and B is that of P. An op's
gradient takes as many times longer than the op as it does where every device does everything.

    y = matmul(x, w), z = gelu(y): after the matmul the cut has y in S0, S1, B or P; gelu reads S0, S1, B.

Source: HiDup §4.1; §5 (the backward pass follows the forward pass).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TypeAlias

import numpy as np

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.redistribution import RedistributionTable
from autoddl.sbp.program import Op, Program
from autoddl.sbp.program.forward_positions import positions
from autoddl.sbp.state import B, NdSbp, P
from autoddl.search.hidup.chain import Chain, Floats, Ints, Strategy, Unit
from autoddl.search.network.cost_network import TENSOR, CostNetwork

# Combinations of forms on a cut, at most.
MOST_FORMS = 128
HALF = 0.5  # of a batch; seconds are those of a whole one

Forms: TypeAlias = tuple[NdSbp, ...]
Spent: TypeAlias = tuple[float, float, float]
"""Seconds of a half in the forward and the backward pass, and those that come once."""
Way: TypeAlias = tuple[Forms, Spent, tuple[int, ...]]
"""The forms of some results, what it takes to get them, and the choices of the ops that make them."""


@dataclass(frozen=True, eq=False)
class ForwardChain:
    """The chain of a network; `ops` has the variables of each unit, `choices` theirs by signature."""

    chain: Chain
    ops: Sequence[Sequence[int]]
    choices: Sequence[Sequence[tuple[int, ...]]]

    def chosen(self, strategy: Strategy) -> Iterator[tuple[int, int]]:
        """Yield the variables of the chain's ops, and what a strategy chooses for them."""
        units = zip(self.ops, self.choices, strategy.signatures, strict=True)
        for ops, choices, signature in units:
            yield from zip(ops, choices[signature], strict=True)


def dual(state: NdSbp) -> NdSbp:
    """Return the form of the gradient of a tensor in a form, on a mesh of one axis."""
    return NdSbp({B: P, P: B}.get(s, s) for s in state)


def forward_chain(network: CostNetwork) -> ForwardChain:
    """Return the chain of a network on one axis.

    Raises:
        AutoDDLError: no gradient flows from a parameter to a loss.
    """
    return _Maker(network).chain()


class _Maker:
    """Go through the ops of the chain; what is equal for equal ops is computed once."""

    def __init__(self, network: CostNetwork) -> None:
        self.network, self.program = network, network.program
        variables, columns = network.variables, network.program.columns
        self.number = columns.number
        of_op = variables.where("op").tolist()
        self.variable = {variables.name[v]: v for v in of_op}
        held = variables.where("parameter").tolist()
        self.held = {variables.name[v]: v for v in held}
        self.factor = {tensor: f for f, tensor in enumerate(network.factors.tensor.tolist())}
        self.ops = list(_through(self.program))
        if not self.ops:
            raise AutoDDLError(
                "search: got 'hidup' for a program in which no gradient flows from a parameter to a "
                "loss; it plans training steps; use search='exact'"
            )
        made = [(tensor, place) for place, op in enumerate(self.ops) for _, tensor in op.outputs]
        self.made = dict(made)
        self.read = {t: place for place, op in enumerate(self.ops) for _, t in op.inputs}
        if self.program.loss is not None:
            self.read[self.program.loss] = len(self.ops)
        self.known: dict[object, dict[Forms, list[Way]]] = {}
        self.units: dict[object, tuple[Unit, Sequence[tuple[int, ...]]]] = {}

    def chain(self) -> ForwardChain:
        """Return the units between cuts, and the moves on these."""
        lives = [self._live(place) for place in range(len(self.ops) + 1)]
        counts = [prod(len(self.forms[t]) for t in live) for live in lives]
        last = len(self.ops)
        cuts = [n for n, count in enumerate(counts) if count <= MOST_FORMS or n in (0, last)]
        spans = list(itertools.pairwise(cuts))
        made = [self._unit(lives, first, end) for first, end in spans]
        moves = [self._moves(lives[cut]) for cut in cuts[1:-1]]
        ends = [forms for forms in self._combined(lives[last])]
        partial = np.flatnonzero([any(P in state for state in forms) for forms in ends])
        reached = np.intersect1d(partial, made[-1][0].after)
        chain = Chain(
            [unit for unit, _ in made], moves, reached if len(reached) else np.arange(len(ends))
        )
        ops = [[self.variable[op.name] for op in self.ops[a:b]] for a, b in spans]
        return ForwardChain(chain, ops, [choices for _, choices in made])

    def _live(self, place: int) -> Sequence[str]:
        """Return what ops from a place on read of those before it; behind all of them the loss."""
        return [t for t, made in self.made.items() if made < place <= self.read.get(t, -1)]

    @cached_property
    def forms(self) -> dict[str, Forms]:
        """Return the forms in which each result is made or read by ops of the chain."""
        found: dict[str, dict[NdSbp, None]] = {tensor: {} for tensor in self.made}
        for op in self.ops:
            choices = self.network.variables.of(self.variable[op.name]).choices
            for operand, tensor in op.operands:
                if tensor in found:
                    found[tensor].update(dict.fromkeys(choice[operand] for choice in choices))
        return {tensor: tuple(states) for tensor, states in found.items()}

    def _combined(self, live: Sequence[str]) -> list[Forms]:
        return list(itertools.product(*[self.forms[tensor] for tensor in live]))

    def _table(self, tensor: str) -> RedistributionTable | None:
        """Return the prices of a tensor; none where nothing of the network both makes and reads it."""
        factor = self.factor.get(self.number[tensor])
        return None if factor is None else self.network.factors.tables[self._prices(factor)]

    def _prices(self, factor: int) -> int:
        return int(self.network.factors.table[factor])

    def _moves(self, live: Sequence[str]) -> Floats:
        """Return what one half's moves on a cut cost, forward and backward."""
        found = np.zeros((2, 1, 1))
        for tensor in live:
            states, table = self.forms[tensor], self._table(tensor)
            assert table is not None  # both ends are in the chain
            one = np.array(
                [
                    [[_cost(table, a, b) for b in states] for a in states],
                    [[_cost(table, dual(b), dual(a)) for b in states] for a in states],
                ]
            )
            rows, size = found.shape[1], len(states)
            found = found[:, :, None, :, None] + HALF * one[:, None, :, None, :]
            found = found.reshape(2, rows * size, rows * size)
        return found

    def _unit(
        self, lives: Sequence[Sequence[str]], first: int, last: int
    ) -> tuple[Unit, Sequence[tuple[int, ...]]]:
        """Return a unit, and its signatures as choices of its ops."""
        names: dict[str, int] = {}
        for tensor in (*lives[first], *[t for op in self.ops[first:last] for _, t in op.operands]):
            names.setdefault(tensor, len(names))
        look = (
            tuple([self.forms[tensor] for tensor in lives[first]]),
            tuple([self.forms[tensor] for tensor in lives[last]]),
            tuple([tuple([names[t] for t in live]) for live in lives[first + 1 : last + 1]]),
            tuple([(self._look(op), *[names[t] for _, t in op.operands])
                   for op in self.ops[first:last]]),
        )  # fmt: skip
        if look not in self.units:
            self.units[look] = self._signatures(lives, first, last)
        return self.units[look]

    def _signatures(
        self, lives: Sequence[Sequence[str]], first: int, last: int
    ) -> tuple[Unit, Sequence[tuple[int, ...]]]:
        number = {forms: place for place, forms in enumerate(self._combined(lives[last]))}
        rows = []
        for before, forms in enumerate(self._combined(lives[first])):
            ways: list[Way] = [(forms, (0.0, 0.0, 0.0), ())]
            for place in range(first, last):
                ways = self._onward(ways, lives[place], place, lives[place + 1])
            rows += [(before, number[after], *spent, choices) for after, spent, choices in ways]
        before, after, ahead, back, once_s, choices = zip(*rows, strict=True)
        unit = Unit(
            np.array(before), np.array(after), np.array([ahead, back]).T, np.array(once_s)
        )
        return unit, choices

    def _onward(
        self, ways: Sequence[Way], live: Sequence[str], place: int, then: Sequence[str]
    ) -> list[Way]:
        """Return the ways behind an op, those that no other one makes needless."""
        op = self.ops[place]
        here = list(dict.fromkeys(t for _, t in op.inputs if t in live))
        reads = [live.index(tensor) for tensor in here]
        every = [*live, *[tensor for _, tensor in op.outputs]]
        stays = [every.index(tensor) for tensor in then]
        options = self._options(op, here)
        found: dict[Forms, list[Way]] = {}
        for forms, spent, choices in ways:
            wanted = tuple([forms[index] for index in reads])
            for made, more, choice in options.get(wanted, ()):
                both = (*forms, *made)
                after = tuple([both[index] for index in stays])
                total = (spent[0] + more[0], spent[1] + more[1], spent[2] + more[2])
                found.setdefault(after, []).append((after, total, (*choices, *choice)))
        return [way for some in found.values() for way in _least(some)]

    def _look(self, op: Op) -> object:
        """Return what ops with equal options have in common."""
        held = [self.held.get(tensor, -1) for _, tensor in op.inputs]
        kinds = [
            (int(self.network.variables.domain[v]), self._prices(self.factor[self.number[t]]))
            for v, (_, t) in zip(held, op.inputs, strict=True)
            if v >= 0
        ]
        return int(self.network.variables.domain[self.variable[op.name]]), self.back[op.name], *kinds

    @cached_property
    def back(self) -> dict[str, float]:
        """Return how many times longer than each op its gradient takes."""
        place, most_s = positions(self.program).op, dict.fromkeys(range(len(self.program.ops)), 0.0)
        for name, variable in self.variable.items():
            if self.program.op[name].phase == "backward":
                most_s[place[name]] += self._most_s(variable)
        own_s = {op.name: self._most_s(self.variable[op.name]) for op in self.ops}
        return {name: most_s[place[name]] / s if s > 0 else 0.0 for name, s in own_s.items()}

    def _most_s(self, variable: int) -> float:
        return float(self.network.variables.of(variable).compute_s.max())

    def _options(self, op: Op, here: Sequence[str]) -> dict[Forms, list[Way]]:
        """Return by the forms of the results that an op reads what it can make of them."""
        domain = self.network.variables.of(self.variable[op.name])
        key = self._look(op), tuple([here.index(t) if t in here else -1 for _, t in op.inputs])
        if key in self.known:
            return self.known[key]
        found: dict[Forms, list[Way]] = {}
        for number, choice in enumerate(domain.choices):
            wanted = {tensor: choice[operand] for operand, tensor in op.inputs if tensor in here}
            if any(choice[o] != wanted[t] for o, t in op.inputs if t in here):
                continue
            made = tuple([choice[operand] for operand, _ in op.outputs])
            seconds = HALF * float(domain.compute_s[number])
            once_s = sum(self._once_s(t, choice[o]) for o, t in op.inputs if t in self.held)
            way = made, (seconds, self.back[op.name] * seconds, once_s), (number,)
            found.setdefault(tuple(wanted[t] for t in here), []).append(way)
        return self.known.setdefault(key, found)

    def _once_s(self, parameter: str, form: NdSbp) -> float:
        """Return what comes once for a parameter that is read in a form, stored as is cheapest."""
        domain = self.network.variables.of(self.held[parameter])
        table = self._table(parameter)
        assert table is not None  # an op of the chain reads it
        trained = self.program.parameter[parameter].gradient is not None
        return min(
            _cost(table, choice[TENSOR], form)
            + (_cost(table, dual(form), choice[TENSOR]) if trained else 0.0)
            + float(seconds)
            for choice, seconds in zip(domain.choices, domain.compute_s, strict=True)
        )


def _through(program: Program) -> Iterator[Op]:
    """Yield the ops of the forward pass through which gradients flow from parameters to the loss."""
    smooth = {p.tensor for p in program.parameters if p.gradient}
    ops = []
    for op in program.ops:
        made = [tensor for _, tensor in op.outputs if _is_float(program, tensor)]
        if op.phase == "forward" and made and any(tensor in smooth for _, tensor in op.inputs):
            smooth.update(made)
            ops.append(op)
    needed, kept = {program.loss}, set()
    for op in reversed(ops):
        if any(tensor in needed for _, tensor in op.outputs):
            needed.update(tensor for _, tensor in op.inputs)
            kept.add(op.name)
    return (op for op in ops if op.name in kept)


def _is_float(program: Program, tensor: str) -> bool:
    return program.tensor[tensor].dtype.startswith(("float", "bfloat"))


def _cost(table: RedistributionTable, start: NdSbp, goal: NdSbp) -> float:
    """Return the seconds between two states; infinity where a tensor can't be in one of them."""
    if start not in table.index or goal not in table.index:
        return np.inf
    return float(table.cost[table.index[start], table.index[goal]])


def _least(ways: Sequence[Way]) -> Iterator[Way]:
    """Yield ways that no other one is better than in all that they take, equal ones once."""
    kept: list[Way] = []
    for way in sorted(ways, key=lambda way: way[1]):
        if not any(all(a <= b for a, b in zip(old[1], way[1], strict=True)) for old in kept):
            kept.append(way)
    return iter(kept)
