"""Cells: a contraction (matmul, convolution, embedding) with the ops around it that follow it.

Each cell gives one compound move: its root takes a signature and everything else in the cell takes
what is cheapest next to it. Cells that repeat (the layers of a deep model) also move together.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from dataclasses import dataclass

import numpy as np

from autoddl.sbp.rules.registry import find
from autoddl.search.moves import Move, neighbours
from autoddl.search.problem import Edge, Floats, Ints, Problem

ROOT_FAMILIES = ("matmul", "conv", "embedding")


@dataclass(frozen=True)
class Cells:
    """The moves over cells: `single` one cell each, `tied` all cells of the same kind at once."""

    single: tuple[Move, ...]
    tied: tuple[Move, ...]


def roots(problem: Problem, phase: str = "forward") -> list[int]:
    """Return the nodes of the contractions of one phase."""
    program, ops = problem.program.columns, problem.ops
    rules = [find(name) for name in program.types]
    families = [rule is not None and rule.family in ROOT_FAMILIES for rule in rules]
    types = np.array(families, dtype=np.bool_)
    nodes = np.flatnonzero(ops >= 0)
    op = ops[nodes]
    found: list[int] = nodes[types[program.type[op]] & (program.phase[op] == phase)].tolist()
    return found


def build(problem: Problem) -> Cells:
    """Return the cells of a problem and their moves."""
    members = _members(problem)
    classes = _classes(problem)
    shared: dict[object, tuple[Ints, ...]] = {}
    single: list[Move] = []
    groups: dict[object, list[Move]] = defaultdict(list)
    for root, cell in members.items():
        key = tuple(classes[node] for node in cell)
        if key not in shared:
            shared[key] = _columns(problem, cell)
        move = Move(tuple(zip(cell, shared[key], strict=True)))
        single.append(move)
        groups[classes[root], move.size].append(move)
    tied = [
        Move(tuple(pair for move in group for pair in move.columns)) for group in groups.values()
    ]
    return Cells(tuple(single), tuple(tied))


def _members(problem: Problem) -> dict[int, list[int]]:
    """Give every node that a root reaches to its nearest root; lists are in breadth-first order."""
    sources = roots(problem)
    owner = {root: root for root in sources}
    queue = deque(sources)
    for root, nodes in _same_module(problem, sources).items():
        for node in nodes:
            owner[node] = root
            queue.append(node)
    while queue:
        node = queue.popleft()
        for neighbour in neighbours(problem, node):
            if neighbour not in owner:
                owner[neighbour] = owner[node]
                queue.append(neighbour)
    cells: dict[int, list[int]] = {root: [] for root in sources}
    for root in sources:
        seen, queue = {root}, deque([root])
        while queue:
            node = queue.popleft()
            cells[root].append(node)
            for neighbour in neighbours(problem, node):
                if neighbour not in seen and owner[neighbour] == root:
                    seen.add(neighbour)
                    queue.append(neighbour)
    return cells


def _same_module(problem: Problem, sources: list[int]) -> dict[int, list[int]]:
    """Return the nodes of every module that has exactly one root, by root."""
    by_module: dict[str, list[int]] = defaultdict(list)
    for index, module in enumerate(_modules(problem)):
        by_module[module].append(index)
    found = {}
    for module, nodes in by_module.items():
        inside = [root for root in sources if root in set(nodes)]
        if module and len(inside) == 1:
            found[inside[0]] = [node for node in nodes if node != inside[0]]
    return found


def _classes(problem: Problem) -> list[object]:
    """Name every node up to the number of its layer, so that repeated layers get equal names."""
    seen: dict[object, int] = defaultdict(int)
    classes: list[object] = []
    for node, module in zip(problem.nodes, _modules(problem), strict=True):
        kind = problem.program.op[node.name].type if node.kind == "op" else node.kind
        leaf = node.name.rpartition(".")[2] if node.kind == "parameter" else ""
        occurrence = seen[module, kind, leaf]
        seen[module, kind, leaf] += 1
        neutral = re.sub(r"\d+", "*", module)
        classes.append((neutral, kind, leaf, occurrence, len(node.choices)))
    return classes


def _columns(problem: Problem, cell: list[int]) -> tuple[Ints, ...]:
    """Return one column per node: for each choice of the root, what the node takes next to it."""
    labels = len(problem.nodes[cell[0]].choices)
    columns: dict[int, Ints] = {cell[0]: np.arange(labels)}
    for node in cell[1:]:
        cost = np.tile(problem.nodes[node].compute_s, (labels, 1))
        for index in problem.touching[node]:
            cost += _attachment(problem.edges[index], node, columns, labels)
        columns[node] = cost.argmin(axis=1)
    return tuple(columns[node] for node in cell)


def _attachment(edge: Edge, node: int, columns: dict[int, Ints], labels: int) -> Floats:
    """Price every choice of `node` against the nodes of the edge that have a column already."""
    table = edge.table.cost
    source = edge.source[columns[edge.producer]] if edge.producer in columns else None
    others = [states[columns[n]] for n, states in edge.readers if n in columns]
    total = np.zeros((labels, 1))
    if edge.producer == node:
        for states in others:
            total = total + table[edge.source[None, :], states[:, None]]
    for reader, states in edge.readers:
        if reader != node:
            continue
        if source is not None:
            total = total + table[source[:, None], states[None, :]]
        elif others:  # the producer is not known yet: want what a sibling wants
            total = total + table[others[0][:, None], states[None, :]]
    return total


def _modules(problem: Problem) -> list[str]:
    """Return the module of every node."""
    number, names = problem.modules
    return [names[n] for n in number.tolist()]
