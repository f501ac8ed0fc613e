"""The order of a pipeline's passes and messages with the shortest step, within memory.

Stages are the machines of a job shop in which passes and messages recur; a message occupies two of
them at once (order_beam.py). The n-th of a task needs the n-th of others, and F, to keep to memory, the
B of `most` micro-batches before.

Micro-batches are alike: the n-th to begin of each task can be that of micro-batch n. When it begins, n
have begun and so ended what they need, and as many are in flight. So each stage takes them by number.

Two stages of F 3 s, B 1 s and F 1 s, B 2 s, with 2 micro-batches and messages that take no time: 1F1B
receives F1 before B0 and takes 12 s, "F0<0 F0 B0 F1<0 B0>0 F1 B1 B1>0" in stage 1 takes 10 s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.pipeline.pipeline_step import PipelineStep
from autoddl.perfmodel.pipeline.pipeline_timeline import simulate
from autoddl.perfmodel.pipeline.schedules import GPIPE, ONE_F_ONE_B
from autoddl.perfmodel.pipeline.step_tasks import Link, links_of, step_tasks
from autoddl.perfmodel.resources import ResourceParts
from autoddl.perfmodel.simulation.order_beam import NONE, Ints, Shop, order_beam

NODES = 1_000_000
# What nodes are divided by, and what the mean weighs beside the bound: beams by both find most orders,
# those by the bound alone some of the others.
BEAMS = ((32, 1.0), (2, 1.0), (1, 0.03))


@dataclass(frozen=True)
class SearchedOrder:
    """Passes and messages by stage, as text that `step_tasks.tasks_of` reads, and how long they take.

    No order within the same memory takes less than `bound_s`; so many `nodes` were made.
    """

    orders: tuple[str, ...]
    step_s: float
    bound_s: float
    nodes: int

    @property
    def gap(self) -> float:
        """Return by what share of the step another may be shorter."""
        return 1 - self.bound_s / self.step_s if self.step_s > 0 else 0.0


def searched_order(step: PipelineStep, most: Sequence[int], *, nodes: int = NODES) -> SearchedOrder:
    """Return the shortest order found with at most `most[stage]` micro-batches in flight.

    It takes no longer than 1F1B and GPipe where these keep to that. Messages are a rendezvous, and stages
    have devices of their own. The search ends after about so many nodes.

    Raises:
        AutoDDLError: `most` is not one number from 1 on for each stage.
    """
    if len(most) != len(step.stages) or min(most) < 1:
        raise AutoDDLError(
            f"pipeline: most in flight is {tuple(most)}; give {len(step.stages)} numbers from 1 on"
        )
    best, best_s, bound_s, made = tuple[str, ...](), math.inf, 0.0, 0
    for schedule in (ONE_F_ONE_B, GPIPE):
        begun = replace(step, schedule=schedule, orders=(), rendezvous=True, device_of=None)
        tasks = step_tasks(begun)
        if all(mine <= limit for mine, limit in zip(tasks.in_flight, most, strict=True)):
            step_s = simulate(begun).step_s
            if step_s < best_s:
                best, best_s = tasks.written, step_s
    shop, names = _shop(step, most)
    for share, weight in BEAMS:
        width = (nodes - made) // (share * 2 * len(names) * step.micro_batches)
        found = order_beam(shop, best_s, max(1, width), weight)
        made, bound_s = made + found.states, max(bound_s, found.bound_s)
        if found.tasks:
            best, best_s = _written([names[x] for x in found.tasks], len(most)), found.seconds
        if bound_s >= best_s:
            break
    return SearchedOrder(best, best_s, min(bound_s, best_s), made)


def _shop(step: PipelineStep, most: Sequence[int]) -> tuple[Shop, list[Link]]:
    """Return the tasks of a micro-batch, and which they are: links, and passes as those of one stage."""
    stages, links = range(len(most)), links_of(step)
    seconds = dict.fromkeys(links, 0.0)
    for each in step.transfers:
        seconds[each.kind, each.source, each.target] += each.seconds
    for s, work in enumerate(step.stages):
        seconds |= {("F", s, s): _sum_s(work.forward), ("B", s, s): _sum_s(work.backward)}
    names = sorted(
        seconds, key=lambda t: (t[0] == "B", t[1] if t[0] == "F" else -t[1], t[1] != t[2])
    )
    number = {name: x for x, name in enumerate(names)}
    passes = np.array([[number["F", s, s], number["B", s, s]] for s in stages])
    waits = [(f, b, 0) for f, b in passes] + [(b, f, most[s]) for s, (f, b) in enumerate(passes)]
    for turn, a, b in links:
        link = number[turn, a, b]
        waits += [(number[turn, a, a], link, 0), (link, number[turn, b, b], 0)]
    needs: list[list[tuple[int, int]]] = [[] for _ in names]
    lags = np.full(
        (len(names), len(names)), step.micro_batches
    )  # added up along ways from one to another
    for p, x, lag in waits:
        needs[x].append((p, lag))
        lags[p, x] = lag
    for p in range(len(names)):
        lags = np.minimum(lags, lags[:, p, None] + lags[p])
    np.fill_diagonal(lags, 1)
    took = np.array([seconds[name] for name in names])
    once_s = np.array([_sum_s(work.once) for work in step.stages])
    tail_s = np.array([max(once_s[a], once_s[b]) for _, a, b in names])
    to_b = np.full((len(most), len(names)), -math.inf)  # from the end of each to that of B
    to_b[stages, passes[:, 1]] = 0.0
    for x in range(len(names) - 1, -1, -1):
        for p, _ in needs[x]:
            if p < x:
                tail_s[p] = max(tail_s[p], took[x] + tail_s[x])
                to_b[:, p] = np.maximum(to_b[:, p], took[x] + to_b[:, x])
    shop = Shop(
        seconds=took, ends=np.array([name[1:] for name in names]),
        needs=_padded([[p for p, _ in each] for each in needs]),
        lags=_padded([[lag for _, lag in each] for each in needs]), tail_s=tail_s,
        at=_padded([[x for x, name in enumerate(names) if s in name[1:]] for s in stages]),
        passes=passes, most=np.array(most), round_s=took[passes[:, 0]] + to_b[stages, passes[:, 0]],
        behind=lags[passes[:, 1]], before=np.ascontiguousarray(lags.T[passes[:, 0]]),
        once_s=once_s, times=step.micro_batches,
    )  # fmt: skip
    return shop, names


def _sum_s(parts: ResourceParts) -> float:
    return sum((seconds for _, seconds in parts), 0.0)


def _padded(rows: list[list[int]]) -> Ints:
    wide = max(map(len, rows))
    return np.array([row + [NONE] * (wide - len(row)) for row in rows])


def _written(tasks: Sequence[Link], stages: int) -> tuple[str, ...]:
    orders: list[list[str]] = [[] for _ in range(stages)]
    done: dict[Link, int] = {}
    for task in tasks:
        turn, a, b = task
        n = done[task] = done.get(task, -1) + 1
        orders[a].append(f"{turn}{n}" if a == b else f"{turn}{n}>{b}")
        if a != b:
            orders[b].append(f"{turn}{n}<{a}")
    return tuple(map(" ".join, orders))
