"""Blocks of coordinate descent: a layer's contraction with the variables around it that follow it.

Each cell gives one block move: its root, a contraction (matmul, convolution, embedding), takes a
signature and everything else in the cell takes what is cheapest next to it. Cells that repeat also move
together.

    fc1 (root) → bias_add → gelu: 12 alternatives, one for each signature of fc1, not 12 · 9 · 7.

Source: AutoDDL §4.4 (a coordinate is a layer).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoddl.sbp.program.blocks import pattern
from autoddl.sbp.rules.registry import find
from autoddl.search.network.cost_network import CostNetwork, Floats, Ints
from autoddl.search.network.evaluator import BlockMove

ROOT_FAMILIES = ("matmul", "conv", "embedding")


@dataclass(frozen=True)
class Cells:
    """The moves over cells: `single` one cell each, `tied` all cells of the same kind at once."""

    single: tuple[BlockMove, ...]
    tied: tuple[BlockMove, ...]


def roots(network: CostNetwork, phase: str = "forward") -> list[int]:
    """Return the variables of the contractions of one phase."""
    program, ops = network.program.columns, network.variables.op
    rules = [find(name) for name in program.types]
    families = [rule is not None and rule.family in ROOT_FAMILIES for rule in rules]
    types = np.array(families, dtype=np.bool_)
    variables = np.flatnonzero(ops >= 0)
    op = ops[variables]
    found: list[int] = variables[types[program.type[op]] & (program.phase[op] == phase)].tolist()
    return found


def block(network: CostNetwork, variables: Sequence[int], columns: Sequence[Ints]) -> BlockMove:
    """Return the block whose k-th alternative gives each variable the k-th entry of its column."""
    begin, factor = network.incidence
    touched = [factor[begin[v] : begin[v + 1]] for v in variables]
    return BlockMove(
        np.array(variables, dtype=np.int64), np.stack(columns), np.unique(np.concatenate(touched))
    )


def single(network: CostNetwork, variable: int) -> BlockMove:
    """Return the block of one variable over all its choices."""
    return block(network, [variable], [np.arange(len(network.variables.of(variable).choices))])


def build(network: CostNetwork) -> Cells:
    """Return the cells of a network and their moves."""
    members, classes = _members(network), _classes(network)
    shared: dict[object, tuple[Ints, ...]] = {}
    moves: list[BlockMove] = []
    groups: dict[object, list[tuple[list[int], tuple[Ints, ...]]]] = defaultdict(list)
    for root, cell in members.items():
        key = tuple(classes[variable] for variable in cell)
        if key not in shared:
            shared[key] = _columns(network, cell)
        moves.append(block(network, cell, shared[key]))
        groups[classes[root], len(shared[key][0])].append((cell, shared[key]))
    tied = [
        block(
            network, [v for cell, _ in group for v in cell], [c for _, some in group for c in some]
        )
        for group in groups.values()
    ]
    return Cells(tuple(moves), tuple(tied))


def _members(network: CostNetwork) -> dict[int, list[int]]:
    """Give every variable that a root reaches to its nearest root; lists are in breadth-first order."""
    sources = roots(network)
    owner = {root: root for root in sources}
    queue = deque(sources)
    for root, variables in _same_module(network, sources).items():
        for variable in variables:
            owner[variable] = root
            queue.append(variable)
    while queue:
        variable = queue.popleft()
        for neighbour in network.neighbours(variable):
            if neighbour not in owner:
                owner[neighbour] = owner[variable]
                queue.append(neighbour)
    cells: dict[int, list[int]] = {root: [] for root in sources}
    for root in sources:
        seen, queue = {root}, deque([root])
        while queue:
            variable = queue.popleft()
            cells[root].append(variable)
            for neighbour in network.neighbours(variable):
                if neighbour not in seen and owner[neighbour] == root:
                    seen.add(neighbour)
                    queue.append(neighbour)
    return cells


def _same_module(network: CostNetwork, sources: list[int]) -> dict[int, list[int]]:
    """Return the variables of every module that has exactly one root, by root."""
    number, names = network.modules
    found = {}
    for which in np.unique(number).tolist():
        inside = [root for root in sources if number[root] == which]
        if names[which] and len(inside) == 1:
            others = np.flatnonzero(number == which).tolist()
            found[inside[0]] = [variable for variable in others if variable != inside[0]]
    return found


def _classes(network: CostNetwork) -> list[object]:
    """Name every variable up to the number of its layer, so that repeated layers get equal names."""
    variables, program = network.variables, network.program
    number, names = network.modules
    seen: dict[object, int] = defaultdict(int)
    classes: list[object] = []
    for v, (op, kind, size) in enumerate(
        zip(variables.op.tolist(), variables.kind.tolist(), variables.sizes.tolist(), strict=True)
    ):
        named = program.ops[op].type if op >= 0 else variables.kinds[kind]
        leaf = variables.name[v].rpartition(".")[2] if named == "parameter" else ""
        key = int(number[v]), named, leaf
        classes.append((pattern(names[number[v]]), named, leaf, seen[key], size))
        seen[key] += 1
    return classes


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
