"""One forest of nodes that move together: which nodes close no cycle, and their joint optimum.

Compiled, as each tensor takes only some hundred additions; loops are written out, because array
expressions take seconds to compile.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoddl.compiled import compiled
from autoddl.search.problem import Floats, Ints


class Network(NamedTuple):
    """Nodes, tensors and the ends at which nodes make or read them; as in node_moves.Network.

    Here tables have only the states that occur. The choices of node n are numbered from `first[n]` on
    over all nodes.
    """

    first: Ints
    touched: Ints
    touching: Ints
    begin: Ints
    node: Ints
    states: Ints
    states_at: Ints
    cost: Floats
    table_at: Ints
    size: Ints


class Star(NamedTuple):
    """Room for one tensor with the free nodes around it: one is above, the others are below.

    Of the ends, `below` has the free readers, `offers` their least totals by the state that they take.
    By state, `paid` is 1 where fixed readers want it: what else is wanted is paid for, too. `made` is 1
    where the tensor may be made so, and `start` what fixed readers and what is below the producer cost
    then. `served[made, s]` is what the readers below cost where s is paid for as well, and `common` the
    state that several of them take and pay for once, -1 for none. The others are for sums on
    the way.
    """

    below: Ints
    offers: Floats
    paid: Ints
    made: Ints
    start: Floats
    served: Floats
    common: Ints
    extra: Floats
    some: Floats
    sums: Floats


@compiled
def improve(
    net: Network, star: Star, nodes: Ints, total: Floats, point: Ints, order: Ints, above: Ints
) -> int:
    """Set those of the nodes, taken in turn, that close no cycle to their optimum, given the others.

    `total` has what each choice costs alone, and gets what hangs below; `point` is changed. Return how
    many choices there were. None of the nodes may have one tensor twice. In `order` and `above` there is
    room for all nodes and tensors.
    """
    first, touched, touching, begin, node_at = net[:5]
    states, states_at = net.states, net.states_at
    free, seen = np.zeros(len(point), dtype=np.int64), np.zeros(len(point), dtype=np.int64)
    choices = _acyclic(first, touched, touching, nodes, free, np.arange(len(net.size)))
    for root in nodes:
        if not free[root] or seen[root]:
            continue
        order[0], above[0], length, place = root, -1, 1, 0  # tensors are there as ~tensor
        seen[root] = 1
        while place < length:  # breadth first
            index = order[place]
            if index >= 0:
                for other in range(touched[index], touched[index + 1]):
                    if touching[other] != above[place]:
                        order[length], above[length] = ~touching[other], index
                        length += 1
            else:
                for end in range(begin[~index], begin[~index + 1]):
                    if free[node_at[end]] and not seen[node_at[end]]:
                        seen[node_at[end]] = 1
                        order[length], above[length] = node_at[end], ~index
                        length += 1
            place += 1
        for turn in range(2 * length):
            place = length - 1 - turn if turn < length else turn - length
            if turn == length:
                point[root] = _least(total, first[root], first[root + 1])
            if order[place] >= 0:
                continue
            tensor, node = ~order[place], above[place]
            size, end = net.size[tensor], begin[tensor]
            own = node_at[end] == node  # the node above makes the tensor
            only = states[states_at[end] + point[node]] if own and turn >= length else -1
            count = _around(net, star, tensor, node, only, free, total, point)
            lower = free[node_at[end]] and not own
            while node_at[end] != node:
                end += 1
            if turn < length:
                for state in range(size):
                    star.some[state] = np.inf
                for source in range(size):
                    if own:
                        best = _least(star.served[source], 0, size) if count else 0
                        more = star.served[source, best] if count else 0.0
                        star.some[source] = star.start[source] + more
                    elif star.made[source]:
                        for state in range(size):
                            seconds = star.start[source] + star.served[source, state]
                            star.some[state] = min(star.some[state], seconds)
                at = states_at[end] - first[node]
                for choice in range(first[node], first[node + 1]):
                    total[choice] += star.some[states[at + choice]]
            elif count or lower:
                source = wanted = states[states_at[end] + point[node]]
                if own:
                    wanted = _least(star.served[source], 0, size)
                else:
                    source, least = -1, np.inf
                    for state in range(size):
                        seconds = star.start[state] + star.served[state, wanted]
                        if star.made[state] and (source < 0 or seconds < least):
                            source, least = state, seconds
                    if lower:
                        _choose(net, begin[tensor], source, total, point)
                row = net.table_at[tensor] + source * size
                for index in range(count):
                    for state in range(size):
                        known = star.paid[state] or state == star.common[source, wanted]
                        more = 0.0 if known or state == wanted else net.cost[row + state]
                        star.some[state] = star.offers[index, state] + more
                    _choose(net, star.below[index], _least(star.some, 0, size), total, point)
    return choices


@compiled
def _acyclic(
    first: Ints, touched: Ints, touching: Ints, nodes: Ints, free: Ints, leader: Ints
) -> int:
    """Mark those of the nodes, taken in turn, that close no cycle; return how many choices they have."""
    choices, groups = 0, np.empty(len(leader), dtype=np.int64)
    last = np.full(len(leader), -1)
    for node in nodes:
        free[node], count = 1, touched[node + 1] - touched[node]
        for index in range(count):
            group = touching[touched[node] + index]
            while leader[group] != group:
                leader[group] = leader[leader[group]]
                group = leader[group]
            if last[group] == node:
                free[node] = 0
            last[group], groups[index] = node, group
        if free[node]:
            choices += first[node + 1] - first[node]
            for index in range(count):
                leader[groups[index]] = groups[0]
    return choices


@compiled
def _least(values: Floats, first: int, last: int) -> int:
    """Return how far behind `first` the least value is, of equal ones the first."""
    best = first
    for place in range(first + 1, last):
        if values[place] < values[best]:
            best = place
    return best - first


@compiled
def _around(
    net: Network,
    star: Star,
    tensor: int,
    node: int,
    only: int,
    free: Ints,
    total: Floats,
    point: Ints,
) -> int:
    """Fill in a tensor with the free nodes around it, `node` above; return how many below read it.

    What they are served for is filled in where the tensor is made so, and, unless that is -1, `only` so.
    """
    first, last = net.begin[tensor], net.begin[tensor + 1]
    size, table, cost = net.size[tensor], net.table_at[tensor], net.cost
    begins, node_at, states, states_at = net.first, net.node, net.states, net.states_at
    below, offers, paid, made, start, served, common, extra, some, sums = star
    for state in range(size):
        paid[state], made[state], start[state] = 0, 1, 0.0
    count = 0
    for end in range(first, last):
        other = node_at[end]
        if other == node:
            continue
        here = states_at[end] - begins[other]
        if free[other]:
            for state in range(size):
                offers[count, state] = np.inf
            for choice in range(begins[other], begins[other + 1]):
                state = states[here + choice]
                offers[count, state] = min(offers[count, state], total[choice])
            if end > first:
                below[count] = end
                count += 1
            else:
                for state in range(size):
                    extra[state] = offers[0, state]
        elif end > first:
            paid[states[states_at[end] + point[other]]] = 1
    for state in range(size):
        if paid[state]:
            for source in range(size):
                start[source] += cost[table + source * size + state]
    producer = node_at[first]
    if producer != node:
        for state in range(size):
            made[state] = 0
            if free[producer]:
                start[state] += extra[state]
                made[state] = extra[state] < np.inf
        if not free[producer]:
            made[states[states_at[first] + point[producer]]] = 1
    if producer == node and not count:
        return 0  # nothing below is served
    for state in range(size):
        some[state] = -1.0  # 0 where it may be common
    if count > 1:
        for index in range(count):
            end = below[index]
            some[states[states_at[end] + point[node_at[end]]]] = 0.0
        for state in range(size):
            extra[state] = 0.0
            for index in range(count):
                extra[state] += offers[index, state]
        for source in range(size):
            best, least = 0, np.inf
            for state in range(size):
                seconds = (0.0 if paid[state] else cost[table + source * size + state]) + extra[
                    state
                ]
                if seconds < least:
                    best, least = state, seconds
            some[best] = 0.0
    for source in range(size):
        if not made[source] or (only >= 0 and source != only):
            continue
        for state in range(size):
            served[source, state], common[source, state] = np.inf, -1
        for shared in range(-1, size):
            if shared >= 0 and (paid[shared] or some[shared] < 0):
                continue
            for state in range(size):
                extra[state] = cost[table + source * size + state]
                if paid[state] or state == shared:
                    extra[state] = 0.0
            more = 0.0 if shared < 0 else cost[table + source * size + shared]
            for state in range(size):
                sums[state] = extra[state] + more
            for index in range(count):
                alone = np.inf
                for state in range(size):
                    alone = min(alone, offers[index, state] + extra[state])
                for state in range(size):
                    sums[state] += min(offers[index, state], alone)
            for state in range(size):
                if sums[state] < served[source, state]:
                    served[source, state], common[source, state] = sums[state], shared
    return count


@compiled
def _choose(net: Network, end: int, state: int, total: Floats, point: Ints) -> None:
    """Choose the best for a node of what means a state of the tensor at one of its ends."""
    node, best = net.node[end], -1
    first, at = net.first[node], net.states_at[end] - net.first[node]
    for choice in range(first, net.first[node + 1]):
        if net.states[at + choice] == state and (best < 0 or total[choice] < total[best]):
            best = choice
    if best >= 0:
        point[node] = best - first
