"""Rhino's O2: segments between critical nodes, stitched by dynamic programming.

A segment has the cones behind one critical node, up to the next one. An integer linear program solves it
for every choice of the latter, behind the best way to every choice of the former; of the ways to a choice
the cheapest goes on. What segments before have decided is given, and a tensor that goes on to a later
segment is paid for where the last of its ends is decided. So nothing is left out of the sum. But segments
do not know what they cost later, other than through the critical node; of a step, whose backward pass
reads what the forward pass made, the plan need not be the best one. Equal segments behind equal choices
are solved once, and those left out that can't be part of the cheapest way.

    fc1 with 6 choices, relu, fc2 with 6: 36 programs at most, of which 6 ways go on.

Source: Rhino §4.3.2, which does not say how tensors across segments are paid for.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from autoddl.errors import InfeasibleError
from autoddl.search.heuristics.descent import replicated
from autoddl.search.incumbent import Incumbent
from autoddl.search.network.cost_network import CostNetwork, Ints, ints
from autoddl.search.network.evaluator import Flags
from autoddl.search.reductions.restriction import Restriction, everything
from autoddl.search.result import DEFAULTS, SearchOptions, SearchResult
from autoddl.search.rivals.rhino import cones
from autoddl.search.rivals.rhino.cones import Cones, is_inner, part_of
from autoddl.search.rivals.rhino.critical import critical, times
from autoddl.search.solvers import ilp

O2 = "O2"
OPEN = -1  # a variable without a choice


def search(problem: CostNetwork, options: SearchOptions = DEFAULTS) -> SearchResult:
    """Return the plan that segments make, or the cheapest of the starts where one is cheaper.

    Where the budget ends before the last segment there is none. It proves nothing, and the bound that is
    returned is that of compute alone; the seed has no effect.

    Raises:
        InfeasibleError: the plan does not fit into the memory, which O2 does not know.
    """
    whole = Cones.apply(problem)
    parts = segments(whole)
    if parts[0].pivot is None:
        warnings.warn(
            "search='O2': the program has no matrix product or convolution to begin a segment with; "
            "searching as 'O3' does", stacklevel=2,
        )  # fmt: skip
        return replace(cones.search(problem, options), solver=O2)
    run = Incumbent(problem, options)
    for start in (*options.starts, replicated(problem)):
        run.offer(start)
    found = Stitching(whole.network, run).cheapest(parts)
    if found is not None:
        _, held, fits = run.offer(whole.invert(found.choices))
        if not fits and run.best is None:
            raise InfeasibleError(
                f"search='O2', which does not know of memory, chooses {held:,} B per device, "
                f"{held - (run.limit or 0):,} B more than there are; use search='largest-k' or 'exact'"
            )
    return run.result(O2)


class CriticalSegment(NamedTuple):
    """The variables of a segment, and the critical one that ends it, None at the end."""

    variables: Ints
    pivot: int | None


def segments(cones: Cones) -> list[CriticalSegment]:
    """Return the segments of a network of cones, in order; their pivots are the critical nodes.

    A root is in the segment of its earliest time, what is left of its cone with it. What is no op, or
    reads nothing, is in that of its first reader.
    """
    network, program = cones.network, cones.network.program
    op, factors, last = network.variables.op, network.factors, critical(program)
    last = last[np.isin(last, op)]
    place = times(program)[0] * len(program.ops) + np.arange(len(program.ops))
    rank, end = np.append(np.searchsorted(place[last], place), 0)[op], len(last)
    reader, producer = factors.variable[factors.reads], factors.producer[factors.factor]
    producer = producer[factors.reads]
    before = cones.whole.factors
    sources = ~np.isin(cones.kept, before.variable[before.reads])
    follows = (op < 0) | sources | is_inner(cones.whole)[cones.kept]
    rank[follows] = end
    for _ in range(2):  # what follows a node that follows another one
        first = np.full(len(network), end)
        np.minimum.at(first, producer, rank[reader])
        rank = np.where(follows, first, rank)
    unread = (op[reader] < 0) & ~np.isin(reader, producer)
    rank[reader[unread]] = rank[producer[unread]]
    variable = dict(zip(op.tolist(), range(len(op)), strict=True))
    pivots = [*[variable[place] for place in last.tolist()], None]
    every = [CriticalSegment(np.flatnonzero(rank == s), pivot) for s, pivot in enumerate(pivots)]
    return [segment for segment in every if len(segment.variables)]


class SegmentPath(NamedTuple):
    """A way through the segments so far: its seconds, and the choices of all variables."""

    cost_s: float
    choices: Ints


@dataclass(frozen=True, eq=False)
class _Part:
    """A segment with what it reads and makes: `network` has `variables`, of which some are `given`.

    `before` has these alone, and what they have paid already.
    """

    network: CostNetwork
    variables: Ints
    given: Flags
    before: CostNetwork
    pivot: int | None

    @cached_property
    def look(self) -> tuple[object, ...]:
        """Return what is equal for equal parts."""
        factors = self.network.factors
        columns = factors.table, factors.begin, factors.variable, factors.states, self.given
        return self.pivot, *[c.tobytes() for c in (self.network.variables.domain, *columns)]

    @cached_property
    def _rest_s(self) -> float:
        """Return the least compute of all that is new but the critical node."""
        new = set(np.flatnonzero(~self.given).tolist()) - {self.pivot}
        return sum(float(self.network.variables.of(v).compute_s.min()) for v in new)

    def least_s(self, choice: int) -> float:
        """Return what the segment costs at least with a choice of its critical node."""
        if self.pivot is None:
            return self._rest_s
        return self._rest_s + float(self.network.variables.of(self.pivot).compute_s[choice])

    def within(self, given: Ints, choice: int | None) -> Restriction:
        """Return the part in which some choices are made."""
        domains = everything(self.network)
        for variable, one in zip(np.flatnonzero(self.given).tolist(), given.tolist(), strict=True):
            domains[variable] = ints([one])
        if self.pivot is not None and choice is not None:
            domains[self.pivot] = ints([choice])
        return Restriction.apply(self.network, domains)


class Stitching:
    """Dynamic programming over the choices of critical nodes."""

    def __init__(self, network: CostNetwork, run: Incumbent) -> None:
        self.network, self.run = network, run
        self.known: dict[object, SegmentPath | None] = {}

    def cheapest(self, segments: Sequence[CriticalSegment]) -> SegmentPath | None:
        """Return the cheapest way through all segments, None where there is none, or the time is up."""
        paths = [SegmentPath(0.0, np.full(len(self.network), OPEN))]
        decided = np.zeros(len(self.network), dtype=np.bool_)
        for segment in segments:
            part = self._part(segment, decided)
            paths = list(self._onward(paths, part))
            decided[segment.variables] = True
        return min(paths, key=lambda path: path.cost_s, default=None)

    def _part(self, segment: CriticalSegment, before: Flags) -> _Part:
        network, factors = self.network, self.network.factors
        near = np.zeros(len(factors.table), dtype=np.bool_)
        near[network.touched(segment.variables)] = True
        ends, producer = near[factors.factor], factors.producer[factors.factor]

        def among(some: Flags, more: Ints) -> tuple[Ints, CostNetwork]:
            there = ends & some[factors.variable] & some[producer]
            variables = np.union1d(more, factors.variable[there])
            return variables, part_of(network, variables, there)

        now = before.copy()
        now[segment.variables] = True
        variables, whole = among(now, segment.variables)
        given = before[variables]
        _, paid = among(before, variables[given])
        pivot = None if segment.pivot is None else int(np.searchsorted(variables, segment.pivot))
        return _Part(whole, variables, given, paid, pivot)

    def _onward(self, paths: Sequence[SegmentPath], part: _Part) -> Iterator[SegmentPath]:
        """Yield the cheapest path to each choice of the critical node that ends a part."""
        count = 1 if part.pivot is None else len(part.network.variables.of(part.pivot).choices)
        by_cost = sorted(paths, key=lambda path: path.cost_s)
        for choice in range(count):
            best, least_s = SegmentPath(np.inf, ints([])), part.least_s(choice)
            for path in by_cost:
                if path.cost_s + least_s >= best.cost_s:
                    break
                more = self._solved(part, path.choices[part.variables[part.given]], choice)
                if more is not None and path.cost_s + more.cost_s < best.cost_s:
                    choices = path.choices.copy()
                    choices[part.variables] = more.choices
                    best = SegmentPath(path.cost_s + more.cost_s, choices)
            if np.isfinite(best.cost_s):
                yield best

    def _solved(self, part: _Part, given: Ints, choice: int) -> SegmentPath | None:
        """Return what a part adds behind given choices, and its own; None where there is no way."""
        key = part.look, given.tobytes(), choice
        if key not in self.known:
            if self.run.over():
                return None
            some = part.within(given, choice)
            options = SearchOptions(budget=self.run.left_s(), clock=self.run.options.clock)
            try:
                found = ilp.search(some.network, options)
            except InfeasibleError:
                self.known[key] = None
            else:
                self.run.evaluations += found.evaluations
                more_s = found.cost_s - part.before.cost_s(given)
                self.known[key] = SegmentPath(more_s, np.asarray(some.invert(found.assignment)))
        return self.known[key]
