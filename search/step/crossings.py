"""Crossings of two assignments: one of them takes the other's choices in some layers.

Equal layers need not have equal states. Where one assignment waits for results on their way, and
another one keeps the links busy with gradients, a step in which some layers are as in the latter may be
shorter than with either. Regions are runs of 1, 2, 4, … layers of a stack, each beginning at a multiple
of its length, whole stacks, and what lies outside of all.

    BERT with experts: 465.8 ms if these are cut (links busy for 87 ms), 508.3 ms if they are whole (329
    ms), 459.9 ms if they are whole in six layers of twelve (208 ms).

Source: Radcliffe 1991 (crossovers that respect what both parents share); Dantzig and Wolfe 1960 (the
optimum of a relaxation is a mixture of few assignments).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from autoddl.search.network.cost_network import CostNetwork, Ints, as_ints
from autoddl.search.network.evaluator import BlockMove, Flags, block_of
from autoddl.search.reductions.quotient import places_of
from autoddl.search.result import Assignment, Point
from autoddl.search.step.layer_moves import Move

Regions = Sequence[Sequence[Ints]]


class Crossings:
    """The crossings of a network's assignments, region by region."""

    def __init__(self, network: CostNetwork) -> None:
        self.regions = regions(network)
        self.factors = [list(map(network.touched, same)) for same in self.regions]

    def moves(
        self, point: Point, others: Iterable[Assignment], weighted: CostNetwork
    ) -> list[list[Move]]:
        """Return the moves of a point to others' choices in all regions, by how large these are.

        A network says what they cost; those that it forbids are left out.
        """
        now, theirs, known = as_ints(point).copy(), list(map(as_ints, others)), set[bytes]()
        found: list[list[Move]] = [[] for _ in self.regions]
        for moves, same, factors in zip(found, self.regions, self.factors, strict=True):
            for there in theirs:
                for region, touched in zip(same, factors, strict=True):
                    mine = region[there[region] != now[region]]
                    both = np.stack([now[mine], there[mine]], axis=1)
                    move = Move(0.0, mine, both[:, 1])
                    if not len(mine) or move.key in known:
                        continue
                    known.add(move.key)
                    block = BlockMove(mine, both, touched)
                    (before_s, after_s), _ = block_of(weighted.arrays, block, now)
                    if np.isfinite(after_s):
                        moves.append(move._replace(more_s=float(after_s - before_s)))
        return found


def regions(network: CostNetwork) -> Regions:
    """Return the variables of all regions, by how large they are: the largest first."""
    at = network.derived(places_of)
    outside = at.stack < 0
    found: dict[int, list[Flags]] = {0: [outside]}
    for stack in range(at.stack.max(initial=-1) + 1):
        mine = at.stack == stack
        layers = np.unique(at.layer[mine])
        place = np.searchsorted(layers, at.layer)
        found[0].append(mine)
        length = 1
        while length < len(layers):
            for first in range(0, len(layers), length):
                inside = mine & (place >= first) & (place < first + length)
                found.setdefault(length, []).append(inside)
            length *= 2
    return [[np.flatnonzero(inside) for inside in same] for same in found.values()]
