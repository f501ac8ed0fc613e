"""How ops follow their producers: each takes what is cheapest behind those before it; compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoddl.compiled import compiled
from autoddl.perfmodel.redistribution import RedistributionTable
from autoddl.sbp.state import B, NdSbp, P
from autoddl.search.network.cost_network import CostNetwork, Floats, Ints


class Reads(NamedTuple):
    """What the nodes of a problem read.

    The choices of node n are numbered from `first[n]` on: `compute` are their seconds, `sums` these of
    all choices of a node. Its reads are numbered from `read[n]` on: `producer` is who makes the tensor,
    `made_at` where its states by choice begin in `states`, `wanted[read]` the first of those of the
    node's operands in `wanted_at`. From state s to t a read costs `cost[table_at + s * size + t]`, and
    `reduced[reduced_at + s]` is s with its partial sums reduced.
    """

    first: Ints
    compute: Floats
    sums: Floats
    read: Ints
    producer: Ints
    made_at: Ints
    wanted: Ints
    wanted_at: Ints
    states: Ints
    cost: Floats
    table_at: Ints
    size: Ints
    reduced: Ints
    reduced_at: Ints


def reads(problem: CostNetwork) -> Reads:
    """Return what the nodes of a problem read; a tensor once, whatever number of operands it is."""
    net, variables, factors = problem.arrays, problem.variables, problem.factors
    nodes = np.repeat(np.arange(len(net.choices)), net.choices)
    first = np.concatenate(([0], net.choices.cumsum()))
    ends = np.flatnonzero(factors.reads)
    ends = ends[np.argsort(net.variable[ends], kind="stable")]
    node, edge = net.variable[ends], factors.factor[ends]
    begins = np.flatnonzero(np.diff(node, prepend=-1) | np.diff(edge, prepend=-1))
    node, edge = node[begins], edge[begins]
    known = [_reduced(table) for table in factors.tables]
    reduced_at = np.concatenate(([0], np.cumsum([len(table) for table in known])))
    sums = np.array([domain.compute_s.sum() for domain in variables.domains], dtype=np.float64)
    return Reads(
        first,
        net.compute[net.compute_at[nodes] + np.arange(len(nodes)) - first[nodes]],
        sums[variables.domain],
        np.searchsorted(node, np.arange(len(net.choices) + 1)),
        net.variable[net.begin[edge]],
        net.states_at[net.begin[edge]],
        np.append(begins, len(ends)),
        net.states_at[ends],
        net.states,
        net.cost,
        net.table_at[edge],
        net.size[edge],
        np.concatenate(known, dtype=np.int64) if known else np.zeros(0, dtype=np.int64),
        reduced_at[factors.table[edge]],
    )


def _reduced(table: RedistributionTable) -> list[int]:
    """Return for every state of a table what it becomes when its partial sums are reduced."""
    whole = [
        NdSbp(B if s == P else s for s in state) if P in state else state for state in table.states
    ]
    return [table.index[state] for state in whole]


@compiled
def follow(net: Reads, given: Ints, allowed: Ints, near: float, reduced: int) -> Ints:
    """Return an assignment: what is `given`, and where that is -1 an allowed choice, the first best.

    That is the one that costs least, given the producers, which have their choices already. Or, with
    `reduced`, the one that takes the inputs least far from what they are, partial sums reduced; among
    those that are as `near`, up to that factor, the one with the least compute.
    """
    point, total = np.zeros(len(given), dtype=np.int64), np.zeros(len(net.compute))
    for node in range(len(given)):
        if given[node] >= 0:
            point[node] = given[node]
            continue
        first, last = net.first[node], net.first[node + 1]
        if not reduced:
            for choice in range(first, last):
                total[choice] = net.compute[choice]
        for read in range(net.read[node], net.read[node + 1]):
            source = net.states[net.made_at[read] + point[net.producer[read]]]
            if reduced:
                source = net.reduced[net.reduced_at[read] + source]
            row = net.table_at[read] + source * net.size[read]
            for choice in range(first, last):
                seconds = 0.0
                for i in range(net.wanted[read], net.wanted[read + 1]):
                    seconds += net.cost[row + net.states[net.wanted_at[i] + choice - first]]
                total[choice] += seconds
        if reduced:
            least = total[first]
            for choice in range(first, last):
                least = min(least, total[choice])
            for choice in range(first, last):
                within = total[choice] <= least * near
                total[choice] = net.compute[choice] if within else total[choice] + net.sums[node]
        best = -1
        for choice in range(first, last):
            if allowed[choice] and (best < 0 or total[choice] < total[best]):
                best = choice
        point[node] = best - first
    return point
