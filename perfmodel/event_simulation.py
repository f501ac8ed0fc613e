"""When works run on the resources that they need: an event-driven simulation, compiled.

A resource does one thing at a time, and what was ready first goes first. Works 0 and 1 need the device
for 3 s each, work 2 needs a link for 2 s once 0 has ended: they run from 0 to 3, 3 to 6 and 3 to 5 s.

What each part waited for last, another one on its resource or one that its work needs, makes a critical
path: here 0, then 1. Its parts follow one another without a pause and add up to the end of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autoddl.compiled import compiled
from autoddl.perfmodel.resources import ResourceParts
from autoddl.ragged import Ragged

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Graph(NamedTuple):
    """Works by number: what each consists of, and what waits for it.

    The parts of work n, which it runs in turn, stand from `begin[n]` to `begin[n + 1]`: the `resource`
    and the seconds on it. `later` has, from `first[n]` to `first[n + 1]`, the works that wait for it;
    `waits` how many each waits for. Of what has been ready at one time the first goes first.
    """

    begin: Ints
    resource: Ints
    seconds: Floats
    waits: Ints
    first: Ints
    later: Ints


def by_number(works: Sequence[ResourceParts]) -> tuple[list[str], Ragged, Floats]:
    """Return the resources, by number those of each work's parts, and the seconds of all parts."""
    resources: dict[str, int] = {}
    rows = [[resources.setdefault(r, len(resources)) for r, _ in parts] for parts in works]
    seconds = np.array([s for parts in works for _, s in parts], dtype=np.float64)
    return list(resources), Ragged.of(rows), seconds


class ResourceSpan(NamedTuple):
    """A part of some work, by name and number, on a resource, in seconds after the begin."""

    name: str
    resource: str
    start_s: float
    end_s: float
    work: int


@dataclass(frozen=True, eq=False)
class Works:
    """Works column by column; the graph has the numbers of `resources`."""

    names: Sequence[str]
    resources: Sequence[str]
    graph: Graph

    @classmethod
    def of(
        cls, names: Sequence[str], resources: Sequence[str], resource: Ragged, seconds: Floats,
        first: Ints, then: Ints,
    ) -> Works:  # fmt: skip
        """Return works; that with the number `then[i]` waits for that with the number `first[i]`."""
        later, waits = (
            Ragged.sorted(first, then, len(names)),
            np.bincount(then, minlength=len(names)),
        )
        return cls(names, resources, Graph(*resource, seconds, waits, *later))

    def spans(self) -> list[ResourceSpan]:
        """Return all parts in the order in which they start."""
        who, when, _ = run(self.graph, len(self.resources))
        resource = self.graph.resource[self.graph.begin[who[:, 0]] + who[:, 1]].tolist()
        return [
            ResourceSpan(self.names[work], self.resources[on], start_s, end_s, work)
            for work, on, (start_s, end_s) in zip(
                who[:, 0].tolist(), resource, when.tolist(), strict=True
            )
        ]

    @property
    def end_s(self) -> float:
        """Return when all has run."""
        return float(run(self.graph, len(self.resources))[1].max(initial=0.0))

    def critical_s(self) -> Floats:
        """Return of each work the seconds that lie on the critical path; their sum is `end_s`."""
        return critical_s(*run(self.graph, len(self.resources)), len(self.names))


@compiled
def earliest_ends(seconds: Floats, begin: Ints, before: Ints) -> Floats:
    """Return when works end at the earliest; `before` has those that each waits for."""
    found = np.zeros(len(seconds))
    for work in range(len(seconds)):
        for k in range(begin[work], begin[work + 1]):
            found[work] = max(found[work], found[before[k]])
        found[work] += seconds[work]
    return found


@compiled
def longest_path(seconds: Floats, begin: Ints, before: Ints, between: Floats) -> tuple[Ints, Ints]:
    """Return the works of the longest chain, and by which predecessor each but the first waits.

    Predecessors of work n are `before[begin[n] : begin[n + 1]]`, -1 where there is none, earlier numbers;
    the seconds `between` go on in the meantime. There has to be a work.
    """
    count = len(seconds)
    ends, by, length = np.zeros(count), np.full(count, -1), np.zeros(count, np.int64)
    last = 0
    for work in range(count):
        for k in range(begin[work], begin[work + 1]):
            if before[k] >= 0 and ends[before[k]] + between[k] > ends[work]:
                ends[work], by[work] = ends[before[k]] + between[k], k
        if by[work] >= 0:
            length[work] = 1 + length[before[by[work]]]
        ends[work] += seconds[work]
        if ends[work] > ends[last]:
            last = work
    works, waits = np.empty(length[last] + 1, np.int64), np.empty(length[last], np.int64)
    works[-1] = last
    for place in range(len(waits) - 1, -1, -1):
        waits[place] = by[works[place + 1]]
        works[place] = before[waits[place]]
    return works, waits


@compiled
def critical_s(who: Ints, when: Floats, before: Ints, works: int) -> Floats:
    """Return of each work the seconds on the critical path of a run, which ends with the last part."""
    found, row = np.zeros(works), -1
    for other in range(len(who)):
        if row < 0 or when[other, 1] > when[row, 1]:
            row = other
    while row >= 0:
        found[who[row, 0]] += when[row, 1] - when[row, 0]
        row = before[row]
    return found


@compiled
def run(graph: Graph, resources: int) -> tuple[Ints, Floats, Ints]:
    """Return all parts in the order in which they start: (work, part), (start, end) of each, and what
    each waited for last, as the number of a part in this order; -1 for those that start at once.

    On each resource goes first what was ready first.
    """
    count, parts = len(graph.waits), len(graph.seconds)
    who, when = np.empty((parts, 2), np.int64), np.empty((parts, 2))
    before = np.empty(parts, np.int64)
    # the part that made each work ready, and the last one of each resource
    freed, last = np.full(count, -1), np.full(resources, -1)
    waits, at = graph.waits.copy(), graph.begin.copy()
    # by resource a heap of (when it was ready, the work)
    queues = [[(0.0, 0) for _ in range(0)] for _ in range(resources)]
    busy, until = np.full(resources, -1), np.full(resources + 1, np.inf)  # none runs on the last
    moving, moved = np.empty(count, np.int64), 0
    done, now = 0, 0.0
    for work in range(count):
        if waits[work] == 0:
            moving[moved] = work
            moved += 1
    while True:
        while True:
            ended = -1
            for resource in range(resources):
                if until[resource] <= now and (
                    ended < 0 or (until[resource], busy[resource]) < (until[ended], busy[ended])
                ):
                    ended = resource
            if ended < 0:
                break
            moving[moved] = busy[ended]
            moved += 1
            at[busy[ended]] += 1
            freed[busy[ended]] = last[ended]
            busy[ended], until[ended] = -1, np.inf
        place = 0
        while place < moved:  # grows while it is walked
            work = moving[place]
            place += 1
            if at[work] < graph.begin[work + 1]:
                heappush(queues[graph.resource[at[work]]], (now, work))
                continue
            for k in range(graph.first[work], graph.first[work + 1]):
                waits[graph.later[k]] -= 1
                if waits[graph.later[k]] == 0:
                    moving[moved] = graph.later[k]
                    freed[graph.later[k]] = freed[work]
                    moved += 1
        moved = 0
        for resource in range(resources):
            if busy[resource] < 0 and len(queues[resource]):
                ready, work = heappop(queues[resource])
                before[done] = last[resource] if ready < now else freed[work]
                last[resource] = done
                busy[resource], until[resource] = work, now + graph.seconds[at[work]]
                who[done, 0], who[done, 1] = work, at[work] - graph.begin[work]
                when[done, 0], when[done, 1] = now, until[resource]
                done += 1
        now = until.min()
        if now == np.inf:
            return who[:done], when[:done], before[:done]
