"""What a baseline holds of an assignment, and how the rest of it is completed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from autoddl.sbp.state import NdSbp
from autoddl.search.baselines.follow import follow, reads
from autoddl.search.heuristics.cells import roots
from autoddl.search.heuristics.descent import IMPROVEMENT, Descent, replicated
from autoddl.search.network.cost_network import TENSOR, CostNetwork, Ints
from autoddl.search.reductions.quotient import Quotient, quotient
from autoddl.search.reductions.restriction import everything
from autoddl.search.relaxation.dual import Dual
from autoddl.search.result import Assignment

Completed = tuple[Ints, set[int]]  # an assignment, and the nodes of it that may be refined

REFINED = 2  # so many of the cheapest are refined; the cheapest alone may end 9 % dearer
ROUNDS = 3  # of dual ascent between two roundings
CLOSE = 1e-4  # relative; what is that near to the bound is not worth another rounding


@dataclass(frozen=True, eq=False)
class HeldStates:
    """The states that a baseline holds: of inputs and parameters, and of operands of some ops.

    `operands` maps ops to operands to states; an op that has no such signature is not held.
    `held` has all inputs and parameters of the problem; where equal layers may be held in other ways,
    also the parameters of those that the problem lacks.
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

    def __init__(self, problem: CostNetwork) -> None:
        self.problem, self.reads = problem, reads(problem)
        variables = problem.variables
        self.given = variables.where("input", "parameter").tolist()
        self.ops = {variables.name[node]: node for node in variables.where("op").tolist()}
        contractions = {*roots(problem), *roots(problem, "backward")}
        self.free = set(range(len(problem))) - contractions - set(self.given)
        self.every, self.descent = everything(problem), Descent(problem)
        self.dual = Dual(problem, most_s=2 * problem.cost_s(replicated(problem)))
        self._known: dict[Family, Assignment | None] = {}
        self._fits: dict[object, Ints] = {}

    def best(self, family: Family) -> Assignment | None:
        """Return the best assignment that holds a layout of a baseline; None if there is none."""
        if family not in self._known:
            found, completed = list[Assignment](), list[Completed]()
            for layout in self.problem.derived(family):
                if layout.start is None:
                    completed += self._complete(layout)
                else:
                    point = np.array(self.best(layout.start))
                    self._hold(layout, point)
                    found.append(Assignment(self.descent.refine(point, self.free)))
            completed = sorted(completed, key=self._price)[:REFINED]
            completed = [(self.descent.refine(point, free), free) for point, free in completed]
            if completed:
                found.append(self._settled(*min(completed, key=self._price)))
            self._known[family] = min(found, key=self.problem.cost_s, default=None)
        return self._known[family]

    def _price(self, completed: Completed) -> float:
        return self.problem.cost_s(completed[0])

    def _hold(self, layout: HeldStates, point: Ints) -> None:
        """Give inputs and parameters the states of a layout, where a user's pin leaves them these."""
        variables = self.problem.variables
        for node in self.given:
            wanted = layout.held.get(variables.name[node])
            states = [choice[TENSOR] for choice in variables.of(node).choices]
            if wanted in states:
                point[node] = states.index(wanted)

    def _complete(self, layout: HeldStates) -> list[Completed]:
        """Hold a layout and let ops follow their producers; return that and the nodes to refine.

        Ops follow in two ways: as is cheapest, and as near to their inputs as can be.
        """
        first, free = self.reads.first, set(self.free)
        point, allowed = np.full(len(self.problem), -1), np.ones(first[-1], dtype=np.int64)
        point[self.given] = 0
        self._hold(layout, point)
        for name, wanted in layout.operands.items():
            node = self.ops.get(name, -1)
            fits = () if node < 0 else self._fitting(node, wanted)
            if len(fits):
                free.discard(node)
                allowed[first[node] : first[node + 1]] = 0
                allowed[first[node] + fits] = 1
        return [(follow(self.reads, point, allowed, reduced), free) for reduced in range(2)]

    def _fitting(self, node: int, wanted: Mapping[str, NdSbp]) -> Ints:
        """Return the choices of an op that have the wanted states."""
        key = int(self.problem.variables.domain[node]), tuple(wanted.items())
        if key not in self._fits:
            choices = self.problem.variables.of(node).choices
            fits = list(range(len(choices)))
            for operand, state in wanted.items():
                fits = [choice for choice in fits if choices[choice][operand] == state]
            self._fits[key] = np.array(fits, dtype=np.int64)
        return self._fits[key]

    def _settled(self, point: Ints, free: Collection[int]) -> Assignment:
        """Return what dual ascent rounds to where only the free variables move, until none is better."""
        problem, dual, best = self.problem, self.dual, Assignment(point)
        dual.begin([c if v in free else point[v : v + 1] for v, c in enumerate(self.every)])
        best_s = problem.cost_s(best)
        while True:
            bound_s = dual.ascend(ROUNDS)
            found = Assignment(self.descent.refine(dual.rounded(), free))
            found_s = problem.cost_s(found)
            if found_s >= best_s * (1 - IMPROVEMENT):
                return best
            best, best_s = found, found_s
            if best_s <= bound_s * (1 + CLOSE):
                return best


def best(problem: CostNetwork, family: Family) -> Assignment | None:
    """Return the best assignment that holds a layout of a baseline; None if there is none.

    It is completed without repeated layers where the layouts hold these alike.
    """
    short = quotient(problem)
    if not _alike(problem, short, short.network.derived(family)):
        short = Quotient.identity(problem)
    found = short.network.derived(Completion).best(family)
    return None if found is None else short.invert(found)


def _alike(whole: CostNetwork, short: Quotient, layouts: Sequence[HeldStates]) -> bool:
    """Tell whether layouts hold parameters as those that stand for them."""
    name, nodes = whole.variables.name, whole.variables.where("parameter")
    stand_in = short.variables[short.representative[nodes]]
    pairs = [(name[a], name[b]) for a, b in zip(nodes.tolist(), stand_in.tolist(), strict=True)]
    return all(one.held.get(a, one.held[b]) == one.held[b] for one in layouts for a, b in pairs)
