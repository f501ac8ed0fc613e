"""Moves of an assignment: the variables of all equal layers take another choice, the cheapest first.

What a move costs is told by a network, with the weights of critical paths; what it does to the step is
for a simulation to say. Of a variable with choices (0, 1, 2), now 0, in 24 equal layers there are two
moves, each of 24 variables.

Source: Besag 1986 (iterated conditional modes), block by block.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from autoddl.ragged import distinct
from autoddl.search.network.cost_network import CostNetwork, Floats, Ints, as_ints
from autoddl.search.network.evaluator import BlockMove, block_of
from autoddl.search.result import Assignment, Point
from autoddl.search.step.critical_path import alike


class Move(NamedTuple):
    """Some variables take other choices, which costs so many seconds more."""

    more_s: float
    variables: Ints
    choices: Ints

    @property
    def key(self) -> bytes:
        """Return what is equal for moves of the same variables to the same choices."""
        return self.variables.tobytes() + self.choices.tobytes()


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
        self.factors = list(map(network.touched, self.groups))

    def cheapest(self, point: Point, weighted: CostNetwork, most: int) -> list[Move]:
        """Return at most so many moves, those first that cost least in a network."""
        now, sizes = as_ints(point).copy(), self.network.variables.sizes
        groups: list[tuple[Ints, Ints]] = []
        more: list[Floats] = []
        for every, factors in zip(self.groups, self.factors, strict=True):
            for here in np.unique(now[every]).tolist():
                group = every[now[every] == here]
                columns = np.repeat(np.arange(sizes[group[0]])[None], len(group), axis=0)
                seconds, _ = block_of(weighted.arrays, BlockMove(group, columns, factors), now)
                groups.append((group, columns))
                more.append(seconds - seconds[here])
                more[-1][here] = np.inf
        every_s, begin = np.concatenate([[], *more]), np.cumsum([0, *map(len, more)])
        first = every_s.argsort(kind="stable")[:most]
        first = first[np.isfinite(every_s[first])]
        which = np.searchsorted(begin, first, side="right") - 1
        choices = (first - begin[which]).tolist()
        return [
            Move(more_s, groups[number][0], groups[number][1][:, choice])
            for more_s, number, choice in zip(
                every_s[first].tolist(), which.tolist(), choices, strict=True
            )
        ]


def moved(point: Point, move: Move) -> Assignment:
    """Return the assignment after a move."""
    found = as_ints(point).copy()
    found[move.variables] = move.choices
    return Assignment(found)


def ranked(moves: Sequence[Move]) -> list[Move]:
    """Return moves, those first that cost least."""
    return sorted(moves, key=lambda move: move.more_s)


def in_turn(*lists: Sequence[Move]) -> list[Move]:
    """Return the first of each list, then the second of each, and so on."""
    return [move for row in zip_longest(*lists) for move in row if move is not None]
