"""A problem with fewer of its repeated layers: what is true of one of them is true of all.

Of a run of equal layers (24 blocks of a transformer, or 12 pairs of a block with experts and one
without) the first few and the last remain; the edges between layers close the gap. What holds for
the last but one that remains then stands for all that were left out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autoddl.search.problem import TENSOR, Edge, Ints, Problem
from autoddl.search.result import Assignment

LONGEST_PERIOD = 4  # so many different layers may take turns

Ends = tuple[tuple[tuple[int, int] | None, ...], ...]


@dataclass(frozen=True)
class _Place:
    """Where a node is: in layer `index` of those under `prefix`, under `name` inside that layer."""

    prefix: str
    index: int
    name: tuple[object, ...]


@dataclass(frozen=True)
class _Run:
    """Equal layers: `count` periods of `period` layers from `start` on, of which `kept` remain."""

    start: int
    period: int
    count: int
    kept: int

    @property
    def dropped(self) -> range:
        """Return the layers that are left out: those before the last period."""
        return range(
            self.start + (self.kept - 1) * self.period, self.start + (self.count - 1) * self.period
        )

    def stand_in(self, index: int) -> int:
        """Return the layer of the last but one kept period that stands for a dropped one."""
        return self.start + (self.kept - 2) * self.period + (index - self.start) % self.period


@dataclass(frozen=True, eq=False)
class Shortened:
    """`problem` lacks layers of the whole one; `place` says which of its nodes each whole one takes.

    `ends` has for every edge of the whole problem, for the producer and each reader, at which edge of
    `problem` and at which position there the node that stands for it has the same tensor; None where
    it has none. `folds` tells that each edge is made of such ends: their edges have its prices and
    readers. Otherwise layers hang together in other ways than by pairs of neighbours.
    """

    problem: Problem
    place: tuple[int, ...]
    ends: Ends
    folds: bool

    def edges(self) -> tuple[tuple[int, ...], ...]:
        """Return for every edge of the whole problem the edges that its ends are from, if it folds."""
        return tuple(tuple(end[0] for end in ends if end is not None) for ends in self.ends)

    def extended(self, assignment: Sequence[int]) -> Assignment:
        """Return the assignment of the whole problem; left-out layers are like their stand-in."""
        return tuple(assignment[i] for i in self.place)


def shorten(problem: Problem, kept_periods: int = 3) -> Shortened:
    """Return the problem without the layers that are equal to others, itself if there are none.

    Of each run the first `kept_periods` − 1 periods (at least 1) and the last remain.
    """
    places = _places(problem)
    runs = _runs(problem, places, kept_periods)
    node_at = {place: i for i, place in places.items()}
    dropped = {
        i
        for i, place in places.items()
        if any(place.index in r.dropped for r in runs[place.prefix])
    }
    if not dropped:
        return unchanged(problem)
    kept = [i for i in range(len(problem.nodes)) if i not in dropped]
    number = {node: i for i, node in enumerate(kept)}
    place = []
    for node in range(len(problem.nodes)):
        if node in dropped:
            left = places[node]
            run = next(r for r in runs[left.prefix] if left.index in r.dropped)
            node = node_at[replace(left, index=run.stand_in(left.index))]
        place.append(node)
    operands = _operands(problem)
    pairs = list(_edges(problem, places, runs, node_at, number, operands))
    nodes = tuple(problem.nodes[i] for i in kept)
    shorter = replace(problem, nodes=nodes, edges=tuple(edge for edge, _ in pairs))
    short_place = tuple(number[node] for node in place)
    ends = _ends(problem, operands, shorter, [names for _, names in pairs], short_place)
    folds = all(_alike(edge, shorter, e) for edge, e in zip(problem.edges, ends, strict=True))
    return Shortened(shorter, short_place, ends, folds)


def unchanged(problem: Problem) -> Shortened:
    """Return the problem as it is."""
    ends = tuple(
        tuple((index, position) for position in range(len(edge.readers) + 1))
        for index, edge in enumerate(problem.edges)
    )
    return Shortened(problem, tuple(range(len(problem.nodes))), ends, folds=True)


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
        else:
            continue
        match = re.match(r"(?:(.*?)\.)?(\d+)(?:\.(.*))?$", path)
        if match is not None:
            prefix, layer, rest = match[1] or "", int(match[2]), match[3] or ""
            seen[prefix, layer, rest, kind] += 1
            name = (rest, kind, seen[prefix, layer, rest, kind])
            found[index] = _Place(prefix, layer, name)
    return found


def _runs(problem: Problem, places: Mapping[int, _Place], kept: int) -> dict[str, list[_Run]]:
    """Return the runs of equal layers that are long enough to be shortened, by prefix."""
    looks: dict[str, dict[int, dict[object, object]]] = defaultdict(lambda: defaultdict(dict))
    for node, place in places.items():
        looks[place.prefix][place.index][place.name] = _look(problem, node)
    found: dict[str, list[_Run]] = {}
    for prefix, layers in looks.items():
        found[prefix] = []
        index = min(layers)
        while index <= max(layers):
            runs = [_run(layers, index, period, kept) for period in range(1, LONGEST_PERIOD + 1)]
            best = max(runs, key=lambda r: len(r.dropped))
            if best.dropped:
                found[prefix].append(best)
            index += best.count * best.period if best.dropped else 1
    return found


def _look(problem: Problem, node: int) -> object:
    """Return what equal nodes of different layers have in common: choices and their costs."""
    found = problem.nodes[node]
    if found.kind == "op":
        return id(found.choices), id(found.compute_s)  # equal ops share them
    states = tuple(choice[TENSOR] for choice in found.choices)
    return states, found.compute_s.tobytes(), found.memory_bytes.tobytes()


def _run(layers: Mapping[int, Mapping[object, object]], start: int, period: int, kept: int) -> _Run:
    stop = start + period
    while stop in layers and layers[stop] == layers.get(stop - period):
        stop += 1
    return _Run(start, period, (stop - start) // period, kept)


def _edges(
    problem: Problem,
    places: Mapping[int, _Place],
    runs: Mapping[str, Sequence[_Run]],
    node_at: Mapping[_Place, int],
    number: Mapping[int, int],
    operands: Sequence[tuple[str, ...]],
) -> Iterator[tuple[Edge, tuple[str, ...]]]:
    """Yield the edges of the kept nodes with the operands at their ends.

    A reader that was left out is replaced across the gap.
    """
    for edge, (produced, *read) in zip(problem.edges, operands, strict=True):
        if edge.producer not in number:
            continue
        readers, names = [], [produced]
        for (node, states), name in zip(edge.readers, read, strict=True):
            reader = node if node in number else _across(places, runs, node_at, edge.producer, node)
            if reader is not None and reader in number:
                readers.append((number[reader], states))
                names.append(name)
        if readers:
            yield (
                replace(edge, producer=number[edge.producer], readers=tuple(readers)),
                tuple(names),
            )


def _across(
    places: Mapping[int, _Place],
    runs: Mapping[str, Sequence[_Run]],
    node_at: Mapping[_Place, int],
    producer: int,
    reader: int,
) -> int | None:
    """Return which node reads instead of one that was left out: as far behind the gap, or before it."""
    there, here = places[reader], places.get(producer)
    if here is None or here.prefix != there.prefix:
        return None
    run = next(r for r in runs[there.prefix] if there.index in r.dropped)
    gap = len(run.dropped) if here.index < there.index else -len(run.dropped)
    moved = there.index + gap
    return None if moved in run.dropped else node_at.get(replace(there, index=moved))


def _operands(problem: Problem) -> list[tuple[str, ...]]:
    """Return for every edge under which names its ends have the tensor."""
    found = []
    for edge in problem.edges:
        names = [_names(problem, edge.producer, edge.tensor)[0]]
        seen: dict[int, int] = defaultdict(int)
        for node, _ in edge.readers:
            read = _names(problem, node, edge.tensor)
            names.append(f"read {read[min(seen[node], len(read) - 1)]}")
            seen[node] += 1
        found.append(tuple(names))
    return found


def _names(problem: Problem, node: int, tensor: str) -> list[str]:
    here = problem.nodes[node]
    if here.kind != "op":
        return [TENSOR]
    return [operand for operand, name in problem.program.op[here.name].operands if name == tensor]


def _ends(
    problem: Problem,
    operands: Sequence[tuple[str, ...]],
    shorter: Problem,
    short_operands: Sequence[tuple[str, ...]],
    place: Sequence[int],
) -> Ends:
    """Return at which edges the ends of each edge have those that stand for them; see Shortened."""
    at: dict[tuple[int, str], tuple[int, int]] = {}
    for index, (edge, names) in enumerate(zip(shorter.edges, short_operands, strict=True)):
        nodes = (edge.producer, *(n for n, _ in edge.readers))
        for position, (node, name) in enumerate(zip(nodes, names, strict=True)):
            at[node, name] = index, position
    found = []
    for edge, names in zip(problem.edges, operands, strict=True):
        nodes = (edge.producer, *(n for n, _ in edge.readers))
        found.append(
            tuple([at.get((place[n], name)) for n, name in zip(nodes, names, strict=True)])
        )
    return tuple(found)


def _alike(edge: Edge, shorter: Problem, ends: Sequence[tuple[int, int] | None]) -> bool:
    """Tell whether the edges that stand for an edge have its prices, states and number of readers."""
    for position, end in enumerate(ends):
        if end is None or end[1] != position:
            return False
        short = shorter.edges[end[0]]
        if (
            short.table is not edge.table
            or len(short.readers) != len(edge.readers)
            or _arrays(short)[position] is not _arrays(edge)[position]
        ):
            return False
    return True


def _arrays(edge: Edge) -> list[Ints]:
    return [edge.source, *(states for _, states in edge.readers)]
