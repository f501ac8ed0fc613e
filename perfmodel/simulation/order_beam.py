"""The shortest order of a job shop's tasks in which the same few tasks recur: a beam search with a bound.

Each task recurs as many times and occupies one or two machines. The n-th of it needs the (n − lag)-th of
others. What has been done how often, and when each machine is free, is all that matters of an order's
begin: a state. Next is, of the possible tasks, the one that ends first, or one that begins before that
end on a machine of its (active schedules: in any other a task could begin earlier, and none later). A
state goes that has done the same as another in which each machine is free no later. All states of as
many tasks are made from those of one task less. Where the best of them, as many as may be kept, are
all, the order found is the shortest; else none is shorter than the least bound of those left out.

One machine with F 1 s and B 2 s, each B behind its F, twice: after F0 F1 B0 and F0 B0 F1 the same is done
and the machine is free at 4 s, so one of them goes; the other ends with B1 after 6 s.

Source: Giffler and Thompson 1960 (active schedules), here for tasks of two machines.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autoddl.compiled import compiled

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

NONE = -1


class Shop(NamedTuple):
    """The tasks by number, each behind what it needs with lag 0.

    Each machine has two tasks of its own: F, and B, which needs F, as F needs B with the lag `most`. What
    is by machine and task adds up lags along ways from one to another, up to `times`.
    """

    seconds: Floats
    ends: Ints  # the two machines of each, or twice the same
    needs: Ints  # by task, and NONE
    lags: Ints
    tail_s: Floats  # from its end to that of all, at least
    at: Ints  # by machine its tasks, and NONE
    passes: Ints  # by machine F and B
    most: Ints
    round_s: Floats  # by machine, from the begin of F to the end of B, at least
    behind: Ints  # by machine and task: from B to it; when B 0 ends, at most so many are done
    before: Ints  # likewise, from it to F; when the last F begins, all but so many are done
    once_s: Floats  # by machine, from the end of its tasks to that of all
    times: int


class _States(NamedTuple):
    """States by number: how often each task was done, when machines are free, what comes of it.

    `low` is a bound, `mean` that of machines on average; `came` tells the state and the task before.
    """

    done: Ints
    free: Floats
    low: Floats
    mean: Floats
    came: Ints


class Beam(NamedTuple):
    """The tasks of the shortest order in turn, none where no shorter one than known was found."""

    tasks: list[int]
    seconds: float
    bound_s: float
    states: int


def order_beam(shop: Shop, best_s: float, width: int, weight: float) -> Beam:
    """Return the shortest order below `best_s` that `width` states of as many tasks lead to.

    Those of the least low + weight · mean are kept.
    """
    count = len(shop.seconds)
    left_s, nodes, history = best_s, 0, []
    states = _empty(shop, 1)
    for each in states:
        each.fill(0)
    for _ in range(count * shop.times):
        more = _empty(shop, len(states.low) * count)
        made = _branch(shop, states, more, best_s)
        nodes += made
        kept = np.lexsort((more.mean[:made], more.low[:made], *more.done[:made].T))
        kept = kept[_undominated(more.done, more.free, kept)]
        if len(kept) > width:
            order = np.argsort(more.low[kept] + weight * more.mean[kept], kind="stable")
            left_s = min(left_s, float(more.low[kept[order[width:]]].min()))
            kept = kept[order[:width]]
        if not len(kept):
            return Beam([], best_s, left_s, nodes)
        states = _States(*(each[kept] for each in more))
        history.append(states.came)
    last = int(np.argmin(states.low))
    step_s, tasks = float(states.low[last]), []
    for came in reversed(history):
        last, task = came[last]
        tasks.append(int(task))
    return Beam(tasks[::-1], step_s, min(left_s, step_s), nodes)


def _empty(shop: Shop, size: int) -> _States:
    done, came = (np.empty((size, n), np.int64) for n in (len(shop.seconds), 2))
    return _States(done, np.empty((size, len(shop.most))), np.empty(size), np.empty(size), came)


@compiled
def _branch(shop: Shop, states: _States, more: _States, best_s: float) -> int:
    """Fill `more` with what comes next of states, as far as it may take less than `best_s`."""
    count = len(shop.seconds)
    start, end = np.empty(count), np.empty(count)
    made = 0
    for i in range(len(states.low)):
        done, free = states.done[i], states.free[i]
        soonest, first = np.inf, 0
        for x in range(count):
            ready = done[x] < shop.times
            for j in range(shop.needs.shape[1]):
                p = shop.needs[x, j]
                ready = ready and (p == NONE or done[x] - shop.lags[x, j] < done[p])
            start[x] = np.inf
            if ready:
                start[x] = max(free[shop.ends[x, 0]], free[shop.ends[x, 1]])
                if start[x] + shop.seconds[x] < soonest:
                    soonest, first = start[x] + shop.seconds[x], x
        a, b = shop.ends[first, 0], shop.ends[first, 1]
        for x in range(count):
            c, d = shop.ends[x, 0], shop.ends[x, 1]
            if x != first and (start[x] >= soonest or (a != c and a != d and b != c and b != d)):
                continue
            for y in range(count):
                more.done[made, y] = done[y]
            for s in range(len(free)):
                more.free[made, s] = free[s]
            more.done[made, x] += 1
            more.free[made, c] = more.free[made, d] = start[x] + shop.seconds[x]
            low, mean = _bound(shop, more.done[made], more.free[made], end)
            more.low[made], more.mean[made] = max(low, states.low[i]), mean
            more.came[made, 0], more.came[made, 1] = i, x
            if more.low[made] < best_s:
                made += 1
    return made


@compiled
def _bound(shop: Shop, done: Ints, free: Floats, end: Floats) -> tuple[float, float]:
    """Return what all takes at least, and the mean of machines, each free from when it can begin on.

    `end` becomes the earliest end of the next of each task.
    """
    total, low, mean = shop.times, 0.0, 0.0
    for again in range(2):  # F waits for memory until B, which comes behind it, has ended
        for x in range(len(shop.seconds)):
            if done[x] == total:
                continue
            start = max(free[shop.ends[x, 0]], free[shop.ends[x, 1]])
            for j in range(shop.needs.shape[1]):
                p = shop.needs[x, j]
                if p != NONE and (again or p < x):
                    missing = done[x] - shop.lags[x, j] - done[p]
                    if missing >= 0:
                        start = max(start, end[p] + missing * shop.seconds[p])
            end[x] = start + shop.seconds[x]
    for s in range(len(free)):
        begin = tail_s = np.inf
        left_s = behind_s = between_s = 0.0
        f, b = shop.passes[s, 0], shop.passes[s, 1]
        for x in shop.at[s]:
            if x != NONE and done[x] < total:
                begin, tail_s = min(begin, end[x] - shop.seconds[x]), min(tail_s, shop.tail_s[x])
                behind = total - done[b] - shop.behind[s, x]
                left_s += (total - done[x]) * shop.seconds[x]
                behind_s += max(0, behind) * shop.seconds[x]
                between_s += max(0, behind - shop.before[s, x]) * shop.seconds[x]
        if tail_s == np.inf:
            begin, tail_s = free[s], shop.once_s[s]
        free[s] = begin
        mine = begin + left_s + tail_s
        if done[b] < total:
            mine = max(mine, end[b] + behind_s + tail_s)
            last_s = shop.round_s[s] + shop.tail_s[b]  # from the begin of the last F on
            if done[b] + shop.most[s] < total:  # that comes behind the next B
                mine = max(mine, end[b] + between_s + last_s)
            # F, its B, the F of `most` times later, and so on; what is over comes before or after
            for at, left in (
                (end[f] - shop.seconds[f], total - 1 - done[f]),
                (end[b], total - 1 - done[b] - shop.most[s]),
            ):
                if left >= 0:
                    at += left // shop.most[s] * shop.round_s[s]
                    over_s = left % shop.most[s] * max(shop.seconds[f], shop.seconds[b])
                    mine = max(mine, at + over_s + last_s)
        low, mean = max(low, mine), mean + mine / len(free)
    return low, mean


@compiled
def _undominated(done: Ints, free: Floats, order: Ints) -> Ints:
    """Return those places of the order, which sorts by `done`, before which no state is as good."""
    kept = np.empty(len(order), np.int64)
    count, group = 0, 0
    for place in range(len(order)):
        i = order[place]
        for x in range(done.shape[1]):
            if place > 0 and done[i, x] != done[order[place - 1], x]:
                group = count
        good = True
        for j in range(group, count):
            earlier = False
            for s in range(free.shape[1]):
                earlier = earlier or free[i, s] < free[order[kept[j]], s]
            good = good and earlier
        if good:
            kept[count] = place
            count += 1
    return kept[:count]
