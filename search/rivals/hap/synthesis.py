"""HAP's program synthesis ("astar"): a distributed program is built of Hoare triples, by an A* search.

A state is the set of properties that hold: tensor t was made in state s, or sent to it. A computation
is a triple for each signature of an op: it needs its operands in some states, and makes its results. A
communication needs that t was made in one state and gives it in another. Computations come in the order
of the program, which does not change their sum, and communications where something needs them. Properties
of tensors that nothing reads any more are dropped, so that programs which differ only there are one
state, of which the cheapest way is kept.

    {x made S0}  send x to B, 2 ms  {x made S0, x sent B}  matmul (B, S1) → S1, 3 ms  {y made S1}

With `communicated_once` each tensor is sent to one state at most, as in the paper. Without it the least
sum is that of exhaustive search. What remains is guessed by nothing, by the least compute of what is to
come, or by the bound of the dual relaxation for what was chosen.

Source: HAP (seed 001), "Semantic Rules", figure 11.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from autoddl.errors import AutoDDLError, InfeasibleError, shown
from autoddl.search.heuristics.descent import replicated
from autoddl.search.incumbent import Incumbent
from autoddl.search.network.cost_network import CostNetwork, Floats
from autoddl.search.relaxation.dual import Dual
from autoddl.search.result import DEFAULTS, Assignment, SearchOptions, SearchResult

LIMIT = 200_000
NONE, COMPUTE, DUAL = "none", "compute", "dual"
HEURISTICS = NONE, COMPUTE, DUAL
ROUNDS = 50  # of dual ascent, once
MADE, SENT, WANTED = range(3)


class NumberedProperty(NamedTuple):
    """A tensor, by its factor, in a state: MADE or SENT so, or WANTED so before it is made.

    The update of a parameter wants its gradient in the state that was chosen for the parameter.
    """

    tensor: int
    state: int
    how: int


Properties = frozenset[NumberedProperty]


class Triple(NamedTuple):
    """A computation: what it needs (tensor, state), what it makes, its seconds and bytes."""

    needs: tuple[tuple[int, int], ...]
    makes: tuple[tuple[int, int], ...]
    seconds: float
    held: int


class Reached(NamedTuple):
    """So many computations are done, and these properties hold.

    Bytes that are `held` tell states apart where memory is limited, and are 0 otherwise.
    """

    done: int
    holds: Properties
    held: int = 0


def search(
    problem: CostNetwork, options: SearchOptions = DEFAULTS, *, heuristic: str = COMPUTE,
    communicated_once: bool = True, limit: int = LIMIT,
) -> SearchResult:  # fmt: skip
    """Return the program of the least sum of compute and communication, as an assignment.

    `limit` bounds the states that are looked at, which are the result's `evaluations`; the cheapest of
    the starts is returned where it is cheaper. Budget, seed and gap have no effect here.

    Raises:
        AutoDDLError: there is no such heuristic.
        InfeasibleError: more than `limit` states, or nothing fits into the memory.
    """
    if heuristic not in HEURISTICS:
        raise AutoDDLError(
            f"heuristic: got {shown(heuristic)}; allowed are {', '.join(HEURISTICS)}"
        )
    run = Incumbent(problem, options)
    for start in (*options.starts, replicated(problem)):
        run.offer(start)
    guess = _Guess(problem, heuristic, run.most_s())
    found = _Search(_Triples(problem, communicated_once, run.limit), guess, limit)
    program = found.program()
    run.evaluations += found.visited
    if program is not None:
        run.offer(program)
    run.raise_to(guess.bound_s if communicated_once else math.inf)
    return run.result("astar")


class _Triples:
    """The triples of a network, and what properties hold after each."""

    def __init__(self, problem: CostNetwork, once: bool, limit: int | None) -> None:
        self.problem, self.once, self.limit = problem, once, limit
        factors = problem.factors
        self.costs = [factors.tables[n].cost for n in factors.table.tolist()]
        producer = factors.producer.tolist()
        last = np.maximum.reduceat(factors.variable, factors.begin[:-1]).tolist()
        count = len(problem)
        needs: list[list[tuple[int, list[int]]]] = [[] for _ in range(count)]
        makes: list[list[tuple[int, list[int]]]] = [[] for _ in range(count)]
        self.dropped: list[set[int]] = [set() for _ in range(count)]
        for tensor in range(len(producer)):
            (maker, made), *readers = factors.ends(tensor)
            makes[maker].append((tensor, made.tolist()))
            for reader, wanted in readers:
                needs[reader].append((tensor, wanted.tolist()))
            self.dropped[last[tensor]].add(tensor)
        domains = [problem.variables.of(v) for v in range(count)]
        self.of = [
            [
                Triple(
                    tuple([(t, states[c]) for t, states in needs[v]]),
                    tuple([(t, states[c]) for t, states in makes[v]]),
                    float(domain.compute_s[c]), int(domain.memory_bytes[c]),
                )
                for c in range(len(domain.choices))
            ]
            for v, domain in enumerate(domains)
        ]  # fmt: skip
        least = [int(domain.memory_bytes.min()) for domain in domains]
        self.least_held = [sum(least[v:]) for v in range(count + 1)]

    def steps(self, here: Reached) -> Iterator[tuple[int, float, Reached]]:
        """Yield the computations that may be next, with the seconds of what they send, and what holds."""
        made = {p.tensor: p.state for p in here.holds if p.how == MADE}
        for choice, triple in enumerate(self.of[here.done]):
            held = 0 if self.limit is None else here.held + triple.held
            if self.limit is not None and held + self.least_held[here.done + 1] > self.limit:
                continue
            found = self._after(here.holds, made, triple)
            if found is None:
                continue
            sent_s, holds = found
            gone = self.dropped[here.done]
            left = frozenset([p for p in holds if p.tensor not in gone]) if gone else holds
            yield choice, triple.seconds + sent_s, Reached(here.done + 1, left, held)

    def _after(
        self, holds: Properties, made: dict[int, int], triple: Triple
    ) -> tuple[float, Properties] | None:
        """Return the seconds of communication, and what holds behind it and a computation."""
        made = {**made, **dict(triple.makes)}
        new = {NumberedProperty(t, s, MADE) for t, s in triple.makes}
        wanted = {(p.tensor, p.state) for p in holds if p.how == WANTED and p.tensor in made}
        new |= {NumberedProperty(t, s, WANTED) for t, s in triple.needs if t not in made}
        wanted |= {(t, s) for t, s in triple.needs if t in made}
        sent = {NumberedProperty(t, s, SENT) for t, s in wanted if s != made[t]} - holds
        known = {p.tensor for p in holds if p.how == SENT}
        if self.once:
            tensors = [p.tensor for p in sent]
            if known.intersection(tensors) or len(set(tensors)) < len(tensors):
                return None
        seconds = sum(self.costs[p.tensor][made[p.tensor], p.state] for p in sent)
        kept = frozenset([p for p in holds if p.how != WANTED or p.tensor not in made])
        return (float(seconds), kept | new | sent) if math.isfinite(seconds) else None


class _Guess:
    """What programs take at least: from a state on, and whatever else they do, with a choice."""

    def __init__(self, problem: CostNetwork, heuristic: str, most_s: float) -> None:
        domains = [problem.variables.of(v) for v in range(len(problem))]
        least = [0.0 if heuristic == NONE else float(d.compute_s.min()) for d in domains]
        self.rest = np.append(np.cumsum(least[::-1])[::-1], 0.0).tolist()
        self.bound_s, self.with_choice = 0.0, [np.zeros(len(d.choices)) for d in domains]
        if heuristic == DUAL:
            dual = Dual(problem, most_s=most_s)
            self.bound_s = dual.ascend(ROUNDS)
            begins = np.cumsum([len(d.choices) for d in domains])[:-1]
            rows: list[Floats] = np.split(self.bound_s + dual.reduced_costs(), begins)
            self.with_choice = rows


@dataclass
class _Search:
    """A* over what is reached; a state is looked at again where a cheaper way to it is found.

    Bounds of choices hold for all programs with them, so along the way to the best program none is
    above what that takes, and it is the first whole one that leaves the queue.
    """

    triples: _Triples
    guess: _Guess
    limit: int
    visited: int = 0
    before: dict[Reached, tuple[Reached, int]] = field(default_factory=dict)

    def program(self) -> Assignment | None:
        """Return the cheapest program, None if there is none."""
        start, number, end = Reached(0, frozenset()), itertools.count(), len(self.triples.problem)
        cheapest = {start: 0.0}
        queue = [(self.guess.rest[0], next(number), 0.0, start)]
        while queue:
            least_s, _, seconds, here = heapq.heappop(queue)
            if seconds > cheapest[here]:
                continue
            if here.done == end:
                return self._way(here)
            self.visited += 1
            if self.visited > self.limit:
                raise InfeasibleError(
                    f"search='astar': more than {self.limit:,} states of the {end} nodes on mesh "
                    f"{self.triples.problem.mesh}; use search='exact'"
                )
            for choice, step_s, after in self.triples.steps(here):
                total = seconds + step_s
                if total < cheapest.get(after, math.inf):
                    cheapest[after], self.before[after] = total, (here, choice)
                    bound = max(least_s, self.guess.with_choice[here.done][choice])
                    bound = max(bound, total + self.guess.rest[after.done])
                    heapq.heappush(queue, (bound, next(number), total, after))
        return None

    def _way(self, here: Reached) -> Assignment:
        found = []
        while here in self.before:
            here, choice = self.before[here]
            found.append(choice)
        return Assignment.of(found[::-1])
