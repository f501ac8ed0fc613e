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

from autoddl.ragged import Ragged
from autoddl.search.network.cost_network import CostNetwork, Ints, as_ints
from autoddl.search.network.evaluator import Flags, crossed_s
from autoddl.search.reductions.quotient import places_of
from autoddl.search.result import Assignment, Point
from autoddl.search.step.layer_moves import Move

Regions = Sequence[Sequence[Ints]]


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


def _flat(network: CostNetwork) -> tuple[Ints, Ragged]:
    """Return of every region the place of its size among all, and its variables."""
    sizes = [(size, region) for size, same in enumerate(regions(network)) for region in same]
    rows = Ragged.of([region.tolist() for _, region in sizes])
    return np.array([size for size, _ in sizes], dtype=np.int64), rows


def crossings(
    point: Point, others: Iterable[Assignment], weighted: CostNetwork
) -> list[list[Move]]:
    """Return the moves of a point to others' choices in all regions, by how large these are.

    A network says what they cost; those that it forbids are left out.
    """
    now, there = as_ints(point), np.array([*map(as_ints, others)]).reshape(-1, len(point))
    sizes, every = weighted.derived(_flat)
    more_s = crossed_s(weighted.arrays, weighted.incidence, now, there, *every)
    known: set[bytes] = set()
    found: list[list[Move]] = [[] for _ in range(int(sizes.max(initial=-1)) + 1)]
    for other, region in np.argwhere(np.isfinite(more_s)).tolist():
        mine = every.items[every.start[region] : every.start[region + 1]]
        mine = mine[there[other, mine] != now[mine]]
        move = Move(float(more_s[other, region]), mine, there[other, mine])
        if move.key not in known:
            known.add(move.key)
            found[sizes[region]].append(move)
    return found
