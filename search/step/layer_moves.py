"""Moves of an assignment: the variables of all equal layers take another choice, the cheapest first.

What a move costs is told by a network, with the weights of critical paths; what it does to the step is
for a simulation to say. Of a variable with choices (0, 1, 2), now 0, in 24 equal layers there are two
moves, each of 24 variables.

Source: Besag 1986 (iterated conditional modes), block by block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autoddl.grouping import distinct
from autoddl.search.network.cost_network import CostNetwork, Ints, as_ints
from autoddl.search.network.evaluator import BlockMove, block_of
from autoddl.search.result import Assignment, Point
from autoddl.search.step.critical_path import alike


class LayerMove(NamedTuple):
    """Some variables take a choice, which costs so many seconds more."""

    more_s: float
    variables: Ints
    choice: int


class LayerMoves:
    """The moves of a network's assignments."""

    def __init__(self, network: CostNetwork) -> None:
        variables, program = network.variables, network.program
        ops, tensors = network.derived(alike)
        held = variables.of_kind("input", "parameter")
        look = np.arange(len(network)) + len(ops) + len(tensors)
        look[variables.op >= 0] = ops[variables.op[variables.op >= 0]]
        names = [program.columns.number[variables.name[v]] for v in np.flatnonzero(held).tolist()]
        look[held] = len(ops) + tensors[names]
        first, which = distinct(look, variables.domain)
        order = np.argsort(which, kind="stable")
        groups = np.split(order, np.cumsum(np.bincount(which))[:-1]) if len(first) else []
        self.network = network
        self.groups = [g for g in groups if variables.sizes[g[0]] > 1]
        begin, factor = network.incidence
        self.factors = [
            np.unique(np.concatenate([factor[begin[v] : begin[v + 1]] for v in group.tolist()]))
            for group in self.groups
        ]

    def ranked(self, point: Point, weighted: CostNetwork) -> list[LayerMove]:
        """Return all moves, those first that cost least in a network."""
        now = as_ints(point).copy()
        found: list[LayerMove] = []
        for group, factors in zip(self.groups, self.factors, strict=True):
            count = int(self.network.variables.sizes[group[0]])
            columns = np.repeat(np.arange(count)[None], len(group), axis=0)
            seconds, _ = block_of(weighted.arrays, BlockMove(group, columns, factors), now)
            before, _ = block_of(
                weighted.arrays, BlockMove(group, now[group][:, None].copy(), factors), now
            )
            same = (now[group][:, None] == columns).all(axis=0)
            for choice in np.flatnonzero(np.isfinite(seconds) & ~same).tolist():
                found.append(LayerMove(float(seconds[choice] - before[0]), group, choice))
        return sorted(found, key=lambda move: move.more_s)


def moved(point: Point, *moves: LayerMove) -> Assignment:
    """Return the assignment after some moves."""
    found = as_ints(point).copy()
    for move in moves:
        found[move.variables] = move.choice
    return Assignment(found)


def pairs(ranked: Sequence[LayerMove], most: int) -> list[tuple[LayerMove, LayerMove]]:
    """Return pairs of moves of different variables, at most so many, those that cost least first."""
    found = [
        (one, other)
        for place, one in enumerate(ranked[: most + 1])
        for other in ranked[place + 1 : most + 1]
        if one.variables is not other.variables
    ]
    return sorted(found, key=lambda pair: pair[0].more_s + pair[1].more_s)[:most]
