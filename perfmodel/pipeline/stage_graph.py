"""A training step as a graph whose nodes are assigned to the stages of a pipeline, and what that costs.

A tensor goes once to each other stage that has a reader, however many readers that has. With t_s seconds
of stage s per micro-batch, e of what is sent and o_s of what a stage does once per step, m micro-batches
take (m − 1) · max t_s + Σ t_s + Σ e + max o_s, as in placed_cut.py, where nodes are a chain.

Two branches a1 a2 and b1 b2 join in c, all of 1 s; a tensor takes 0.5 s. Where they are captured in
turns, a1 b1 a2 b2 c, the best cut in two, after a2, sends both: 3·(m − 1) + 5 + 1 s. The stages a1 a2
and b1 b2 c send one: 3·(m − 1) + 5 + 0.5 s.

Source: Rhino §5.2 for the bounds, in the form that does not cut off balanced assignments.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autoddl.perfmodel.pipeline.placed_cut import (
    NO_LIMIT,
    NONE,
    ROUNDING,
    Chains,
    Floats,
    Ints,
    PartGraph,
    place,
)
from autoddl.perfmodel.pipeline.schedules import strict_in_flight

Pairs = npt.NDArray[np.int64]  # a row each


class SentTensor(NamedTuple):
    """A tensor by the nodes that make and read it; a gradient goes `back`, to stages no later."""

    maker: int
    readers: tuple[int, ...]
    back: bool = False


@dataclass(frozen=True, eq=False)
class StageGraph:
    """Nodes with their seconds per micro-batch and once per step, and the tensors between them.

    `waiting_s` are more seconds in all stages but the last. Devices hold `held` bytes all the time and
    `active` bytes per micro-batch in flight. `sent_s` has a row by tensor, a column by the stage where it
    arrives, whose number is that of stages; `sent_bytes` is by tensor. Each stage has one of the first
    `units` nodes at least. The `pinned` nodes are in a given stage.
    """

    seconds: Floats
    once_s: Floats
    waiting_s: Floats
    held: Ints
    active: Ints
    sent: tuple[SentTensor, ...]
    sent_s: Floats
    sent_bytes: Ints
    units: int
    pinned: tuple[tuple[int, int], ...] = ()

    @property
    def stages(self) -> int:
        """Return the number of stages."""
        return self.sent_s.shape[1]

    @cached_property
    def reads(self) -> Pairs:
        """Return by tensor and other node that reads it: tensor, maker, reader, whether it goes back."""
        rows = [
            (number, maker, reader, back)
            for number, (maker, readers, back) in enumerate(self.sent)
            for reader in sorted({*readers} - {maker})
        ]
        return np.array(rows, dtype=np.int64).reshape(-1, 4)

    @cached_property
    def edges(self) -> Pairs:
        """Return pairs of nodes, of which the first is in no later stage than the second."""
        _, maker, reader, back = self.reads.T
        ends = np.where(back > 0, reader, maker), np.where(back > 0, maker, reader)
        found = sorted({*zip(*map(np.ndarray.tolist, ends), strict=True)})
        return np.array(found, dtype=np.int64).reshape(-1, 2)

    def step_s(self, stage_of: Sequence[int], micro_batches: int) -> float:
        """Return the seconds of a step of an assignment of stages."""
        mine = np.asarray(stage_of)
        waits = np.where(mine < self.stages - 1, self.waiting_s, 0.0)
        stage_s = np.bincount(mine, self.seconds + waits, self.stages)
        once_s = np.bincount(mine, self.once_s, self.stages)
        rest_s = stage_s.sum() + self.sent_s[self.arrivals(mine)].sum() + once_s.max()
        return float((micro_batches - 1) * stage_s.max() + rest_s)

    def arrivals(self, stage_of: Sequence[int] | Ints) -> npt.NDArray[np.bool_]:
        """Return by tensor and stage whether it is sent there."""
        mine, found = np.asarray(stage_of), np.zeros(self.sent_s.shape, dtype=bool)
        tensor, maker, reader, _ = self.reads.T
        apart = mine[maker] != mine[reader]
        found[tensor[apart], mine[reader][apart]] = True
        return found

    def load(self, stage_of: Sequence[int]) -> float:
        """Return the seconds per micro-batch of the slowest stage, without those for waiting."""
        return float(np.bincount(np.asarray(stage_of), self.seconds, self.stages).max())

    def stage_bytes(self, stage_of: Sequence[int], micro_batches: int) -> list[int]:
        """Return the bytes of each stage under strict 1F1B."""
        mine, flying = np.asarray(stage_of), strict_in_flight(self.stages, micro_batches)
        return [
            int(self.held[mine == stage].sum() + count * self.active[mine == stage].sum())
            for stage, count in enumerate(flying)
        ]


def stage_ranges(graph: StageGraph, most_s: float) -> tuple[Ints, Ints]:
    """Return by node the first and the last stage in which it can be if no stage takes more than that.

    With A the nodes before node i and D those behind it: the stages up to that of i take A and i, those
    from it on i and D,

        max(0, ⌈(c_A + c_i) / most⌉ − 1)  ≤  B_i  ≤  min(d − 1, ⌊d − (c_i + c_D) / most⌋)

    Source: Rhino §5.2, derived; its printed bounds cut off balanced assignments.
    """
    count, stages = len(graph.seconds), graph.stages
    low, high = np.zeros(count), np.full(count, stages - 1.0)
    if np.isfinite(most_s) and most_s > 0:
        after = descent(graph)
        upto, onward = after.T @ graph.seconds, after @ graph.seconds
        low = np.maximum(low, np.ceil(upto / most_s * (1 - ROUNDING)) - 1)
        high = np.minimum(high, np.floor(stages - onward / most_s * (1 - ROUNDING)))
    for node, stage in graph.pinned:
        low[node], high[node] = max(low[node], stage), min(high[node], stage)
    return low.astype(np.int64), high.astype(np.int64)


def descent(graph: StageGraph) -> npt.NDArray[np.bool_]:
    """Return by node (row) which are it or come behind it."""
    found = np.eye(len(graph.seconds), dtype=bool)
    heads: dict[int, list[int]] = {}
    for tail, head in graph.edges.tolist():
        heads.setdefault(tail, []).append(head)
    for node in reversed(next(orders(graph.edges, len(found)))):
        for head in heads.get(node, ()):
            found[node] |= found[head]
    return found


def orders(edges: Pairs, count: int) -> Iterator[list[int]]:
    """Yield topological orders: as numbered, branch by branch from either end, and all in turns."""
    yield _order(edges, count, lambda node, time: node)
    yield _order(edges, count, lambda node, time: -time)
    yield _order(edges[:, ::-1], count, lambda node, time: -time)[::-1]
    yield _order(edges, count, lambda node, time: time)


def _order(edges: Pairs, count: int, rank: Callable[[int, int], int]) -> list[int]:
    """Return the nodes in order: of those that may come next that of least rank, by node and time."""
    waits, heads = [0] * count, dict[int, list[int]]()
    for tail, head in edges.tolist():
        waits[head] += 1
        heads.setdefault(tail, []).append(head)
    ready = [(rank(node, 0), node) for node in range(count) if not waits[node]]
    found: list[int] = []
    ready.sort()
    while ready:
        _, node = heappop(ready)
        found.append(node)
        for head in heads.get(node, ()):
            waits[head] -= 1
            if not waits[head]:
                heappush(ready, (rank(head, len(found)), head))
    return found


def contiguous(
    graph: StageGraph, micro_batches: int, limit: int = NO_LIMIT,
    along: Iterable[Sequence[int]] | None = None,
) -> list[int] | None:  # fmt: skip
    """Return the stages of the fastest cut along any of some orders, by default those of `orders`.

    None where no such stages fit. In the chain that is cut a tensor is sent from each stage to the next;
    the step counts it once for each stage that reads it.
    """
    tried = orders(graph.edges, len(graph.seconds)) if along is None else along
    cuts = [_cut(graph, order, micro_batches, limit) for order in tried]
    found = [
        cut for cut in cuts if cut is not None and all(cut[n] == stage for n, stage in graph.pinned)
    ]
    return min(found, key=lambda cut: graph.step_s(cut, micro_batches), default=None)


def _cut(
    graph: StageGraph, order: Sequence[int], micro_batches: int, limit: int
) -> list[int] | None:
    """Return the stages of the fastest cut of the nodes in an order; stages begin with a unit."""
    begins = [at for at, node in enumerate(order) if node < graph.units]
    places = [0, *begins[1:], len(order)]
    every = [graph.seconds + graph.waiting_s, graph.seconds, graph.once_s, graph.held, graph.active]
    other, last, once, held, active = (
        np.concatenate([[0], np.cumsum(each[order])])[None, places].astype(each.dtype)
        for each in every
    )
    limits, sent_s = np.array([limit]), _crossing_s(graph, order)[:, places]
    chains = Chains(other, last, once, held, active, limits, sent_s)
    found = place(chains, _chain_of_parts(graph.stages, micro_batches), micro_batches)
    if found is None:
        return None
    bounds = [places[n] for n in found.bounds[1:-1]]
    return [bisect_right(bounds, at) for at in np.argsort(order).tolist()]


def _crossing_s(graph: StageGraph, order: Sequence[int]) -> Floats:
    """Return what crosses each place of an order (s): a row by pair of stages, from the last one on."""
    stages, place_of = graph.stages, np.argsort(order)
    tensor, *ends, back = graph.reads.T
    first, last = (np.full(len(graph.sent), fill) for fill in (len(order), 0))
    for end in ends:
        np.minimum.at(first, tensor, place_of[end])
        np.maximum.at(last, tensor, place_of[end])
    backward = np.zeros(len(graph.sent), dtype=bool)
    backward[tensor] = back > 0
    crosses = first < last
    change = np.zeros((stages - 1, len(order) + 2))
    for row in range(stages - 1):
        behind = stages - 1 - row
        seconds = graph.sent_s[np.arange(len(graph.sent)), np.where(backward, behind - 1, behind)]
        np.add.at(change[row], first[crosses] + 1, seconds[crosses])
        np.subtract.at(change[row], last[crosses] + 1, seconds[crosses])
    return np.maximum(np.cumsum(change, axis=1), 0.0)


def _chain_of_parts(stages: int, micro_batches: int) -> PartGraph:
    """Return the graph of so many equal parts, one before the other."""
    number = np.arange(stages)
    whole = np.append(np.zeros(stages, dtype=bool), True)
    in_flight = np.array(strict_in_flight(stages, micro_batches)[::-1])
    links = np.where(number, number - 1, NONE)
    return PartGraph(number, number + 1, 0 * number, links, in_flight, whole)
