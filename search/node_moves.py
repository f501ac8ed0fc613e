"""Price assignments, and descend: each node in turn takes its best choice, given all others; compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autoddl.compiled import compiled

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

OUT, IDLE, WAITING = 0, 1, 2


class Network(NamedTuple):
    """A problem as arrays alone, for compiled loops.

    Node n has `choices[n]` choices; its seconds begin at `compute[compute_at[n]]`, bytes likewise. The
    ends of edge e are numbered from `begin[e]` on, its producer first: `node` is who, and the state
    under choice c is `states[states_at[end] + c]`. From state s to t the edge costs
    `cost[table_at[e] + s * size[e] + t]`.
    """

    choices: Ints
    compute: Floats
    compute_at: Ints
    memory: Ints
    memory_at: Ints
    begin: Ints
    node: Ints
    states: Ints
    states_at: Ints
    cost: Floats
    table_at: Ints
    size: Ints


class Touching(NamedTuple):
    """The edges that nodes make or read: those of node n are `edge[begin[n] : begin[n + 1]]`."""

    begin: Ints
    edge: Ints


class Queue(NamedTuple):
    """The nodes that are to be looked at, and by node whether it is OUT of them all, IDLE or WAITING.

    `nodes` is a ring; `counts` has where it begins, how many are waiting, the bytes of the point, and how
    many choices were priced.
    """

    nodes: Ints
    kind: Ints
    counts: Ints


@compiled
def priced(net: Network, point: Ints) -> tuple[float, float, int]:
    """Return the seconds of compute and of redistributions, and the bytes, all nodes together."""
    compute_s, communication_s, held, tables = 0.0, 0.0, 0, 1
    for node in range(len(net.choices)):
        compute_s += net.compute[net.compute_at[node] + point[node]]
        held += net.memory[net.memory_at[node] + point[node]]
    for size in net.size:
        tables = max(tables, size)
    wanted = np.full(tables, -1)  # by state, the last edge of which some reader wants it
    for edge in range(len(net.size)):
        first, others = net.begin[edge], 0
        source = net.states[net.states_at[first] + point[net.node[first]]]
        for end in range(first + 1, net.begin[edge + 1]):
            state = net.states[net.states_at[end] + point[net.node[end]]]
            if state != source:
                wanted[state] = edge
                others += 1
        if others:
            at, seconds = net.table_at[edge] + source * net.size[edge], 0.0
            for state in range(net.size[edge]):
                if wanted[state] == edge:
                    seconds += net.cost[at + state]
            communication_s += seconds
    return compute_s, communication_s, held


@compiled
def descend(
    net: Network, touching: Touching, point: Ints, queue: Queue, limit: int, relative: float,
    turns: int,
) -> None:  # fmt: skip
    """Give the nodes of a queue their best choices; neighbours of those that change are queued again.

    Bytes over the limit come first, then seconds, which have to be less by a `relative` part. It goes on
    for so many `turns`.
    """
    nodes, kind, counts = queue
    most, tables = 1, 1
    for size in net.choices:
        most = max(most, size)
    for size in net.size:
        tables = max(tables, size)
    seconds, row = np.empty(most), np.empty(tables)
    for _ in range(turns):
        if counts[1] == 0:
            return
        node = nodes[counts[0]]
        counts[0] = (counts[0] + 1) % len(nodes)
        counts[1] -= 1
        kind[node] = IDLE
        size, now, held = net.choices[node], point[node], net.memory_at[node]
        counts[3] += size
        for choice in range(size):
            seconds[choice] = net.compute[net.compute_at[node] + choice]
        for place in range(touching.begin[node], touching.begin[node + 1]):
            _add(net, touching.edge[place], node, point, seconds, row)
        base = counts[2] - net.memory[held + now]
        best, excess = 0, max(0, base + net.memory[held] - limit)  # of equal ones the first
        for choice in range(1, size):
            over = max(0, base + net.memory[held + choice] - limit)
            if over < excess or (over == excess and seconds[choice] < seconds[best]):
                best, excess = choice, over
        before = max(0, counts[2] - limit)
        if excess == before and not seconds[best] < seconds[now] * (1 - relative) - 1e-15:
            continue
        counts[2] = base + net.memory[held + best]
        point[node] = best
        for place in range(touching.begin[node], touching.begin[node + 1]):
            tensor = touching.edge[place]
            for end in range(net.begin[tensor], net.begin[tensor + 1]):
                other = net.node[end]
                if other != node and kind[other] == IDLE:
                    kind[other] = WAITING
                    nodes[(counts[0] + counts[1]) % len(nodes)] = other
                    counts[1] += 1


@compiled
def _add(net: Network, tensor: int, node: int, point: Ints, seconds: Floats, row: Floats) -> None:
    """Add to the choices of a node what a tensor costs: once for every state that is wanted."""
    first, last, size = net.begin[tensor], net.begin[tensor + 1], net.size[tensor]
    made = net.states_at[first]
    for choice in range(net.choices[node]):
        producer = net.node[first]
        source = net.states[made + (choice if producer == node else point[producer])]
        at = net.table_at[tensor] + source * size
        for state in range(size):
            row[state] = 0.0
        for end in range(first + 1, last):
            reader = net.node[end]
            state = net.states[net.states_at[end] + (choice if reader == node else point[reader])]
            row[state] = net.cost[at + state]
        seconds[choice] += _sum(row, size)


@compiled
def _sum(values: Floats, count: int) -> float:
    """Return the sum of so many values; of up to 128 in NumPy's order, so that ties stay ties."""
    whole, total = count - count % 8, 0.0
    if whole:
        parts = values[:8].copy()
        for place in range(8, whole):
            parts[place % 8] += values[place]
        total = (parts[0] + parts[1] + (parts[2] + parts[3])) + (
            parts[4] + parts[5] + (parts[6] + parts[7])
        )
    for place in range(whole, count):
        total += values[place]
    return total
