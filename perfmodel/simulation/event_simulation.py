"""When works run on the resources that they need: an event-driven simulation, compiled.

A resource does one thing at a time. Of what is ready goes first what has the least rank, and among
equals what was ready first. Works 0 and 1 need the device for 3 s each, work 2 needs a link for 2 s once
0 has ended: they run from 0 to 3, 3 to 6 and 3 to 5 s.
Where works on the device take 1.5 times as long beside that link, work 1 has done 2/1.5 of its 3 s when
the link ends and runs until 6.67 s.

What each part waited for last, another one on its resource or one that its work needs, makes a critical
path: here 0, then 1. Its parts follow one another without a pause and add up to the end of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autoddl.compiled import compiled
from autoddl.perfmodel.resources import DEVICE, ResourceParts
from autoddl.perfmodel.simulation import launch_queue
from autoddl.ragged import Ragged
from autoddl.sbp.lazy import LazyTuple

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Graph(NamedTuple):
    """Works by number: what each consists of, and what waits for it.

    The parts of work n, which it runs in turn, stand from `begin[n]` to `begin[n + 1]`: the `resource`
    and the seconds on it. `later` has, from `first[n]` to `first[n + 1]`, the works that wait for it;
    `waits` how many each waits for. Of what has been ready at one time the first goes first. While
    a part runs on another resource r, those on `slowed` take 1 + `slow[r]` times as long, by the
    largest of these; -1 is none.
    """

    begin: Ints
    resource: Ints
    seconds: Floats
    waits: Ints
    first: Ints
    later: Ints
    slow: Floats
    slowed: int

    @property
    def work_s(self) -> Floats:
        """Return the seconds of each work's parts."""
        count = len(self.waits)
        row = np.arange(count).repeat(np.diff(self.begin))
        return np.bincount(row, self.seconds, count).astype(np.float64)


def by_number(works: Sequence[ResourceParts]) -> tuple[list[str], Ragged, Floats]:
    """Return the resources, by number those of each work's parts, and the seconds of all parts."""
    resources: dict[str, int] = {}
    rows = [[resources.setdefault(r, len(resources)) for r, _ in parts] for parts in works]
    seconds = np.array([s for parts in works for _, s in parts], dtype=np.float64)
    return list(resources), Ragged.of(rows), seconds


class SimulatedRun(NamedTuple):
    """What runs when: the parts of works in the order in which they start.

    Each has a row: `who`, its work and which part of it; `when`, start and end; `before`, the row of what
    it waited for last, -1 where it starts at once. `ended` tells when each work has.
    """

    who: Ints
    when: Floats
    before: Ints
    ended: Floats

    @property
    def end_s(self) -> float:
        """Return when all has run."""
        return float(self.when[:, 1].max(initial=0.0))


class ResourceSpan(NamedTuple):
    """A part of some work, by name and number, on a resource, in seconds after the begin."""

    name: str
    resource: str
    start_s: float
    end_s: float
    work: int


class StepQueue(NamedTuple):
    """The queue of a step: what each work is in it, which works are ops, and what may go together."""

    collectives: launch_queue.Collectives
    is_op: npt.NDArray[np.bool_]
    limits: launch_queue.LaunchLimits


class Launched(NamedTuple):
    """Works as a queue has them: with which work each is `launched`, and what they were without it."""

    queue: StepQueue
    launch: Ints
    alone: Graph


@dataclass(frozen=True, eq=False)
class Works:
    """Works column by column; the graph has the numbers of `resources`."""

    names: Sequence[str]
    resources: Sequence[str]
    graph: Graph
    launched: Launched | None = None

    @classmethod
    def of(
        cls, names: Sequence[str], resources: Sequence[str], resource: Ragged, seconds: Floats,
        first: Ints, then: Ints, slow: Mapping[str, float] | None = None,
    ) -> Works:  # fmt: skip
        """Return works; that with the number `then[i]` waits for that with the number `first[i]`.

        `slow` says how much longer parts on the device take beside those on other resources.
        """
        count = len(resource.start) - 1
        factors = np.array([(slow or {}).get(name, 0.0) for name in resources], dtype=np.float64)
        slowed = list(resources).index(DEVICE) if factors.any() and DEVICE in resources else -1
        waits = successors(first, then, count)
        return cls(names, resources, Graph(*resource, seconds, *waits, slow=factors, slowed=slowed))

    def ranked(self, ranks: Floats) -> SimulatedRun:
        """Return what runs when, where of what is ready the work of the least rank goes first."""
        return SimulatedRun(*run(self.graph, ranks))

    @cached_property
    def plain(self) -> SimulatedRun:
        """Return what runs when, where what was ready first goes first."""
        return self.ranked(np.zeros(len(self.graph.waits)))

    def behind(self, turn: Ints) -> Works:
        """Return the same works where each of some waits for the one before it in this turn, too."""
        graph = self.graph if self.launched is None else self.launched.alone
        first = np.concatenate((_row(graph), turn[:-1]))
        then = np.concatenate((graph.later, turn[1:]))
        waits, begin, later = successors(first, then, len(graph.waits))
        chained = graph._replace(waits=waits, first=begin, later=later)
        found = replace(self, graph=chained, launched=None)
        return found if self.launched is None else found.queued(self.launched.queue)

    def queued(self, queue: StepQueue) -> Works:
        """Return the same works with collectives that go through a queue."""
        graph, (kind, size) = self.graph, queue.collectives
        turn = launch_queue.in_turn(graph.waits, graph.first, graph.later)
        chain = np.where(queue.is_op, 0, -1)
        wave, layer = launch_queue.places(
            graph.first, graph.later, turn, chain, kind != launch_queue.NONE
        )
        order = launch_queue.in_queue(turn, wave, layer, kind)
        launch, launch_s = launch_queue.launches(order, wave, kind, size, queue.limits)
        begin, resource, seconds, before, then = launch_queue.as_launched(
            graph.begin, graph.resource, graph.seconds, graph.first, graph.later, order, launch,
            launch_s,
        )  # fmt: skip
        waits, first, later = successors(before, then, len(launch))
        found = graph._replace(
            begin=begin, resource=resource, seconds=seconds, waits=waits, first=first, later=later
        )
        return replace(self, graph=found, launched=Launched(queue, launch, graph))

    def mirrored(self) -> Works:
        """Return the works from last to first: each, part by part, once all that waits for it is over.

        Work n is the n-th from behind.
        """
        graph, last = self.graph, len(self.graph.waits) - 1
        waits, first, later = successors(last - graph.later, last - _row(graph), last + 1)
        back = Graph(  # in which queued collectives have the same order, from last to first
            graph.begin[-1] - graph.begin[::-1], graph.resource[::-1].copy(),
            graph.seconds[::-1].copy(), waits, first, later, graph.slow, graph.slowed,
        )  # fmt: skip
        return replace(
            self, names=LazyTuple(lambda: tuple(self.names[::-1])), graph=back, launched=None
        )

    def spans(self) -> list[ResourceSpan]:
        """Return all parts in the order in which they start."""
        who, when, *_ = self.plain
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
        return self.plain.end_s

    def critical_s(self) -> Floats:
        """Return of each work the seconds that lie on the critical path; their sum is `end_s`.

        Those of a joint launch are parted as its works' seconds alone are.
        """
        who, when, before, _ = self.plain
        found = critical_s(who, when, before, len(self.graph.waits))
        if self.launched is None:
            return found
        own, launch = self.launched.alone.work_s, self.launched.launch
        with np.errstate(invalid="ignore"):
            share = np.nan_to_num(own / np.bincount(launch, own)[launch])
        shared: Floats = found[launch] * share
        return shared


def _row(graph: Graph) -> Ints:
    """Return of each of the works that wait for one which one that is."""
    return np.arange(len(graph.waits)).repeat(np.diff(graph.first))


@compiled
def successors(first: Ints, then: Ints, count: int) -> tuple[Ints, Ints, Ints]:
    """Return how many works each waits for, and in rows, ascending and once each, what waits for it.

    That with the number `then[i]` waits for `first[i]`; the row of work n begins at the n-th number of
    the second array. Pairs are sorted by counting.
    """
    at, begin = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    for pair in range(len(first)):
        at[then[pair] + 1] += 1
        begin[first[pair] + 1] += 1
    for work in range(count):
        at[work + 1] += at[work]
        begin[work + 1] += begin[work]
    order, place, later = np.empty_like(first), begin.copy(), np.empty_like(first)
    for pair in range(len(first)):
        order[at[then[pair]]] = pair
        at[then[pair]] += 1
    for pair in order:
        later[place[first[pair]]] = then[pair]
        place[first[pair]] += 1
    waits, kept, end = np.zeros(count, np.int64), 0, 0
    for work in range(count):
        row, end = end, begin[work + 1]
        begin[work] = kept
        for pair in range(row, end):
            if kept == begin[work] or later[pair] != later[kept - 1]:
                later[kept] = later[pair]
                waits[later[kept]] += 1
                kept += 1
    begin[count] = kept
    return waits, begin, later[:kept]


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
def _goes_first(one: int, other: int, ranks: Floats, ready: Floats) -> bool:
    """Tell which of two works goes first: that of less rank, then what was ready first."""
    if ranks[one] != ranks[other]:
        return bool(ranks[one] < ranks[other])
    return bool(ready[one] < ready[other] or (ready[one] == ready[other] and one < other))


@compiled
def _push(heap: Ints, first: int, size: int, work: int, ranks: Floats, ready: Floats) -> None:
    """Add a work to a binary heap of so many, which begins at the `first` place of an array."""
    hole = size
    while hole > 0:
        above = heap[first + (hole - 1) // 2]
        if _goes_first(above, work, ranks, ready):
            break
        heap[first + hole], hole = above, (hole - 1) // 2
    heap[first + hole] = work


@compiled
def _pop(heap: Ints, first: int, size: int, ranks: Floats, ready: Floats) -> int:
    """Take what goes first from such a heap."""
    found, last, hole, below = heap[first], heap[first + size - 1], 0, 1
    while below < size - 1:
        one = heap[first + below]
        if below + 1 < size - 1 and _goes_first(heap[first + below + 1], one, ranks, ready):
            below += 1
            one = heap[first + below]
        if _goes_first(last, one, ranks, ready):
            break
        heap[first + hole], hole, below = one, below, 2 * below + 1
    heap[first + hole] = last
    return int(found)


@compiled
def run(graph: Graph, ranks: Floats) -> tuple[Ints, Floats, Ints, Floats]:
    """Return the fields of a SimulatedRun; on each resource what has the least rank goes first, then
    what was ready first. Seconds are those of a part that nothing slows; what is left of them is
    stretched whenever the pace changes.
    """
    count, parts, resources = len(graph.waits), len(graph.seconds), len(graph.slow)
    who, when = np.empty((parts, 2), np.int64), np.empty((parts, 2))
    before, ended_s = np.empty(parts, np.int64), np.zeros(count)
    # the part that made each work ready, and the last one of each resource
    freed, last = np.full(count, -1), np.full(resources, -1)
    waits, at = graph.waits.copy(), graph.begin.copy()
    begin = np.zeros(resources + 1, np.int64)
    for resource in graph.resource:
        begin[resource + 1] += 1
    begin = begin.cumsum()
    queue, queued, ready = np.empty(parts, np.int64), np.zeros(resources, np.int64), np.zeros(count)
    busy, until = np.full(resources, -1), np.full(resources + 1, np.inf)  # none runs on the last
    moving, moved = np.empty(count, np.int64), 0
    done, now, pace = 0, 0.0, 1.0
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
                resource = graph.resource[at[work]]
                ready[work] = now
                _push(queue, begin[resource], queued[resource], work, ranks, ready)
                queued[resource] += 1
                continue
            ended_s[work] = now
            for k in range(graph.first[work], graph.first[work + 1]):
                waits[graph.later[k]] -= 1
                if waits[graph.later[k]] == 0:
                    moving[moved] = graph.later[k]
                    freed[graph.later[k]] = freed[work]
                    moved += 1
        moved = 0
        for resource in range(resources):
            if busy[resource] < 0 and queued[resource] > 0:
                work = _pop(queue, begin[resource], queued[resource], ranks, ready)
                queued[resource] -= 1
                before[done] = last[resource] if ready[work] < now else freed[work]
                last[resource] = done
                busy[resource], until[resource] = work, now + graph.seconds[at[work]]
                who[done, 0], who[done, 1] = work, at[work] - graph.begin[work]
                when[done, 0], when[done, 1] = now, until[resource]
                done += 1
                if resource == graph.slowed:
                    pace = 1.0
        if graph.slowed >= 0 and busy[graph.slowed] >= 0:
            wanted = 1.0
            for resource in range(resources):
                if resource != graph.slowed and busy[resource] >= 0:
                    wanted = max(wanted, 1.0 + graph.slow[resource])
            if wanted != pace:
                until[graph.slowed] = now + (until[graph.slowed] - now) * (wanted / pace)
                when[last[graph.slowed], 1], pace = until[graph.slowed], wanted
        now = np.inf
        for end in until:
            now = min(now, end)
        if now == np.inf:
            return who[:done], when[:done], before[:done], ended_s
