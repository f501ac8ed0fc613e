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
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from autoddl.perfmodel.compute_stream import workspace_bytes
from autoddl.perfmodel.memory import local_bytes
from autoddl.sbp.program import Program
from autoddl.search.dual import Dual
from autoddl.search.moves import price, single
from autoddl.search.passes import last_before, waiting_for_loss
from autoddl.search.priced import KNOWN, Prices
from autoddl.search.problem import KEPT, TENSOR, Edge, Ints, Problem
from autoddl.search.result import Assignment
from autoddl.search.shorten import Shortened

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
        nodes, edges = list(some.problem.nodes), list(some.problem.edges)
        table = edges[self.number].table
        table = replace(table, cost=table.cost + PART * byte_s * self.passing)
        edges[self.number] = replace(edges[self.number], table=table)
        for index, held in self.held.items():
            node = some.problem.nodes[some.place[index]]
            both = (1 - PART) * node.memory_bytes + PART * held
            nodes[some.place[index]] = replace(node, memory_bytes=both.astype(np.int64))
        dual = Dual(
            replace(some.problem, nodes=tuple(nodes), edges=tuple(edges)),
            byte_s=byte_s, most_s=prices.dual.most_s, fold=prices.dual.fold, before=prices.dual,
            wide=prices.dual.wide,
        )  # fmt: skip
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
    prices: Prices | None = problem.notes.get(KNOWN)
    if prices is None or not problem.compute_stream:
        return None
    once, place = _occurring_once(prices.some), problem.program.order.number
    made, want = problem.states(assignment)

    def passing(index: int) -> tuple[int, int]:
        edge, goal = problem.edges[index], want[problem.flat.first_reader[index]]
        held = _passing_bytes(problem, edge, int(made[index]), int(goal))
        return held, -place[problem.nodes[edge.producer].name]

    moved = [index for index in problem.redistributed(assignment) if index in once]
    gradients = [index for index in moved if _is_gradient(problem, problem.edges[index])]
    if not gradients:
        return None
    index = max(gradients, key=passing)
    table = _passing(problem, problem.edges[index])
    return Moment(index, once[index], table, dict(_held(problem, index)))


def _is_gradient(problem: Problem, edge: Edge) -> bool:
    """Tell whether a tensor is read by the update of a parameter only."""
    nodes = problem.nodes
    made = nodes[edge.producer].kind == "op" and len(edge.readers) == 1
    return made and nodes[edge.readers[0][0]].kind == "parameter"


def _occurring_once(some: Shortened) -> Mapping[int, int]:
    """Return the edges that stand only for themselves where layers are left out, and which those are."""
    ends = tuple(some.edges())
    uses = Counter(edge for edges in ends for edge in set(edges))
    return {
        index: edges[0]
        for index, edges in enumerate(ends)
        if len(set(edges)) == 1 and uses[edges[0]] == 1
    }


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


def _held(problem: Problem, edge: int) -> Iterator[tuple[int, Ints]]:
    """Yield nodes of which something that waits may not be there when a gradient is redistributed.

    With them comes what they hold then at least, by choice. A parameter itself is always there.
    """
    program, late = problem.program, waiting_for_loss(problem.program)
    begin = last_before(program, [problem.nodes[problem.edges[edge].producer].name])
    sooner, later = (_sooner(program, begin), _later(program, begin)) if begin else (set(), set())

    def there(tensor: str) -> bool:
        maker, readers = program.producer.get(tensor), program.consumers.get(tensor, ())
        made = maker is None or maker.name in sooner
        return made and any(op.name in later for op, _ in readers)

    for index, node in enumerate(problem.nodes):
        if node.kind == KEPT and not there(node.name):
            yield index, np.zeros_like(node.memory_bytes)
            parameter = problem.position.get(("parameter", node.name))
            if parameter is not None:
                yield parameter, _with_itself(problem, parameter)
        elif node.kind == "op" and node.memory_bytes.any():
            readers = {t: program.consumers.get(t, ()) for _, t in program.op[node.name].outputs}
            waiting = [t for t, ops in readers.items() if any(op.name in late for op, _ in ops)]
            if not all(map(there, waiting)):
                yield index, np.zeros_like(node.memory_bytes)


def _with_itself(problem: Problem, index: int) -> Ints:
    """Return what the node of a parameter that waits holds with the parameter."""
    node = problem.nodes[index]
    tensor, shape = problem.program.tensor[node.name], problem.mesh.shape
    own = [local_bytes(tensor, choice[TENSOR], shape) for choice in node.choices]
    return node.memory_bytes + np.array(own, dtype=np.int64)


def _sooner(program: Program, begin: str) -> set[str]:
    """Return the ops that run before one of them, whatever the states, and itself.

    Those are what it comes from, and what needs only that, if many ops follow each other in between.
    """
    order, last = program.order, program.order.number[begin]
    steps = {last: 0.0}  # ops that follow each other until `begin`, at least
    for op in range(last, -1, -1):
        if op in steps:
            for source in order.before[op]:
                steps[source] = max(steps.get(source, 0.0), steps[op] + 1)
    for op in range(len(program.ops)):
        if op not in steps:
            left = min((steps.get(source, 0.0) for source in order.before[op]), default=math.inf)
            if left > STEPS:
                steps[op] = left - STEPS
    return {program.ops[op].name for op in steps}


def _later(program: Program, begin: str) -> set[str]:
    """Return the ops that run after one and what it makes: many ops follow each other until then."""
    order = program.order
    steps = {order.number[begin]: 0}
    for op in range(order.number[begin] + 1, len(program.ops)):
        known = [steps[source] for source in order.before[op] if source in steps]
        if known:
            steps[op] = 1 + max(known)
    return {program.ops[op].name for op, count in steps.items() if count > STEPS}
