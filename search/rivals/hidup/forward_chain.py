"""A training step as a chain of units: the ops of its forward pass, in the order of the program.

The chain has the ops through which gradients flow from the parameters to the loss. Its cuts are where so
few of their results are still to be read that all combinations of these tensors' states, the forms of the
cut, can be listed; the ops between two cuts are a unit, within which no state changes. Parameters and
inputs may be in any state: what gathers a parameter, reduces its gradient and updates it comes once, from
whichever state it is cheapest to keep it in.

The backward pass is the mirror of the forward pass: a tensor that goes from state A to C there has a
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

from autoddl.errors import AutoDDLError, InfeasibleError
from autoddl.perfmodel.redistribution import RedistributionTable
from autoddl.sbp.program import Op, Program
from autoddl.sbp.program.forward_positions import positions
from autoddl.sbp.state import B, NdSbp, P
from autoddl.search.network.cost_network import TENSOR, CostNetwork
from autoddl.search.rivals.hidup.chain import Chain, ChainAssignment, Floats, Unit

# Of a cut; experts would gain by more, and take four times as long with twice as many.
MOST_FORMS = 256
HALF = 0.5  # of a batch; seconds are those of a whole one

Form: TypeAlias = tuple[NdSbp, ...]
"""The states of all tensors on a cut."""
Spent: TypeAlias = tuple[float, float, float]
"""Seconds of a half in the forward and the backward pass, and those that come once."""
Way: TypeAlias = tuple[Form, Spent, tuple[int, ...]]
"""A form, what it takes to get there, and the choices of the ops on the way."""


@dataclass(frozen=True, eq=False)
class ForwardChain:
    """The chain of a network; `ops` has the variables of each unit, `choices` theirs by signature."""

    chain: Chain
    ops: Sequence[Sequence[int]]
    choices: Sequence[Sequence[tuple[int, ...]]]

    def chosen(self, assignment: ChainAssignment) -> Iterator[tuple[int, int]]:
        """Yield the variables of the chain's ops, and what an assignment chooses for them."""
        units = zip(self.ops, self.choices, assignment.signatures, strict=True)
        for ops, choices, signature in units:
            yield from zip(ops, choices[signature], strict=True)


def dual(state: NdSbp, table: RedistributionTable) -> NdSbp:
    """Return the state of the gradient of a tensor in a state; one device has only one."""
    found = NdSbp({B: P, P: B}.get(s, s) for s in state)
    return found if found in table.index else state


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
        self.read = {t: place for place, op in enumerate(self.ops) for _, t in op.inputs}
        self.read[self.program.loss or ""] = len(self.ops)
        self.known: dict[object, dict[Form, list[Way]]] = {}
        self.units: dict[object, tuple[Unit, Sequence[tuple[int, ...]]]] = {}

    def chain(self) -> ForwardChain:
        """Return the units between cuts, and the moves on these."""
        lives, last = list(self._lives()), len(self.ops)
        counts = [prod(len(self.states[t]) for t in live) for live in lives]
        cuts = [n for n, count in enumerate(counts) if count <= MOST_FORMS or n in (0, last)]
        spans = list(itertools.pairwise(cuts))
        made = [self._unit(lives, first, end) for first, end in spans]
        moves = [self._moves(lives[cut]) for cut in cuts[1:-1]]
        units, reached = [unit for unit, _ in made], np.unique(made[-1][0].after)
        partial = np.flatnonzero([P in loss for (loss,) in self._combined(lives[last])])
        ends = np.intersect1d(reached, partial)
        ops = [[self.variable[op.name] for op in self.ops[a:b]] for a, b in spans]
        chain = Chain(units, moves, ends if len(ends) else reached)
        return ForwardChain(chain, ops, [choices for _, choices in made])

    def _lives(self) -> Iterator[Sequence[str]]:
        """Yield what is to be read of the results before each op; behind all ops that is the loss."""
        live: list[str] = []
        for place, op in enumerate(self.ops):
            yield live
            there = (*live, *[tensor for _, tensor in op.outputs])
            live = [tensor for tensor in there if self.read.get(tensor, -1) > place]
        yield live

    @cached_property
    def states(self) -> dict[str, Form]:
        """Return the states in which each result is made or read by ops of the chain."""
        found: dict[str, dict[NdSbp, None]] = {t: {} for op in self.ops for _, t in op.outputs}
        for op in self.ops:
            choices = self.network.variables.of(self.variable[op.name]).choices
            for operand, tensor in op.operands:
                if tensor in found:
                    found[tensor].update(dict.fromkeys(choice[operand] for choice in choices))
        return {tensor: tuple(states) for tensor, states in found.items()}

    def _combined(self, live: Sequence[str]) -> list[Form]:
        return list(itertools.product(*[self.states[tensor] for tensor in live]))

    def _table(self, tensor: str) -> RedistributionTable:
        return self.network.factors.tables[self._prices(tensor)]

    def _prices(self, tensor: str) -> int:
        return int(self.network.factors.table[self.factor[self.number[tensor]]])

    def _moves(self, live: Sequence[str]) -> Floats:
        """Return what one half's moves on a cut cost, forward and backward."""
        found = np.zeros((2, 1, 1))
        for tensor in live:
            states, table = self.states[tensor], self._table(tensor)
            back = [dual(state, table) for state in states]
            one = np.array([_costs(table, states, states), _costs(table, back, back).T])
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
            tuple([self.states[tensor] for tensor in lives[first]]),
            tuple([self.states[tensor] for tensor in lives[last]]),
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
        number = {form: place for place, form in enumerate(self._combined(lives[last]))}
        rows = []
        for before, form in enumerate(self._combined(lives[first])):
            ways: list[Way] = [(form, (0.0, 0.0, 0.0), ())]
            for place in range(first, last):
                ways = self._onward(ways, lives[place], place, lives[place + 1])
            rows += [(before, number[after], *spent, choices) for after, spent, choices in ways]
        if not rows:
            raise InfeasibleError(
                f"search='hidup' on mesh {self.network.mesh}: ops {self.ops[first].name} to "
                f"{self.ops[last - 1].name} can't run without communication between them; use "
                "search='exact'"
            )
        starts, ends, ahead, back, once_s, chosen = zip(*rows, strict=True)
        unit = Unit(np.array(starts), np.array(ends), np.array([ahead, back]).T, np.array(once_s))
        return unit, chosen

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
        found: dict[Form, list[Way]] = {}
        for form, spent, choices in ways:
            wanted = tuple([form[index] for index in reads])
            for made, more, choice in options.get(wanted, ()):
                both = (*form, *made)
                after = tuple([both[index] for index in stays])
                total = (spent[0] + more[0], spent[1] + more[1], spent[2] + more[2])
                found.setdefault(after, []).append((after, total, (*choices, *choice)))
        return [way for some in found.values() for way in _least(some)]

    def _look(self, op: Op) -> object:
        """Return what ops with equal options have in common."""
        domain = self.network.variables.domain
        held = [
            (int(domain[self.held[t]]), self._prices(t)) if t in self.held else ()
            for _, t in op.inputs
        ]
        return int(domain[self.variable[op.name]]), self.back[op.name], *held

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

    def _options(self, op: Op, here: Sequence[str]) -> dict[Form, list[Way]]:
        """Return by the states of the results that an op reads what it can make of them."""
        domain = self.network.variables.of(self.variable[op.name])
        key = self._look(op), tuple([here.index(t) if t in here else -1 for _, t in op.inputs])
        if key in self.known:
            return self.known[key]
        found: dict[Form, list[Way]] = {}
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

    def _once_s(self, parameter: str, state: NdSbp) -> float:
        """Return what comes once for a parameter that is read in a state, stored as is cheapest."""
        domain = self.network.variables.of(self.held[parameter])
        table, stored = self._table(parameter), [choice[TENSOR] for choice in domain.choices]
        seconds = domain.compute_s + _costs(table, stored, [state])[:, 0]
        if self.program.parameter[parameter].gradient is not None:
            seconds = seconds + _costs(table, [dual(state, table)], stored)[0]
        return float(seconds.min())


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


def _costs(table: RedistributionTable, starts: Sequence[NdSbp], goals: Sequence[NdSbp]) -> Floats:
    """Return the seconds from some states to some others."""
    rows, columns = ([table.index[state] for state in states] for states in (starts, goals))
    return np.asarray(table.cost[np.ix_(rows, columns)])


def _least(ways: Sequence[Way]) -> Iterator[Way]:
    """Yield ways that no other one is better than in all that they take, equal ones once."""
    kept: list[Way] = []
    for way in sorted(ways, key=lambda way: way[1]):
        if not any(all(a <= b for a, b in zip(old[1], way[1], strict=True)) for old in kept):
            kept.append(way)
    return iter(kept)
