"""A problem with fewer of its repeated layers: what is true of one of them is true of all.

Of a run of equal layers (24 blocks of a transformer, or 12 pairs of a block with experts and one
without) a few at either end remain; the edges between layers close the gap. What holds for the last
one before the gap then stands for all that were left out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from autoddl.sbp.program import PHASES
from autoddl.search.columns import EdgeColumns, Edges, Form, NodeColumns, Nodes, ints
from autoddl.search.ends import Ends, alike, standing_for
from autoddl.search.problem import KEPT, TENSOR, Ints, Problem
from autoddl.search.result import Assignment
from autoddl.search.terms import Fold

_PERIODS = range(1, 5)  # so many different layers may take turns
# What stands before a number in a module's path, that number, and the rest; paths without one have none.
_NUMBERED = re.compile(r"(?:(.*?)\.)?(\d+)(?:\.(.*))?$")
_NOWHERE = "", "-1", ""


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
    `problem` and at which position there the node that stands for it has the same tensor. `folds`
    tells that each edge is made of such ends: their edges have its prices and readers. Otherwise
    layers hang together in other ways than by pairs of neighbours.
    """

    problem: Problem
    place: tuple[int, ...]
    nodes: tuple[int, ...]
    tensors: tuple[int, ...]
    ends: Ends
    folds: bool

    def edges(self) -> Iterator[tuple[int, ...]]:
        """Yield for every edge of the whole problem the edges that its ends are from, if it folds."""
        edge, begin = self.ends.edge.tolist(), self.ends.begin.tolist()
        for first, last in pairwise(begin):
            yield tuple(edge[first:last])

    def fold(self) -> Fold:
        """Return how often its nodes and edges occur in the whole problem, if it folds."""
        edge, begin = self.ends.edge, self.ends.begin
        least, most = (of.reduceat(edge, begin[:-1]) for of in (np.minimum, np.maximum))
        which, mixed = least, dict[bytes, int]()  # ends that are not all from one edge are few
        for index in np.flatnonzero(least < most).tolist():
            ends = edge[begin[index] : begin[index + 1]].tobytes()
            which[index] = len(self.tensors) + mixed.setdefault(ends, len(mixed))
        _, first, counts = np.unique(which, return_index=True, return_counts=True)
        order = np.argsort(first)
        found = [tuple(edge[begin[i] : begin[i + 1]].tolist()) for i in first[order].tolist()]
        edges = dict(zip(found, counts[order].tolist(), strict=True))
        return Fold(np.bincount(self._places), edges)

    def extended(self, assignment: Sequence[int]) -> Assignment:
        """Return the assignment of the whole problem; left-out layers are like their stand-in."""
        return tuple(np.asarray(assignment)[self._places].tolist())

    @cached_property
    def _places(self) -> Ints:
        return np.array(self.place)


def shorten(problem: Problem, head: int = 2, tail: int = 1) -> Shortened:
    """Return the problem without the layers that are equal to others, itself if there are none.

    Of each run the first `head` periods (at least 1) and the last `tail` (at least 1) remain.
    """
    return problem.once(("shortened", head, tail), lambda: _shortened(problem, head, tail))


def _shortened(problem: Problem, head: int, tail: int) -> Shortened:
    layers = _layers(problem)
    gap = layers.gap(_runs(layers.looks, head, tail))
    kept = np.flatnonzero(gap.first < 0)
    if len(kept) == len(gap.first):
        return unchanged(problem)
    number = np.full(len(gap.first), -1)
    number[kept] = np.arange(len(kept))
    place, whole = number[gap.stand_in], problem.edge_columns
    edges, tensors = gap.edges(whole, number)
    nodes = problem.node_columns
    names = [nodes.name[i] for i in kept.tolist()]
    shorter = NodeColumns(nodes.kinds, nodes.kind[kept], names, nodes.forms, nodes.form[kept])
    ends = standing_for(whole, place, edges)
    return Shortened(
        replace(problem, nodes=Nodes(shorter), edges=Edges(edges)),
        tuple(place.tolist()),
        tuple(kept.tolist()),
        tuple(tensors.tolist()),
        ends,
        folds=alike(whole, ends, edges),
    )


def unchanged(problem: Problem) -> Shortened:
    """Return the problem as it is."""
    nodes, tensors = (tuple(range(len(items))) for items in (problem.nodes, problem.edges))
    ends = Ends.of_all(problem.edge_columns)
    return Shortened(problem, nodes, nodes, tensors, ends, folds=True)


@dataclass(frozen=True, eq=False)
class _Places:
    """Where the nodes of a problem are: in a `layer` of those under some `prefix`, which is a number.

    Inside its layer a node has a `name` of its own, a number as well; all are -1 for nodes that belong
    to no numbered module.
    """

    prefix: Ints
    layer: Ints
    name: Ints

    def code(self, prefix: Ints, layer: Ints, name: Ints) -> Ints:
        """Return one number for a place; they are sorted by prefix, layer, name."""
        layers, names = self.layer.max(initial=0) + 1, self.name.max(initial=0) + 1
        code: Ints = (prefix * layers + layer) * names + name
        return code

    @cached_property
    def sorted(self) -> tuple[Ints, Ints]:
        """Return the nodes that have a place in the order of their codes, and these."""
        nodes = np.flatnonzero(self.prefix >= 0)
        codes = self.code(self.prefix[nodes], self.layer[nodes], self.name[nodes])
        order = np.argsort(codes)
        return nodes[order], codes[order]

    def node_at(self, prefix: Ints, layer: Ints, name: Ints) -> Ints:
        """Return which nodes are at some places, -1 where there is none."""
        nodes, codes = self.sorted
        wanted = self.code(prefix, layer, name)
        found = np.minimum(np.searchsorted(codes, wanted), len(codes) - 1)
        there = (codes[found] == wanted) & (self.layer[nodes[found]] == layer)
        return np.asarray(np.where(there, nodes[found], -1))


@dataclass(frozen=True, eq=False)
class _Layers:
    """What is the same for all ways to shorten a problem; equal `looks` of layers mean equal ones."""

    places: _Places
    looks: Mapping[int, Mapping[int, int]]

    def gap(self, runs: Mapping[int, Sequence[_Run]]) -> _Gap:
        """Return which nodes are left out."""
        places = self.places
        stand_in = np.arange(len(places.prefix))
        first, last = np.full((2, len(stand_in)), -1)
        for prefix, mine in runs.items():
            for run in mine:
                begin, end = run.dropped[0], run.dropped[-1]
                nodes = np.flatnonzero(
                    (places.prefix == prefix) & (places.layer >= begin) & (places.layer <= end)
                )
                layer = np.array([run.stand_in(i) for i in run.dropped])
                layer = layer[places.layer[nodes] - begin]
                stand_in[nodes] = places.node_at(places.prefix[nodes], layer, places.name[nodes])
                first[nodes], last[nodes] = begin, end
        return _Gap(places, stand_in, first, last)


@dataclass(frozen=True, eq=False)
class _Gap:
    """What is left out: `first` and `last` are the first and last layer of a node's run that are.

    Both are -1 for nodes that remain; `stand_in` is the node that stands for each, or itself.
    """

    places: _Places
    stand_in: Ints
    first: Ints
    last: Ints

    def edges(self, whole: EdgeColumns, number: Ints) -> tuple[EdgeColumns, Ints]:
        """Return the edges of the nodes that have a `number`, and which of the whole ones they are.

        A reader that was left out is replaced across the gap.
        """
        at = Ends.of_all(whole)
        producer = whole.node[whole.begin[at.edge]]
        ends = np.flatnonzero(number[producer] >= 0)
        node = whole.node[ends]
        left_out = number[node] < 0
        node[left_out] = self._across(producer[ends[left_out]], node[left_out])
        node = np.where(node < 0, -1, number[node])
        ends, node = ends[node >= 0], node[node >= 0]
        read = np.bincount(at.edge[ends], minlength=len(whole.table)) > 1
        ends, node = ends[read[at.edge[ends]]], node[read[at.edge[ends]]]
        edges, counts = np.unique(at.edge[ends], return_counts=True)
        begin = np.concatenate(([0], counts.cumsum()))
        tensor = [whole.tensor[i] for i in edges.tolist()]
        found = whole._replace(
            tensor=tensor, table=whole.table[edges], begin=begin, node=node,
            states=whole.states[ends], operand=whole.operand[ends],
        )  # fmt: skip
        return found, edges

    def _across(self, producer: Ints, reader: Ints) -> Ints:
        """Return which nodes read instead of others: as far behind the gap, or before it; or -1."""
        places, first, last = self.places, self.first[reader], self.last[reader]
        prefix, layer, name = places.prefix[reader], places.layer[reader], places.name[reader]
        length = last - first + 1
        goal = layer + np.where(places.layer[producer] < layer, length, -length)
        there = (places.prefix[producer] == prefix) & ((goal < first) | (goal > last))
        return np.where(there, places.node_at(prefix, goal, name), -1)


def _layers(problem: Problem) -> _Layers:
    """Return what is the same for all ways to shorten a problem."""
    places = problem.once("places", lambda: _places(problem))
    return problem.once("layers", lambda: _Layers(places, _looks(problem, places)))


def _places(problem: Problem) -> _Places:
    """Return where each node is; of those with equal names the first, second, ... are told apart."""
    paths, path, sort = _modules(problem)
    found = list(map(_NUMBERED.match, paths))
    parts = [_NOWHERE if match is None else match.groups("") for match in found]
    prefixes, layers, rests = zip(*parts, strict=True)
    layer = np.array(list(map(int, layers)), dtype=np.int64)
    prefix, layer = np.where(layer < 0, -1, _equal(prefixes))[path], layer[path]
    sorts, rest = sort.max(initial=0) + 1, _equal(rests)[path]
    turn = _turns(path * sorts + sort)
    _, name = np.unique((rest * sorts + sort) * len(turn) + turn, return_inverse=True)
    return _Places(prefix, layer, np.where(prefix >= 0, name, -1))


def _equal(names: Sequence[str]) -> Ints:
    """Return equal numbers for equal names, in the order in which they first occur."""
    known = dict(zip(dict.fromkeys(names), range(len(names)), strict=False))
    return np.fromiter(map(known.__getitem__, names), np.int64, len(names))


def _modules(problem: Problem) -> tuple[Sequence[str], Ints, Ints]:
    """Return paths, by node the one of what it belongs to, and equal numbers for nodes of one sort.

    The path is "" for what belongs to nothing. The sort of an op is its type and phase.
    """
    nodes, program = problem.node_columns, problem.program.columns
    kept = nodes.where(KEPT)
    op = problem.ops.copy()
    op[kept] = program.maker[ints([program.number[nodes.name[node]] for node in kept.tolist()])]
    made = np.flatnonzero(op >= 0)
    paths = {name: number for number, name in enumerate(program.modules)}
    path, of_type, phase = np.zeros((3, len(op)), dtype=np.int64)
    path += paths.setdefault("", len(paths))
    path[made], of_type[made] = program.module[op[made]], 1 + program.type[op[made]]
    held = np.flatnonzero(nodes.of_kind("parameter", KEPT) & (op < 0))
    names = [nodes.name[node] for node in held.tolist()]
    path[held] = [paths.setdefault(name, len(paths)) for name in names]
    for number, name in enumerate(PHASES):
        phase[made[program.phase[op[made]] == name]] = number
    phase[kept] = 0
    sort = (nodes.kind * len(PHASES) + phase) * (len(program.types) + 1) + of_type
    return tuple(paths), path, sort


def _turns(keys: Ints) -> Ints:
    """Return of each key how many equal ones are before it."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    first = np.searchsorted(ordered, ordered)
    turns = np.empty_like(order)
    turns[order] = np.arange(len(order)) - first
    return turns


def _looks(problem: Problem, places: _Places) -> dict[int, dict[int, int]]:
    """Return by prefix and index what a layer looks like: equal numbers for equal nodes."""
    columns = problem.node_columns
    pair = 2 * columns.form + columns.of_kind("op")
    numbers: dict[object, int] = {}
    looks = np.zeros(2 * len(columns.forms), dtype=np.int64)
    for number in np.flatnonzero(np.bincount(pair)).tolist():
        look = _look(columns.forms[number // 2], number % 2 == 1)
        looks[number] = numbers.setdefault(look, len(numbers))
    nodes, _ = places.sorted
    rows = np.array([places.name[nodes], looks[pair[nodes]]]).T
    prefix, layer = places.prefix[nodes], places.layer[nodes]
    begins = np.flatnonzero(np.diff(prefix, prepend=-1) | np.diff(layer, prepend=-1))
    found: dict[int, dict[int, int]] = defaultdict(dict)
    equal: dict[bytes, int] = {}
    for first, last in pairwise([*begins.tolist(), len(nodes)]):
        look = rows[first:last].tobytes()
        found[int(prefix[first])][int(layer[first])] = equal.setdefault(look, len(equal))
    return found


def _look(form: Form, of_op: bool) -> object:
    """Return what equal nodes of different layers have in common: choices and their costs."""
    if of_op:
        return id(form.choices), id(form.compute_s)  # equal ops share them
    states = tuple([choice[TENSOR] for choice in form.choices])
    return states, form.compute_s.tobytes(), form.memory_bytes.tobytes()


def _runs(looks: Mapping[int, Mapping[int, int]], head: int, tail: int) -> dict[int, list[_Run]]:
    """Return the runs of equal layers that are long enough to be shortened, by prefix."""
    found: dict[int, list[_Run]] = {}
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
