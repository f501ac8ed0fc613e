"""Cut a chain of units into the stages of a pipeline, with their placement on devices, exactly.

Devices may be unlike: a stage is a part of some class (its devices' kinds, their mesh), which has its own
seconds and bytes of every unit. With t_i seconds of stage i per micro-batch, e_i of the transfers behind
it and o_i of what it does once per step, m micro-batches take

    T = (m − 1) · max t_i + Σ t_i + Σ e_i + max o_i

and each stage must fit into its devices. Which parts may stand before which is a graph (PartGraph). For
upper limits on both maxima the least Σ t + Σ e is a dynamic program over (node of the graph, place),
from the chain's end on, where all stages behind a place, and so the micro-batches in flight before it,
are known; best-first branch and bound over boxes of such limits finds the optimum.

Units of 3, 1, 2 and 2 s, a device and one of twice its speed, 4 micro-batches, free transfers: the
slow one first takes [3] and leaves the rest, t = 3 and 2.5: 3·3 + 5.5 = 14.5 s. Best is that the fast
one first takes [3, 1, 2] and leaves [2], t = 3 and 2: 3·3 + 5 = 14 s.

Source: AMP, supplement 6.4 (its dynamic program keeps one maximum and one order of the parts; classes,
memory and o_i are added here).
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autoddl.compiled import compiled

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

ROUNDING = 1e-12  # relative to the whole; sums that differ by less are equal
NO_LIMIT = 1 << 62  # bytes
NONE = -1


class PartGraph(NamedTuple):
    """The ways to put parts one before the other, from the end of the pipeline on.

    Node 0 is nothing. Edge i puts a part of class `kind[i]` before what node `tail[i]` has, which makes
    node `head[i]` > `tail[i]`; between it and the part behind it row `link[i]` of the transfers counts
    (of the first part of all none does), and `in_flight[i]` of its micro-batches are kept at once. A
    pipeline may begin with the nodes that are `whole`. Edges are in the order of their heads.
    """

    tail: Ints
    head: Ints
    kind: Ints
    link: Ints
    in_flight: Ints
    whole: npt.NDArray[np.bool_]


class Chains(NamedTuple):
    """Sums over the first units of the chain (column), by class of parts (row).

    `other_s` are seconds per micro-batch where a stage comes behind, `last_s` of the last stage; `limit`
    the bytes that fit into a device. `transfer_s` has a row by link, a column by place between units.
    """

    other_s: Floats
    last_s: Floats
    once_s: Floats
    held: Ints
    active: Ints
    limit: Ints
    transfer_s: Floats


@dataclass(frozen=True)
class PlacedCut:
    """Stage i has the units from `bounds[i]` to before `bounds[i + 1]`, on a part of class `kinds[i]`.

    `edges` are those of the graph, from the first stage on; `seconds` are those of a step.
    """

    bounds: tuple[int, ...]
    kinds: tuple[int, ...]
    edges: tuple[int, ...]
    seconds: float


def place(
    chains: Chains, graph: PartGraph, micro_batches: int, *, tolerance: float = ROUNDING,
    below_s: float = np.inf,
) -> PlacedCut | None:  # fmt: skip
    """Return a cut with the parts of its stages that none is faster than by more than the tolerance.

    It is relative to the step; None if no cut fits that takes less than `below_s`.

    A box has least and greatest max t_i and max o_i. Its greatest ones give the least Σ t_i + Σ e_i of
    all cuts in it, its least ones the least of the rest.
    """
    if not len(graph.tail):
        return None
    repeats = micro_batches - 1
    parts = _most_parts(graph)
    fastest = (np.diff(sums, axis=1).min(axis=0) for sums in (chains.last_s, chains.once_s))
    least_t, least_o = (
        max(float(units.max()), float(units.sum()) / parts * (1 - ROUNDING)) for units in fastest
    )
    same_t, same_o = (
        ROUNDING * float(sums[:, -1].max()) for sums in (chains.other_s, chains.once_s)
    )
    best: PlacedCut | None = None
    best_s = below_s
    boxes = [(0.0, least_t, np.inf, least_o, np.inf, 0.0)]
    while boxes:
        bound_s, low_t, high_t, low_o, high_o, rest_s = heappop(boxes)
        if bound_s >= best_s * (1 - tolerance):
            break
        if repeats:
            high_t = min(high_t, (best_s - rest_s - low_o) / repeats)
        high_o = min(high_o, best_s - rest_s - repeats * low_t)
        found = cheapest(chains, graph, high_t, high_o)
        if found is None:
            continue
        rest_s = found.seconds
        stage_s, once_s = _stages(chains, found)
        top_t, top_o = max(stage_s), max(once_s)
        total_s = repeats * top_t + top_o + rest_s
        if total_s < best_s:
            best_s = total_s
            best = PlacedCut(found.bounds, found.kinds, found.edges, total_s)
        # All others in this box have more Σ t + Σ e, so a lesser max t_i or max o_i.
        gap_t, gap_o = repeats * (top_t - low_t), top_o - low_o
        if gap_t >= gap_o:
            middle = (low_t + top_t) / 2
            rest = [
                (low_t, middle, low_o, high_o),
                (middle, top_t - same_t, low_o, high_o),
                (top_t, high_t, low_o, top_o - same_o),
            ]
        else:
            middle = (low_o + top_o) / 2
            rest = [
                (low_t, high_t, low_o, middle),
                (low_t, high_t, middle, top_o - same_o),
                (low_t, top_t - same_t, top_o, high_o),
            ]
        for a, b, c, d in rest:
            bound = repeats * a + c + rest_s
            if a <= b and c <= d and bound < best_s * (1 - tolerance):
                heappush(boxes, (bound, a, b, c, d, rest_s))
    return best


def cheapest(chains: Chains, graph: PartGraph, stage_s: float, once_s: float) -> PlacedCut | None:
    """Return the cut of the least Σ t_i + Σ e_i with max t_i ≤ `stage_s` and max o_i ≤ `once_s`."""
    limit = chains.limit[graph.kind]
    value, edge, end = _least(
        *chains[:5], chains.transfer_s, *graph[:5], limit, len(graph.whole), stage_s, once_s
    )
    first = np.where(graph.whole, value[:, 0], np.inf)
    node, at = int(first.argmin()), 0
    if not np.isfinite(first[node]):
        return None
    total, bounds, edges = float(first[node]), [0], list[int]()
    while node:
        chosen = int(edge[node, at])
        node, at = int(graph.tail[chosen]), int(end[node, at])
        edges.append(chosen)
        bounds.append(at)
    return PlacedCut(tuple(bounds), tuple(graph.kind[edges].tolist()), tuple(edges), total)


def _most_parts(graph: PartGraph) -> int:
    """Return how many parts a pipeline has at most."""
    parts = [0] * len(graph.whole)
    for tail, head in zip(graph.tail.tolist(), graph.head.tolist(), strict=True):
        parts[head] = max(parts[head], parts[tail] + 1)
    return max(parts)


def _stages(chains: Chains, cut: PlacedCut) -> tuple[list[float], list[float]]:
    """Return the seconds of every stage per micro-batch, and once per step."""
    spans = list(zip(cut.kinds, pairwise(cut.bounds), strict=True))
    tables = [chains.other_s] * (len(spans) - 1) + [chains.last_s]
    stage_s = [float(t[k, b] - t[k, a]) for t, (k, (a, b)) in zip(tables, spans, strict=True)]
    return stage_s, [float(chains.once_s[k, b] - chains.once_s[k, a]) for k, (a, b) in spans]


@compiled
def _least(
    other: Floats, last: Floats, once: Floats, held: Ints, active: Ints, transfer: Floats,
    tail: Ints, head: Ints, kind: Ints, link: Ints, in_flight: Ints, limit: Ints, nodes: int,
    stage_s: float, once_s: float,
) -> tuple[Floats, Ints, Ints]:  # fmt: skip
    """Return by node and place the least seconds from there on, the edge that gives them, and its end.

    Of the ends that an edge may have from a place, which are a window, the least is kept at the front of
    a queue of those that may still become the least (sliding window minimum).
    """
    places = other.shape[1]
    value = np.full((nodes, places), np.inf)
    value[0, places - 1] = 0.0
    edge = np.full((nodes, places), -1, dtype=np.int64)
    end = np.full((nodes, places), -1, dtype=np.int64)
    key, queue = np.empty(places), np.empty(places, dtype=np.int64)
    for number in range(len(tail)):
        before, after, row, flight = tail[number], head[number], kind[number], in_flight[number]
        sums = last[row] if before == 0 else other[row]
        first = length = 0
        farthest = places - 1
        for start in range(places - 2, -1, -1):
            new = start + 1
            cost = sums[new] + value[before, new]
            if before != 0:
                cost += transfer[link[number], new]
            key[new] = cost
            if cost < np.inf:
                while length > first and key[queue[length - 1]] >= cost:
                    length -= 1
                queue[length] = new
                length += 1
            while farthest > start and (
                sums[farthest] - sums[start] > stage_s
                or once[row, farthest] - once[row, start] > once_s
                or held[row, farthest] - held[row, start]
                + flight * (active[row, farthest] - active[row, start]) > limit[number]
            ):  # fmt: skip
                farthest -= 1
            while first < length and queue[first] > farthest:
                first += 1
            if first < length:
                total = key[queue[first]] - sums[start]
                if total < value[after, start]:
                    value[after, start] = total
                    edge[after, start] = number
                    end[after, start] = queue[first]
    return value, edge, end
