"""A problem with fewer of its repeated layers: what is true of one of them is true of all.

Of a run of equal layers (24 blocks of a transformer, or 12 pairs of a block with experts and one
without) a few at either end remain; the edges between layers close the gap. What holds for the last
one before the gap then stands for all that were left out.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from autoddl.search.problem import KEPT, TENSOR, Edge, Problem
from autoddl.search.result import Assignment
from autoddl.search.terms import Fold

_PERIODS = range(1, 5)  # so many different layers may take turns

Ends = tuple[tuple[tuple[int, int] | None, ...], ...]


class _Place(NamedTuple):
    """Where a node is: in `layer` of those under `prefix`, under `name` inside that layer."""

    prefix: str
    layer: int
    name: tuple[object, ...]


@dataclass(frozen=True)
class _Run:
    """Equal layers: `count` periods of `period` layers from `start` on.

    Of the periods the first `head` remain and the last `tail`.
    """

    start: int
    period: int
    count: int
    head: int
    tail: int

    @cached_property
    def dropped(self) -> range:
        """Return the layers that are left out."""
        end = max(self.head, self.count - self.tail)
        return range(self.start + self.head * self.period, self.start + end * self.period)

    def stand_in(self, index: int) -> int:
        """Return the layer of the last period before the gap that stands for a dropped one."""
        return self.start + (self.head - 1) * self.period + (index - self.start) % self.period


@dataclass(frozen=True, eq=False)
class Shortened:
    """`problem` lacks layers of the whole one; `place` says which of its nodes each whole one takes.

    `nodes` and `tensors` are the nodes and edges of the whole one that its own are.
    `ends` has for every edge of the whole problem, for the producer and each reader, at which edge of
    `problem` and at which position there the node that stands for it has the same tensor; None where
    it has none. `folds` tells that each edge is made of such ends: their edges have its prices and
    readers. Otherwise layers hang together in other ways than by pairs of neighbours.
    """

    problem: Problem
    place: tuple[int, ...]
    nodes: tuple[int, ...]
    tensors: tuple[int, ...]
    ends: Ends
    folds: bool

    def edges(self) -> tuple[tuple[int, ...], ...]:
        """Return for every edge of the whole problem the edges that its ends are from, if it folds."""
        return tuple(tuple(end[0] for end in ends if end is not None) for ends in self.ends)

    def fold(self) -> Fold:
        """Return how often its nodes and edges occur in the whole problem, if it folds."""
        return Fold(np.bincount(self.place), Counter(self.edges()))

    def extended(self, assignment: Sequence[int]) -> Assignment:
        """Return the assignment of the whole problem; left-out layers are like their stand-in."""
        return tuple(assignment[i] for i in self.place)


def shorten(problem: Problem, head: int = 2, tail: int = 1) -> Shortened:
    """Return the problem without the layers that are equal to others, itself if there are none.

    Of each run the first `head` periods (at least 1) and the last `tail` (at least 1) remain.
    """
    key = "shortened", head, tail
    if key not in problem.notes:
        problem.notes[key] = _shortened(problem, head, tail)
    found: Shortened = problem.notes[key]
    return found


def _shortened(problem: Problem, head: int, tail: int) -> Shortened:
    layers = _layers(problem)
    runs = _runs(layers.looks, head, tail)
    left_out = {p: frozenset(i for r in found for i in r.dropped) for p, found in runs.items()}
    dropped = [i for i, place in layers.places.items() if place.layer in left_out[place.prefix]]
    if not dropped:
        return unchanged(problem)
    gone = set(dropped)
    kept = [i for i in range(len(problem.nodes)) if i not in gone]
    number = {node: i for i, node in enumerate(kept)}
    place = list(range(len(problem.nodes)))
    for node in dropped:
        prefix, index, name = layers.places[node]
        run = next(r for r in runs[prefix] if index in r.dropped)
        place[node] = layers.node_at[_Place(prefix, run.stand_in(index), name)]
    found = list(_edges(problem, _Gap(layers, runs, number)))
    nodes = tuple([problem.nodes[i] for i in kept])
    shorter = replace(problem, nodes=nodes, edges=tuple([edge for _, edge, _ in found]))
    short_place = tuple([number[node] for node in place])
    ends = _ends(problem, layers.operands, shorter, [names for _, _, names in found], short_place)
    tensors = tuple([index for index, _, _ in found])
    folds = _alike(problem, shorter, ends)
    return Shortened(shorter, short_place, tuple(kept), tensors, ends, folds)


def unchanged(problem: Problem) -> Shortened:
    """Return the problem as it is."""
    ends = tuple(
        tuple((index, position) for position in range(len(edge.readers) + 1))
        for index, edge in enumerate(problem.edges)
    )
    nodes, tensors = (tuple(range(len(items))) for items in (problem.nodes, problem.edges))
    return Shortened(problem, nodes, nodes, tensors, ends, folds=True)


@dataclass(frozen=True, eq=False)
class _Layers:
    """Where the nodes of a problem are, and what its layers look like; see _places, _looks, _operands."""

    places: Mapping[int, _Place]
    node_at: Mapping[_Place, int]
    looks: Mapping[str, Mapping[int, int]]
    operands: Sequence[tuple[str, ...]]


def _layers(problem: Problem) -> _Layers:
    """Return what is the same for all ways to shorten a problem."""
    if "layers" not in problem.notes:
        places = _places(problem)
        node_at = {place: i for i, place in places.items()}
        looks = _looks(problem, places)
        problem.notes["layers"] = _Layers(places, node_at, looks, _operands(problem))
    found: _Layers = problem.notes["layers"]
    return found


def _places(problem: Problem) -> dict[int, _Place]:
    """Return where each node is that belongs to a numbered module; its name there is unique."""
    program = problem.program
    found = {}
    seen: dict[object, int] = defaultdict(int)
    for index, node in enumerate(problem.nodes):
        if node.kind == "op":
            op = program.op[node.name]
            path, kind = op.module, (op.phase, op.type)
        elif node.kind == "parameter":
            path, kind = node.name, (node.kind, "")
        elif node.kind == KEPT:
            maker = program.producer.get(node.name)
            path = node.name if maker is None else maker.module
            kind = node.kind, "" if maker is None else maker.type
        else:
            continue
        parts = _numbered(path)
        if parts is not None:
            key = path, kind
            seen[key] += 1
            found[index] = _Place(parts[0], parts[1], (parts[2], kind, seen[key]))
    return found


@lru_cache(maxsize=1 << 14)
def _numbered(path: str) -> tuple[str, int, str] | None:
    """Return what stands before the first number in a module's path, that number, and the rest."""
    match = re.match(r"(?:(.*?)\.)?(\d+)(?:\.(.*))?$", path)
    return None if match is None else (match[1] or "", int(match[2]), match[3] or "")


def _looks(problem: Problem, places: Mapping[int, _Place]) -> dict[str, dict[int, int]]:
    """Return by prefix and index what a layer looks like: equal numbers for equal nodes."""
    layers: dict[str, dict[int, set[object]]] = defaultdict(lambda: defaultdict(set))
    known: dict[object, object] = {}
    for node, (prefix, index, name) in places.items():
        layers[prefix][index].add((name, _look(problem, node, known)))
    numbers: dict[object, int] = {}
    return {
        prefix: {i: numbers.setdefault(frozenset(v), len(numbers)) for i, v in found.items()}
        for prefix, found in layers.items()
    }


def _look(problem: Problem, node: int, known: dict[object, object]) -> object:
    """Return what equal nodes of different layers have in common: choices and their costs."""
    found = problem.nodes[node]
    ids = id(found.choices), id(found.compute_s)  # equal ops share them
    if found.kind == "op":
        return ids
    key = *ids, id(found.memory_bytes)
    if key not in known:
        states = tuple([choice[TENSOR] for choice in found.choices])
        known[key] = states, found.compute_s.tobytes(), found.memory_bytes.tobytes()
    return known[key]


def _runs(looks: Mapping[str, Mapping[int, int]], head: int, tail: int) -> dict[str, list[_Run]]:
    """Return the runs of equal layers that are long enough to be shortened, by prefix."""
    found: dict[str, list[_Run]] = {}
    for prefix, layers in looks.items():
        found[prefix] = []
        index = min(layers)
        while index <= max(layers):
            runs = [_run(layers, index, period, head, tail) for period in _PERIODS]
            best = max(runs, key=lambda r: len(r.dropped))
            if best.dropped:
                found[prefix].append(best)
            index += best.count * best.period if best.dropped else 1
    return found


def _run(layers: Mapping[int, int], start: int, period: int, head: int, tail: int) -> _Run:
    stop = start + period
    while stop in layers and layers[stop] == layers.get(stop - period):
        stop += 1
    return _Run(start, period, (stop - start) // period, head, tail)


@dataclass(frozen=True, eq=False)
class _Gap:
    """The layers that are left out: runs by prefix, and the `number` that each kept node gets."""

    layers: _Layers
    runs: Mapping[str, Sequence[_Run]]
    number: Mapping[int, int]

    def reader(self, producer: int, reader: int) -> int | None:
        """Return the number of the node that reads what `producer` makes, across the gap."""
        if reader in self.number:
            return self.number[reader]
        other = self._across(producer, reader)
        return None if other is None else self.number.get(other)

    def _across(self, producer: int, reader: int) -> int | None:
        """Return which node reads instead of one left out: as far behind the gap, or before it."""
        there, here = self.layers.places[reader], self.layers.places.get(producer)
        if here is None or here.prefix != there.prefix:
            return None
        run = next(r for r in self.runs[there.prefix] if there.layer in r.dropped)
        gap = len(run.dropped) if here.layer < there.layer else -len(run.dropped)
        moved = there.layer + gap
        if moved in run.dropped:
            return None
        return self.layers.node_at.get(there._replace(layer=moved))


def _edges(problem: Problem, gap: _Gap) -> Iterator[tuple[int, Edge, tuple[str, ...]]]:
    """Yield the edges of the kept nodes with their old numbers and the operands at their ends.

    A reader that was left out is replaced across the gap.
    """
    for index, edge in enumerate(problem.edges):
        producer = gap.number.get(edge.producer)
        if producer is None:
            continue
        produced, *read = gap.layers.operands[index]
        readers, names = [], [produced]
        for (node, states), name in zip(edge.readers, read, strict=True):
            reader = gap.reader(edge.producer, node)
            if reader is not None:
                readers.append((reader, states))
                names.append(name)
        if readers:
            shorter = replace(edge, producer=producer, readers=tuple(readers))
            yield index, shorter, tuple(names)


def _operands(problem: Problem) -> list[tuple[str, ...]]:
    """Return for every edge under which names its ends have the tensor."""
    held = ((TENSOR, ""),)  # what inputs, outputs and parameters call it
    op = problem.program.op
    operands = [op[n.name].operands if n.kind == "op" else held for n in problem.nodes]

    def called(node: int, tensor: str) -> list[str]:
        return [name for name, held in operands[node] if held == tensor] or [TENSOR]

    found = []
    for edge in problem.edges:
        names = [called(edge.producer, edge.tensor)[0]]
        seen: dict[int, int] = {}
        for node, _ in edge.readers:
            read = called(node, edge.tensor)
            count = seen[node] = seen.get(node, -1) + 1
            names.append("read " + read[min(count, len(read) - 1)])
        found.append(tuple(names))
    return found


def _ends(
    problem: Problem,
    operands: Sequence[tuple[str, ...]],
    shorter: Problem,
    short_operands: Sequence[tuple[str, ...]],
    place: Sequence[int],
) -> Ends:
    """Return at which edges the ends of each edge have those that stand for them; see Shortened."""
    at: list[dict[str, tuple[int, int]]] = [{} for _ in shorter.nodes]
    for index, (edge, names) in enumerate(zip(shorter.edges, short_operands, strict=True)):
        at[edge.producer][names[0]] = index, 0
        for position, (node, _) in enumerate(edge.readers, 1):
            at[node][names[position]] = index, position
    found = []
    for edge, names in zip(problem.edges, operands, strict=True):
        ends = [at[place[edge.producer]].get(names[0])]
        for (node, _), name in zip(edge.readers, names[1:], strict=True):
            ends.append(at[place[node]].get(name))
        found.append(tuple(ends))
    return tuple(found)


def _alike(problem: Problem, shorter: Problem, ends: Ends) -> bool:
    """Tell whether the edges that stand for each edge have its prices, states and number of readers."""
    short = [(e.table, e.source, *(states for _, states in e.readers)) for e in shorter.edges]
    for edge, here in zip(problem.edges, ends, strict=True):
        mine = edge.table, edge.source, *[states for _, states in edge.readers]
        for position, end in enumerate(here):
            if end is None or end[1] != position:
                return False
            other = short[end[0]]
            if (
                other[0] is not mine[0]
                or len(other) != len(mine)
                or other[position + 1] is not mine[position + 1]
            ):
                return False
    return True
