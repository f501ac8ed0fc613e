"""How ops follow their producers: each takes what is cheapest behind those before it; compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoddl.compiled import compiled
from autoddl.perfmodel.redistribution import RedistributionTable
from autoddl.sbp.state import B, NdSbp, P
from autoddl.search.network.cost_network import CostNetwork, Ints
from autoddl.search.network.evaluator import Arrays, Incidence


class Reads(NamedTuple):
    """A problem, where the choices of each node begin, and what states become.

    Reduced, that is without partial sums, state s of factor f's tensor is `reduced[table[f], s]`.
    """

    net: Arrays
    by: Incidence
    first: Ints
    table: Ints
    reduced: Ints


def reads(problem: CostNetwork) -> Reads:
    """Return what ops follow in."""
    net, tables = problem.arrays, problem.factors.tables
    first = np.concatenate(([0], net.choices.cumsum()))
    most = max([len(table.states) for table in tables], default=0)
    reduced = np.zeros((len(tables), most), dtype=np.int64)
    for row, table in zip(reduced, tables, strict=True):
        row[: len(table.states)] = _reduced(table)
    return Reads(net, problem.incidence, first, problem.factors.table, reduced)


def _reduced(table: RedistributionTable) -> list[int]:
    """Return for every state of a table what it becomes when its partial sums are reduced."""
    whole = [
        NdSbp(B if s == P else s for s in state) if P in state else state for state in table.states
    ]
    return [table.index[state] for state in whole]


@compiled
def follow(reads: Reads, given: Ints, allowed: Ints, reduced: int) -> Ints:
    """Return an assignment: what is `given`, and where that is -1 an allowed choice, the first best.

    That is the one that costs least, given the producers, which have their choices already. Or, with
    `reduced`, the one that takes the inputs least far from what they are, partial sums reduced; of
    several the one with the least compute.
    """
    net, by = reads.net, reads.by
    point = np.zeros(len(given), dtype=np.int64)
    for node in range(len(given)):
        if given[node] >= 0:
            point[node] = given[node]
            continue
        choices, compute = net.choices[node], net.compute[net.compute_at[node] :]
        moved = np.zeros(choices)
        for factor in by.factor[by.begin[node] : by.begin[node + 1]]:
            begin = net.begin[factor]
            if net.variable[begin] == node:
                continue  # it makes that tensor
            source = net.states[net.states_at[begin] + point[net.variable[begin]]]
            if reduced:
                source = reads.reduced[reads.table[factor], source]
            row = net.cost[net.table_at[factor] + source * net.size[factor] :]
            for end in range(begin + 1, net.begin[factor + 1]):
                if net.variable[end] == node:
                    for choice in range(choices):
                        moved[choice] += row[net.states[net.states_at[end] + choice]]
        best, least = -1, (np.inf, np.inf)
        for choice in range(choices):
            here = moved[choice], compute[choice]
            if not reduced:
                here = moved[choice] + compute[choice], 0.0
            if allowed[reads.first[node] + choice] and (best < 0 or here < least):
                best, least = choice, here
        point[node] = best
    return point
