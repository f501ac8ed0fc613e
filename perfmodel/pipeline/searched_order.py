"""The order of a pipeline's passes and messages with the shortest step, within memory.

A step is a job shop: stages are machines, a message occupies two of them at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from autoddl.compiled import compiled
from autoddl.errors import AutoDDLError
from autoddl.perfmodel.pipeline.pipeline_step import PipelineStep
from autoddl.perfmodel.pipeline.step_tasks import CG, StepTasks, Task, links_of, step_tasks

NODES = 1_000_000


@dataclass(frozen=True)
class SearchedOrder:
    """By stage the passes and messages in order, as text that `step_tasks.tasks_of` reads.

    No order within the same memory has a step shorter than `bound_s`; `nodes` were looked at.
    """

    orders: tuple[str, ...]
    step_s: float
    bound_s: float
    nodes: int

    @property
    def gap(self) -> float:
        """Return by what share of the step a shorter one might exist at most."""
        return 1 - self.bound_s / self.step_s if self.step_s > 0 else 0.0


class _Shop(NamedTuple):
    """What recurs in each micro-batch, by number: passes and links, each behind what it needs."""

    seconds: Any
    ends: Any  # the two stages that each occupies, twice the same for a pass
    needs: Any  # each one's, −1 for none
    lags: Any  # the n-th needs the (n − lag)-th
    tail_s: Any  # from the end of each to the end of the step, at least
    round_s: Any  # by stage, from the begin of F to the end of B, at least
    passes: Any  # by stage, the numbers of F and B
    once_s: Any
    most: Any
    micro_batches: int


def order_s(step: PipelineStep, tasks: StepTasks) -> float:
    """Return the step of orders of rendezvous where each task starts as early as its stages let it."""
    message_s = _message_s(step)
    at, free = [0] * len(step.stages), [0.0] * len(step.stages)
    lines = [[task for task in line if task.kind not in ("LA", "AG")] for line in tasks.stages]
    while any(at[s] < len(line) for s, line in enumerate(lines)):
        for stage, line in enumerate(lines):
            while at[stage] < len(line):
                task, both = line[at[stage]], [stage]
                if task.kind == CG:
                    work = step.stages[stage]
                    took = _sum_s(work.forward if task.turn == "F" else work.backward)
                else:
                    other = task.other
                    there = lines[other][at[other]]
                    if there.kind == CG or there.message(other) != task.message(stage):
                        break
                    turn, _, source, target = task.message(stage)
                    took, both = message_s[turn, source, target], [stage, other]
                end = max(free[each] for each in both) + took
                for each in both:
                    free[each], at[each] = end, at[each] + 1
    return max(end + _sum_s(work.once) for end, work in zip(free, step.stages, strict=True))


def searched_order(step: PipelineStep, most: Sequence[int], *, nodes: int = NODES) -> SearchedOrder:
    """Return the order with the shortest step that was found."""
    if len(most) != len(step.stages) or min(most) < 1:
        raise AutoDDLError(
            f"pipeline: most is {tuple(most)}; give {len(step.stages)} numbers from 1 on"
        )
    shop, names = _shop(step, most)
    best_s, best = math.inf, tuple[str, ...]()
    for schedule in ("1f1b", "gpipe"):
        tasks = step_tasks(replace(step, schedule=schedule, orders=(), rendezvous=True))
        if all(a <= b for a, b in zip(tasks.in_flight, most, strict=True)):
            if (found_s := order_s(step, tasks)) < best_s:
                best_s, best = found_s, tasks.written
    looked, bound_s = 0, 0.0
    layers = step.micro_batches * len(names)
    for part in (64, 8, 1):
        width = max(1, (nodes - looked) // part // layers // 2)
        found = _beam(shop, best_s, width)
        looked += found.nodes
        bound_s = max(bound_s, found.bound_s)
        if found.sequence is not None:
            best_s, best = found.bound_or_s, _written(found.sequence, names, len(most))
        if bound_s >= best_s:
            break
    return SearchedOrder(best, best_s, min(bound_s, best_s), looked)


class _Found(NamedTuple):
    sequence: list[int] | None
    bound_or_s: float
    bound_s: float
    nodes: int


def _beam(shop: _Shop, best_s: float, width: int) -> _Found:
    count, stages = len(shop.seconds), len(shop.once_s)
    done, free = np.zeros((1, count), np.int16), np.zeros((1, stages))
    low = np.zeros(1)
    history, dropped, nodes = [], math.inf, 0
    for _ in range(count * shop.micro_batches):
        parent, chosen, low, key, done, free = _expand(shop, done, free, low, best_s)
        nodes += len(parent)
        order = np.lexsort((key, low, *done.T))
        kept = order[_undominated(done[order], free[order])]
        if len(kept) > width:
            kept = kept[np.lexsort((key[kept], low[kept]))]
            dropped = min(dropped, low[kept[width:]].min())
            kept = kept[:width]
        history.append((parent[kept], chosen[kept]))
        low, done, free = low[kept], done[kept], free[kept]
        if len(kept) == 0:
            return _Found(None, math.inf, min(dropped, best_s), nodes)
    at = int(np.argmin(low))
    step_s = float(low[at])
    sequence = []
    for parents, chosen in reversed(history):
        sequence.append(int(chosen[at]))
        at = int(parents[at])
    return _Found(sequence[::-1], step_s, min(dropped, step_s), nodes)


@compiled
def _ready(shop, done, x):
    if done[x] == shop.micro_batches:
        return False
    for j in range(shop.needs.shape[1]):
        p = shop.needs[x, j]
        if p >= 0 and done[x] - shop.lags[x, j] >= done[p]:
            return False
    return True


@compiled
def _expand(shop, done, free, low, best_s):
    count, stages = len(shop.seconds), len(shop.once_s)
    room = len(done) * 2 + 16
    parent, chosen = np.empty(room, np.int32), np.empty(room, np.int16)
    lows, keys = np.empty(room), np.empty(room)
    dones, frees = np.empty((room, count), np.int16), np.empty((room, stages))
    start, end = np.empty(count), np.empty(count)
    made = 0
    for w in range(len(done)):
        soonest, star = np.inf, 0
        for x in range(count):
            start[x] = np.inf
            if _ready(shop, done[w], x):
                start[x] = max(free[w, shop.ends[x, 0]], free[w, shop.ends[x, 1]])
                if start[x] + shop.seconds[x] < soonest:
                    soonest, star = start[x] + shop.seconds[x], x
        a, b = shop.ends[star]
        for x in range(count):
            c, d = shop.ends[x]
            if x != star and (start[x] >= soonest or (c != a and c != b and d != a and d != b)):
                continue
            if made == room:
                parent, chosen = np.append(parent, parent), np.append(chosen, chosen)
                lows, keys = np.append(lows, lows), np.append(keys, keys)
                dones, frees = np.concatenate((dones, dones)), np.concatenate((frees, frees))
                room *= 2
            now, at = dones[made], frees[made]
            now[:], at[:] = done[w], free[w]
            now[x] += 1
            at[c] = at[d] = start[x] + shop.seconds[x]
            bound, keys[made] = _bound(shop, now, at, end)
            lows[made] = max(bound, low[w])
            if lows[made] < best_s:
                parent[made], chosen[made] = w, x
                made += 1
    return parent[:made], chosen[:made], lows[:made], keys[:made], dones[:made], frees[:made]


@compiled
def _bound(shop, done, free, end):
    count, stages, total = len(shop.seconds), len(shop.once_s), shop.micro_batches
    end[:] = 0.0
    for _ in range(2):
        for x in range(count):
            if done[x] < total:
                start = max(free[shop.ends[x, 0]], free[shop.ends[x, 1]])
                for j in range(shop.needs.shape[1]):
                    p = shop.needs[x, j]
                    behind = done[x] - shop.lags[x, j] - done[p]
                    if p >= 0 and behind >= 0:
                        start = max(start, end[p] + behind * shop.seconds[p])
                end[x] = start + shop.seconds[x]
    bound, key = 0.0, 0.0
    for s in range(stages):
        begin, left, tail = np.inf, 0.0, np.inf
        for x in range(count):
            if done[x] < total and (shop.ends[x, 0] == s or shop.ends[x, 1] == s):
                begin = min(begin, end[x] - shop.seconds[x])
                left += (total - done[x]) * shop.seconds[x]
                tail = min(tail, shop.tail_s[x])
        if tail == np.inf:
            begin, tail = free[s], shop.once_s[s]
        free[s] = begin
        bound = max(bound, begin + left + tail)
        key += begin + left + tail
        f, b = shop.passes[s]
        for at, more in (
            (end[f] - shop.seconds[f], total - done[f] - 1),
            (end[b], total - done[b] - shop.most[s] - 1),
        ):
            if more >= 0:
                laps, rest = divmod(more, shop.most[s])
                longest = max(shop.seconds[f], shop.seconds[b])
                bound = max(
                    bound, at + (laps + 1) * shop.round_s[s] + rest * longest + shop.tail_s[b]
                )
    for x in range(count):
        if done[x] < total:
            bound = max(bound, end[x] + (total - 1 - done[x]) * shop.seconds[x] + shop.tail_s[x])
    return bound, key


@compiled
def _undominated(done, free):
    kept = np.empty(len(done), np.int64)
    count, group = 0, 0
    for i in range(len(done)):
        if i and np.any(done[i] != done[i - 1]):
            group = count
        good = True
        for j in range(group, count):
            if np.all(free[kept[j]] <= free[i]):
                good = False
                break
        if good:
            kept[count] = i
            count += 1
    return kept[:count]


def _sum_s(parts: Sequence[tuple[str, float]]) -> float:
    return sum(seconds for _, seconds in parts)


def _message_s(step: PipelineStep) -> dict[tuple[str, int, int], float]:
    found: dict[tuple[str, int, int], float] = {}
    for each in step.transfers:
        link = each.kind, each.source, each.target
        found[link] = found.get(link, 0.0) + each.seconds
    return found


Name = tuple[str, int, int]


def _shop(step: PipelineStep, most: Sequence[int]) -> tuple[_Shop, list[Name]]:
    stages, message_s = range(len(step.stages)), _message_s(step)
    names = [(turn, s, s) for turn in "FB" for s in stages] + list(links_of(step))
    names.sort(key=lambda n: (n[0] == "B", n[1] if n[0] == "F" else -n[1], n[1] != n[2]))
    number = {name: i for i, name in enumerate(names)}
    needs: list[list[tuple[int, int]]] = []
    seconds = []
    for turn, a, b in names:
        if a != b:
            needs.append([(number[turn, a, a], 0)])
            seconds.append(message_s[turn, a, b])
            continue
        arrive = [(number[link], 0) for link in message_s if (link[0], link[2]) == (turn, a)]
        own = (number["B", a, a], most[a]) if turn == "F" else (number["F", a, a], 0)
        needs.append([own, *arrive])
        work = step.stages[a]
        seconds.append(_sum_s(work.forward if turn == "F" else work.backward))
    once = [_sum_s(work.once) for work in step.stages]

    def longest(x: int, target: int | None) -> float:
        """Seconds from the end of x to that of target, or to the end of the step; −inf if never."""
        if x == target:
            return 0.0
        turn, a, b = names[x]
        last = once[a] if target is None and (turn, a) == ("B", b) else -math.inf
        after = [y for y in range(x + 1, len(names)) if (x, 0) in needs[y]]
        return max([last, *(seconds[y] + longest(y, target) for y in after)])

    wide = max(map(len, needs))
    padded = np.array([each + [(-1, 0)] * (wide - len(each)) for each in needs])
    passes = [(number["F", s, s], number["B", s, s]) for s in stages]
    shop = _Shop(
        np.array(seconds, dtype=float),
        np.array([name[1:] for name in names]),
        np.ascontiguousarray(padded[:, :, 0]),
        np.ascontiguousarray(padded[:, :, 1]),
        np.array([longest(x, None) for x in range(len(names))]),
        np.array([seconds[f] + longest(f, b) for f, b in passes]),
        np.array(passes),
        np.array(once, dtype=float),
        np.array(most),
        step.micro_batches,
    )
    return shop, names


def _written(sequence: Sequence[int], names: Sequence[Name], stages: int) -> tuple[str, ...]:
    orders: list[list[str]] = [[] for _ in range(stages)]
    done = [0] * len(names)
    for x in sequence:
        turn, a, b = names[x]
        n, done[x] = done[x], done[x] + 1
        if a == b:
            orders[a].append(f"{turn}{n}")
        else:
            orders[a].append(f"{turn}{n}>{b}")
            orders[b].append(f"{turn}{n}<{a}")
    return tuple(map(" ".join, orders))
