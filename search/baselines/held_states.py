"""What a baseline holds of an assignment, and how the rest of it is completed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.state import NdSbp
from autoddl.search.baselines.follow import Reads, follow, reads
from autoddl.search.heuristics.cells import roots
from autoddl.search.heuristics.descent import IMPROVEMENT, Descent
from autoddl.search.network.cost_network import SAVED, TENSOR, CostNetwork, Ints
from autoddl.search.reductions.quotient import Quotient, quotient
from autoddl.search.reductions.restriction import Restriction
from autoddl.search.relaxation.dual import Dual
from autoddl.search.result import Assignment

Completed = tuple[Ints, set[int]]  # an assignment, and the nodes of it that may be refined

ROUNDS, TURNS = 3, 2  # of dual ascent between two roundings, and how many of these
REFINED = 2  # so many of the completed layouts, the cheapest, are refined
NEAR = 2  # edges within which nodes follow where a layout differs from the one that it starts from


@dataclass(frozen=True, eq=False)
class HeldStates:
    """LayerStates that a baseline holds: of inputs and parameters, and of operands of some ops.

    `operands` maps ops to operands to states; an op that has no such signature is not held.
    `held` has all inputs and parameters of the program, `operands` the ops of the problem only.
    Where `start` is given, the assignment is the best one of that baseline with other states of the
    inputs and parameters that are held.
    """

    held: Mapping[str, NdSbp]
    operands: Mapping[str, Mapping[str, NdSbp]] = field(default_factory=dict)
    start: Family | None = None


Family = Callable[[CostNetwork], Sequence[HeldStates]]
"""Return the layouts of which a baseline is the best one; none where it does not apply."""


class Completion:
    """Complete layouts of one problem: ops follow their producers, then the free ones are refined.

    Contractions, inputs and parameters are never free.
    """

    def __init__(self, problem: CostNetwork, *, short: bool = True) -> None:
        self.whole = problem
        self.short = short
        self._known: dict[Family, Assignment | None] = {}
        self._fits: dict[tuple[int, frozenset[tuple[str, NdSbp]]], Ints] = {}

    @cached_property
    def shortened(self) -> Quotient:
        """Return the problem without repeated layers."""
        return quotient(self.whole) if self.short else Quotient.identity(self.whole)

    @cached_property
    def at_length(self) -> Completion:
        """Return the completion in the whole problem."""
        return Completion(self.whole, short=False)

    @property
    def problem(self) -> CostNetwork:
        """Return the problem in which layouts are completed."""
        return self.shortened.network

    @cached_property
    def held(self) -> frozenset[int]:
        """Return the nodes that stay as the layout has them: contractions, inputs, parameters."""
        problem = self.problem
        nodes = {*roots(problem), *roots(problem, "backward")}
        nodes.update(problem.variables.where("input", "parameter").tolist())
        return frozenset(nodes)

    @cached_property
    def descent(self) -> Descent:
        """Return the descent that leaves them where they are."""
        return Descent(self.problem, frozen=self.held)

    @cached_property
    def reads(self) -> Reads:
        """Return what nodes read."""
        return reads(self.problem)

    def best(self, family: Family) -> Assignment | None:
        """Return the best assignment that holds a layout of a baseline; None if there is none."""
        layouts = family(self.problem)
        if not all(self._alike(layout) for layout in layouts):
            return self.at_length.best(family)
        found = self._best(family, layouts)
        return None if found is None else self.shortened.invert(found)

    def _best(self, family: Family, layouts: Sequence[HeldStates]) -> Assignment | None:
        if family not in self._known:
            changed = [self._changed(a, a.start) for a in layouts if a.start is not None]
            points = [p for a in layouts if a.start is None for p in self._complete(a)]
            points = sorted(points, key=self._price)[:REFINED]
            points = [(self.descent.refine(p, free), free) for p, free in points]
            refined = [self._settled(*p) for p in sorted(points, key=self._price)[:1]]
            self._known[family] = min(changed + refined, key=self.problem.cost_s, default=None)
        return self._known[family]

    def _alike(self, layout: HeldStates) -> bool:
        """Tell whether a layout holds equal layers alike, as one that stands for the others must be."""
        held, (ones, others) = layout.held, self.alike
        return list(map(held.get, ones)) == list(map(held.get, others))

    @cached_property
    def alike(self) -> tuple[list[str], list[str]]:
        """Return the parameters that were left out, with those that stand for them."""
        parameter = self.whole.variables.of_kind("parameter")
        parameter[self.shortened.variables] = False
        left_out, place = np.flatnonzero(parameter).tolist(), self.shortened.representative
        name, short = self.whole.variables.name, self.problem.variables.name
        return [name[node] for node in left_out], [short[place[node]] for node in left_out]

    def _price(self, completed: Completed) -> float:
        return self.problem.cost_s(completed[0])

    def _changed(self, layout: HeldStates, start: Family) -> Assignment:
        """Return the best assignment of a baseline with other held states, which ops nearby follow."""
        before = self._best(start, start(self.problem))
        if before is None:
            raise ValueError("a layout starts from a baseline without layouts")
        point, near, neighbours = np.array(before), set[int](), self.problem.neighbours
        for index in self.problem.variables.where("input", "parameter").tolist():
            choice = _held(self.problem, index, layout)
            if choice is not None and choice != point[index]:
                point[index] = choice
                near |= {index, *neighbours(index)}
        for _ in range(NEAR - 1):
            near |= {other for node in near for other in neighbours(node)}
        return Assignment(self.descent.refine(point, near))

    def _complete(self, layout: HeldStates) -> list[Completed]:
        """Hold a layout and let ops follow their producers; return that and the nodes to refine.

        Ops follow in two ways: as is cheapest, and as near to their inputs as can be.
        """
        columns, first = self.problem.variables, self.reads.first
        given, allowed = (
            np.zeros(len(columns.domain), dtype=np.int64),
            np.ones(first[-1], dtype=np.int64),
        )
        for node in columns.where("input", "parameter").tolist():
            given[node] = _held(self.problem, node, layout) or 0
        free = set(range(len(given))) - self.held
        for node in columns.where("op", SAVED).tolist():
            given[node], wanted = -1, layout.operands.get(columns.name[node])
            if wanted is not None:
                fits = self._fitting(columns.of(node).choices, wanted)
                if len(fits):
                    free.discard(node)
                    allowed[first[node] : first[node + 1]] = 0
                    allowed[first[node] + fits] = 1
        near = 1 + IMPROVEMENT
        found = [follow(self.reads, given, allowed, near, reduced) for reduced in range(2)]
        return [(point, free) for point in found]

    def _settled(self, point: Ints, free: Collection[int]) -> Assignment:
        """Return the best that dual ascent rounds to where only the free variables move, refined."""
        problem, best = self.problem, Assignment(point)
        domains = [np.array([choice]) for choice in point.tolist()]
        for variable in free:
            domains[variable] = np.arange(len(problem.variables.of(variable).choices))
        few = Restriction.apply(problem, domains)
        dual = Dual(few.network, most_s=2 * problem.cost_s(best))
        for _ in range(TURNS):
            dual.ascend(ROUNDS)
            found = Assignment(self.descent.refine(few.invert(dual.rounded()), free))
            best = min(best, found, key=problem.cost_s)
        return best

    def _fitting(self, choices: tuple[NdSignature, ...], wanted: Mapping[str, NdSbp]) -> Ints:
        """Return the choices that have the wanted states."""
        key = id(choices), frozenset(wanted.items())  # the problem keeps choices
        if key not in self._fits:
            fits = [all(c[o] == s for o, s in wanted.items()) for c in choices]
            self._fits[key] = np.flatnonzero(fits)
        return self._fits[key]


def _held(network: CostNetwork, variable: int, layout: HeldStates) -> int | None:
    """Return the choice that a layout holds; None where it, or a user's pin, leaves none."""
    wanted = layout.held.get(network.variables.name[variable])
    states = [choice[TENSOR] for choice in network.variables.of(variable).choices]
    return states.index(wanted) if wanted in states else None
