"""When works run on the resources that they need: the loops of timeline.py, compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autoddl.compiled import compiled

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Graph(NamedTuple):
    """Works by number: what each consists of, and what waits for it.

    The parts of work n, which it runs in turn, stand from `begin[n]` to `begin[n + 1]`: the `resource`
    and the seconds on it. `later` has, from `first[n]` to `first[n + 1]`, the works that wait for it;
    `waits` how many each waits for; `turn` decides between what has been ready at one time.
    """

    begin: Ints
    resource: Ints
    seconds: Floats
    waits: Ints
    first: Ints
    later: Ints
    turn: Ints


@compiled
def ends(seconds: Floats, begin: Ints, before: Ints) -> Floats:
    """Return when works end at the earliest; `before` has those that each waits for."""
    found = np.zeros(len(seconds))
    for work in range(len(seconds)):
        for k in range(begin[work], begin[work + 1]):
            found[work] = max(found[work], found[before[k]])
        found[work] += seconds[work]
    return found


@compiled
def run(graph: Graph, resources: int) -> tuple[Ints, Floats]:
    """Return all parts in the order in which they start: (work, part), and (start, end) of each.

    On each resource goes first what was ready first.
    """
    count, parts = len(graph.waits), len(graph.seconds)
    who, when = np.empty((parts, 2), np.int64), np.empty((parts, 2))
    waits, at, ready = graph.waits.copy(), graph.begin.copy(), np.zeros(count)
    queues, filled = np.empty((resources, count), np.int64), np.zeros(resources, np.int64)
    busy, until = np.full(resources, -1), np.full(resources, np.inf)
    changed, moving = np.empty(resources, np.int64), np.empty(count, np.int64)
    done, now, moved = 0, 0.0, 0
    for work in range(count):
        if waits[work] == 0:
            moving[moved] = work
            moved += 1
    while True:
        changes = 0  # of resources whose queue or state changed just now, as they did
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
            busy[ended], until[ended] = -1, np.inf
            changes = _noted(changed, changes, ended)
        place = 0
        while place < moved:  # grows while it is walked
            work = moving[place]
            place += 1
            if at[work] < graph.begin[work + 1]:
                ready[work] = now
                resource = graph.resource[at[work]]
                _push(queues, filled, resource, work, ready, graph.turn)
                changes = _noted(changed, changes, resource)
                continue
            for k in range(graph.first[work], graph.first[work + 1]):
                waits[graph.later[k]] -= 1
                if waits[graph.later[k]] == 0:
                    moving[moved] = graph.later[k]
                    moved += 1
        moved = 0
        for k in range(changes):
            resource = changed[k]
            if busy[resource] < 0 and filled[resource]:
                work = _pop(queues, filled, resource, ready, graph.turn)
                busy[resource], until[resource] = work, now + graph.seconds[at[work]]
                who[done, 0], who[done, 1] = work, at[work] - graph.begin[work]
                when[done, 0], when[done, 1] = now, until[resource]
                done += 1
        now = np.inf
        for resource in range(resources):
            now = min(now, until[resource])
        if now == np.inf:
            return who[:done], when[:done]


@compiled
def _noted(items: Ints, count: int, item: int) -> int:
    """Put an item behind so many others if it is not among them; return how many there are now."""
    for k in range(count):
        if items[k] == item:
            return count
    items[count] = item
    return count + 1


@compiled
def _sooner(one: int, other: int, ready: Floats, turn: Ints) -> bool:
    """Tell whether a work goes before another one."""
    if ready[one] != ready[other]:
        return bool(ready[one] < ready[other])
    return bool(turn[one] < turn[other])


@compiled
def _push(heaps: Ints, filled: Ints, row: int, item: int, ready: Floats, turn: Ints) -> None:
    """Put a work into the heap in a row."""
    place = filled[row]
    filled[row] += 1
    while place and _sooner(item, heaps[row, (place - 1) // 2], ready, turn):
        heaps[row, place] = heaps[row, (place - 1) // 2]
        place = (place - 1) // 2
    heaps[row, place] = item


@compiled
def _pop(heaps: Ints, filled: Ints, row: int, ready: Floats, turn: Ints) -> int:
    """Take the first work out of the heap in a row."""
    filled[row] -= 1
    count, place, child = filled[row], 0, 1
    first, item = heaps[row, 0], heaps[row, count]
    while child < count:
        if child + 1 < count and _sooner(heaps[row, child + 1], heaps[row, child], ready, turn):
            child += 1
        if not _sooner(heaps[row, child], item, ready, turn):
            break
        heaps[row, place] = heaps[row, child]
        place, child = child, 2 * child + 1
    heaps[row, place] = item
    return int(first)
