"""The moment of the backward pass at which a plan takes most: what passes adds to what waits.

While the gradient of a parameter is redistributed for its update, the gradient, buffers and the result
are in memory beside everything that waits for later ops. A search counts what waits only (passes.py),
which no plan can do without; a bound that counts both is nearer to what plans take.

Such a moment is the same in all plans: OneFlow takes ops breadth first, so that many ops in between
tell which of two comes first, whatever the states.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np

from autoddl.perfmodel.compute_stream import workspace_bytes
from autoddl.perfmodel.memory import local_bytes
from autoddl.sbp.columns import Flags
from autoddl.sbp.program import Program
from autoddl.search.moves import price, single
from autoddl.search.priced import KNOWN, Prices
from autoddl.search.problem import KEPT, TENSOR, Edge, Ints, Problem
from autoddl.search.result import Assignment
from autoddl.search.shorten import Shortened
from autoddl.search.walks import later, sooner, sources, waiting_for_loss

STEPS = 8  # ops with the identities of their redistributions in front of them that make an update
PART = 0.85  # of the price of a byte is for this moment, the rest for the time between the passes
TURN, TURNS = 2, 50  # rounds of the ascent, and how often it takes so many at most
CALM = 2e-5  # it ends when a turn raises the bound by less, relative


@dataclass(frozen=True, eq=False)
class Moment:
    """While a gradient, the tensor of an edge, is redistributed for an update.

    `number` is that of the edge in the problem that lacks layers.
    `passing[s, w]` are the bytes of the gradient, buffers and the result by the states before and
    after; `held` are those of nodes that hold less than in between the passes, by choice.
    """

    edge: int
    number: int
    passing: Ints
    held: Mapping[int, Ints]

    def memory_bytes(self, problem: Problem, assignment: Sequence[int]) -> int:
        """Return what is in memory in this moment at least."""
        edge = problem.edges[self.edge]
        ((node, wanted),) = edge.readers
        there = problem.flat.memory_bytes(assignment)
        for index, held in self.held.items():
            there[index] = held[assignment[index]]
        passing = self.passing[edge.source[assignment[edge.producer]], wanted[assignment[node]]]
        return int(there.sum() + passing)

    def relieved(self, problem: Problem, assignment: Sequence[int]) -> Assignment:
        """Return an assignment in which one tensor waits as is cheapest that is not there any more.

        That takes no memory in this moment. It is the tensor with which most is gained.
        """
        best, best_s = tuple(assignment), 0.0
        for index in self.held:
            if problem.nodes[index].kind == KEPT:
                seconds, _ = price(problem, assignment, single(problem, index))
                saved_s = float(seconds[assignment[index]] - seconds.min())
                if saved_s > best_s:
                    choice, best_s = int(seconds.argmin()), saved_s
                    best = (*assignment[:index], choice, *assignment[index + 1 :])
        return best

    def bound_s(self, problem: Problem, limit: int, budget: float = math.inf) -> float:
        """Return seconds that no plan within a limit stays below; that takes `budget` seconds at most.

        At no time may a plan take more, so a part of a byte's price is for this moment.
        """
        begin = time.perf_counter()
        prices: Prices = problem.notes[KNOWN]
        some, byte_s = prices.some, prices.best(limit)
        cost = some.problem.edges[self.number].table.cost + PART * byte_s * self.passing
        both = {}
        for node, held in {some.place[index]: held for index, held in self.held.items()}.items():
            there = (1 - PART) * some.problem.nodes[node].memory_bytes + PART * held
            both[node] = there.astype(np.int64)
        dual = prices.dual.repriced(byte_s, self.number, cost, both)
        found_s = -math.inf
        for _ in range(TURNS):
            before_s, found_s = found_s, max(found_s, dual.ascend(TURN))
            late = time.perf_counter() - begin > budget
            if late or found_s - before_s <= CALM * abs(found_s):
                break
        return found_s - byte_s * limit


def moment(problem: Problem, assignment: Sequence[int]) -> Moment | None:
    """Return the moment in which an assignment takes most for a gradient, the first of equal ones.

    There is none with streams of their own, where ops run in another order, nor where no search has
    found prices of memory. Gradients that stand for those of other layers do not count.
    """
    if KNOWN not in problem.notes or not problem.compute_stream:
        return None
    return problem.once("moments", lambda: _Moments(problem)).greatest(assignment)


class _Moments:
    """All gradients of a problem that stand for themselves only, and the moments that were looked at."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        prices: Prices = problem.notes[KNOWN]
        self.once = _occurring_once(prices.some)
        self.edges = np.flatnonzero(_gradients(problem) & (self.once >= 0))
        self.at, self.passing = cache(self._at), cache(self._passing)

    def greatest(self, assignment: Sequence[int]) -> Moment | None:
        """Return the moment in which an assignment takes most, the first of equal ones."""
        made, want = self.problem.states(assignment)
        first = np.array(self.problem.flat.first_reader)[self.edges]
        moved = made[self.edges] != want[first]
        columns = self.edges[moved], made[self.edges[moved]], want[first[moved]]
        places = zip(*(column.tolist() for column in columns), strict=True)
        found = max(places, key=lambda place: self.passing(*place), default=None)
        return None if found is None else self.at(found[0])

    def _passing(self, index: int, source: int, goal: int) -> tuple[int, int]:
        """Return the bytes in memory then, and a number that is greater for gradients made sooner."""
        edge = self.problem.edges[index]
        held = _passing_bytes(self.problem, edge, source, goal)
        return held, -_maker(self.problem.program, edge)

    def _at(self, index: int) -> Moment:
        problem = self.problem
        table = _passing(problem, problem.edges[index])
        return Moment(index, int(self.once[index]), table, _held(problem, index))


def _maker(program: Program, edge: Edge) -> int:
    """Return the op that makes the tensor of an edge."""
    return int(program.columns.maker[program.columns.number[edge.tensor]])


def _gradients(problem: Problem) -> Flags:
    """Tell of every edge whether its tensor is read by the update of a parameter only."""
    nodes, edges = problem.node_columns, problem.edge_columns
    first, one = edges.begin[:-1], np.diff(edges.begin) == 2
    found: Flags = nodes.of_kind("op")[edges.node[first]] & one
    found[one] &= nodes.of_kind("parameter")[edges.node[first[one] + 1]]
    return found


def _occurring_once(some: Shortened) -> Ints:
    """Return by edge which one of those that remain it is, if that stands for this one only; or -1."""
    begin, edge = some.ends.begin, some.ends.edge
    whole = np.repeat(np.arange(len(begin) - 1), np.diff(begin))
    first, last = (np.zeros(edge.max(initial=-1) + 1, dtype=np.int64) for _ in range(2))
    last[edge], first[edge[::-1]] = whole, whole[::-1]  # which edges come from one that remains
    alone = first == last
    found = edge[begin[:-1]]
    same = np.logical_and.reduceat(edge == np.repeat(found, np.diff(begin)), begin[:-1])
    return np.asarray(np.where(same & alone[found], found, -1))


def _passing(problem: Problem, edge: Edge) -> Ints:
    """Return the bytes in memory while an edge's tensor is redistributed, itself with them [s, w]."""
    found = np.zeros(edge.table.cost.shape, dtype=np.int64)
    for source in np.unique(edge.source).tolist():
        for goal in np.unique(edge.readers[0][1]).tolist():
            if np.isfinite(edge.table.cost[source, goal]):
                found[source, goal] = _passing_bytes(problem, edge, source, goal)
    return found


def _passing_bytes(problem: Problem, edge: Edge, source: int, goal: int) -> int:
    """Return them for two states: of several boxings one after the other the one that takes most."""
    if source == goal:
        return 0
    tensor, shape = problem.program.tensor[edge.tensor], problem.mesh.shape
    states = edge.table.states
    steps = (states[source], *edge.table.path(states[source], states[goal]))
    sizes = [local_bytes(tensor, state, shape) for state in steps]
    return max(
        sum(held) + (workspace_bytes((old.executed, new.executed), held, shape) or 0)
        for (old, new), held in zip(pairwise(steps), pairwise(sizes), strict=True)
    )


def _held(problem: Problem, edge: int) -> dict[int, Ints]:
    """Return nodes of which something that waits may not be there when a gradient is redistributed.

    With them comes what they hold then at least, by choice. A parameter itself is always there.
    """
    columns, nodes = problem.program.columns, problem.node_columns
    gone, waits = _gone(problem, edge), np.zeros(len(columns.form), dtype=np.bool_)
    late, reads = waiting_for_loss(problem.program), columns.inputs
    waits[reads.tensor[late[reads.op]]] = True
    made, wanted = columns.outputs, np.zeros(len(late), dtype=np.bool_)
    wanted[made.op[(gone & waits)[made.tensor]]] = True
    names, kept = nodes.name, nodes.of_kind(KEPT)
    holds = np.array([form.memory_bytes.any() for form in nodes.forms], dtype=np.bool_)[nodes.form]
    of_op = nodes.of_kind("op") & holds & wanted[problem.ops]
    makers = problem.edge_columns.node[problem.edge_columns.begin[:-1]]
    of_kept = np.sort(makers[kept[makers] & gone[problem.tensors]])
    there = [*np.flatnonzero(of_op).tolist(), *of_kept.tolist()]
    nothing = [np.zeros_like(form.memory_bytes) for form in nodes.forms]
    found = {index: nothing[form] for index, form in zip(there, nodes.form[there], strict=True)}
    waiting = {names[index] for index in there if kept[index]}
    for index in nodes.where("parameter").tolist():
        if names[index] in waiting:
            found[index] = _with_itself(problem, index)
    return found


def _gone(problem: Problem, edge: int) -> Flags:
    """Tell of every tensor whether it may not be there when a gradient is redistributed.

    It is if it was made before, and ops that come later read it.
    """
    program, columns = problem.program, problem.program.columns
    first, makers = sources(program)
    maker = _maker(program, problem.edges[edge])
    before = makers[first[maker] : first[maker + 1]]
    gone = np.ones(len(columns.form), dtype=np.bool_)
    if len(before):  # the last op that the gradient waits for is done then
        begin, reads = int(before[-1]), columns.inputs
        gone[reads.tensor[later(program, begin, STEPS)[reads.op]]] = False
        outputs = columns.outputs
        gone[outputs.tensor[~sooner(program, begin, STEPS)[outputs.op]]] = True
    return gone


def _with_itself(problem: Problem, index: int) -> Ints:
    """Return what the node of a parameter that waits holds with the parameter."""
    node = problem.nodes[index]
    tensor, shape = problem.program.tensor[node.name], problem.mesh.shape
    own = [local_bytes(tensor, choice[TENSOR], shape) for choice in node.choices]
    return node.memory_bytes + np.array(own, dtype=np.int64)
