"""Blocks of coordinate descent: a layer's contraction with the variables around it that follow it.

Each cell gives one block move: its root, a contraction (matmul, convolution, embedding), takes a
signature and everything else in the cell takes what is cheapest next to it.

    fc1 (root) → bias_add → gelu: 12 alternatives, one for each signature of fc1, not 12 · 9 · 7.

Source: AutoDDL §4.4 (a coordinate is a layer).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from autoddl.sbp.layers import contractions
from autoddl.search.network.cost_network import CostNetwork, Floats, Ints
from autoddl.search.network.evaluator import BlockMove

ROOT_FAMILIES = ("matmul", "conv", "embedding")


def roots(network: CostNetwork, phase: str = "forward") -> list[int]:
    """Return the variables of the contractions of one phase."""
    places = contractions(network.program, phase, *ROOT_FAMILIES)
    found: list[int] = np.flatnonzero(np.isin(network.variables.op, places)).tolist()
    return found


def block(network: CostNetwork, variables: Sequence[int], columns: Sequence[Ints]) -> BlockMove:
    """Return the block whose k-th alternative gives each variable the k-th entry of its column."""
    some = np.array(variables, dtype=np.int64)
    return BlockMove(some, np.stack(columns), network.touched(some))


def single(network: CostNetwork, variable: int) -> BlockMove:
    """Return the block of one variable over all its choices."""
    return block(network, [variable], [np.arange(len(network.variables.of(variable).choices))])


def build(network: CostNetwork) -> list[BlockMove]:
    """Return the moves of all cells of a network."""
    return [block(network, cell, _columns(network, cell)) for cell in _members(network)]


def _members(network: CostNetwork) -> list[list[int]]:
    """Return the variables of each root's cell, in breadth-first order."""
    owner, cells = _owners(network), []
    for root in roots(network):
        cell, seen = [root], {root}
        for variable in cell:  # which grows meanwhile
            for neighbour in network.neighbours(variable):
                if neighbour not in seen and owner[neighbour] == root:
                    seen.add(neighbour)
                    cell.append(neighbour)
        cells.append(cell)
    return cells


def _owners(network: CostNetwork) -> dict[int, int]:
    """Return the root of its module, if that has just one, or else the nearest one, by variable."""
    sources, (number, names) = roots(network), network.modules
    owner = {root: root for root in sources}
    for module, count in Counter(number[sources].tolist()).items():
        if names[module] and count == 1:
            inside = np.flatnonzero(number == module).tolist()
            owner |= dict.fromkeys(inside, next(root for root in inside if root in owner))
    reached = list(owner)
    for variable in reached:  # which grows meanwhile
        for neighbour in network.neighbours(variable):
            if neighbour not in owner:
                owner[neighbour] = owner[variable]
                reached.append(neighbour)
    return owner


def _columns(network: CostNetwork, cell: list[int]) -> tuple[Ints, ...]:
    """Return one column per variable: for each choice of the root, what it takes next to it."""
    labels = len(network.variables.of(cell[0]).choices)
    columns: dict[int, Ints] = {cell[0]: np.arange(labels)}
    begin, factor = network.incidence
    for variable in cell[1:]:
        cost = np.tile(network.variables.of(variable).compute_s, (labels, 1))
        for which in factor[begin[variable] : begin[variable + 1]].tolist():
            cost += _attachment(network, which, variable, columns, labels)
        columns[variable] = cost.argmin(axis=1)
    return tuple(columns[variable] for variable in cell)


def _attachment(
    network: CostNetwork, factor: int, variable: int, columns: dict[int, Ints], labels: int
) -> Floats:
    """Price every choice of a variable against those of a factor's that have a column already."""
    factors = network.factors
    table = factors.tables[factors.table[factor]].cost
    (producer, made), *readers = factors.ends(factor)
    source = made[columns[producer]] if producer in columns else None
    others = [states[columns[reader]] for reader, states in readers if reader in columns]
    total = np.zeros((labels, 1))
    if producer == variable:
        for states in others:
            total = total + table[made[None, :], states[:, None]]
    for reader, states in readers:
        if reader != variable:
            continue
        if source is not None:
            total = total + table[source[:, None], states[None, :]]
        elif others:  # the producer is not known yet: want what a sibling wants
            total = total + table[others[0][:, None], states[None, :]]
    return total
