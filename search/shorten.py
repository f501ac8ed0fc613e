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

from autoddl.search.problem import TENSOR, Edge, Problem
from autoddl.search.result import Assignment

LONGEST_PERIOD = 4  # so many different layers may take turns


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
    """`problem` lacks layers of the whole one.

    `place` says which of its nodes stands for each node of the whole one, `tensors` which of its
    edges stands for each edge: None where they differ.
    """

    problem: Problem
    place: tuple[int, ...]
    tensors: tuple[int | None, ...]

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
    edges = tuple(_edges(problem, places, runs, node_at, number))
    nodes = tuple(problem.nodes[i] for i in kept)
    shorter = replace(problem, nodes=nodes, edges=edges)
    return Shortened(
        shorter, tuple(number[node] for node in place), _tensors(problem, shorter, place)
    )


def unchanged(problem: Problem) -> Shortened:
    """Return the problem as it is."""
    return Shortened(problem, tuple(range(len(problem.nodes))), tuple(range(len(problem.edges))))


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


def _runs(
    problem: Problem, places: Mapping[int, _Place], kept: int
) -> dict[str, list[_Run]]:
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


def _run(
    layers: Mapping[int, Mapping[object, object]], start: int, period: int, kept: int
) -> _Run:
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
) -> Iterator[Edge]:
    """Yield the edges of the kept nodes; a reader that was left out is replaced across the gap."""
    for edge in problem.edges:
        if edge.producer not in number:
            continue
        readers = []
        for node, states in edge.readers:
            reader = node if node in number else _across(places, runs, node_at, edge.producer, node)
            if reader is not None and reader in number:
                readers.append((number[reader], states))
        if readers:
            yield replace(edge, producer=number[edge.producer], readers=tuple(readers))


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


def _tensors(
    problem: Problem, shorter: Problem, place: Sequence[int]
) -> tuple[int | None, ...]:
    """Return the edge of the shortened problem that stands for each edge of the whole one."""
    short = {edge.tensor: i for i, edge in enumerate(shorter.edges)}
    operands = [_operand(problem, edge) for edge in problem.edges]
    at = {(edge.producer, o): i for i, (edge, o) in enumerate(zip(problem.edges, operands, strict=True))}
    found: list[int | None] = []
    for edge, operand in zip(problem.edges, operands, strict=True):
        same = at.get((place[edge.producer], operand))
        number = None if same is None else short.get(problem.edges[same].tensor)
        alike = number is not None and _arrays(shorter.edges[number]) == _arrays(edge)
        found.append(number if alike else None)
    return tuple(found)


def _operand(problem: Problem, edge: Edge) -> str:
    """Return under which name the producer of a tensor has it."""
    node = problem.nodes[edge.producer]
    if node.kind != "op":
        return TENSOR
    return next(o for o, t in problem.program.op[node.name].operands if t == edge.tensor)


def _arrays(edge: Edge) -> tuple[int, ...]:
    return id(edge.table), id(edge.source), *(id(states) for _, states in edge.readers)
