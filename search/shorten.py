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
from itertools import pairwise

import numpy as np

from autoddl.search.ends import Columns, Ends, alike, standing_for
from autoddl.search.problem import KEPT, TENSOR, Edge, Ints, Node, Problem
from autoddl.search.result import Assignment
from autoddl.search.terms import Fold

_PERIODS = range(1, 5)  # so many different layers may take turns


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
        return Fold(np.bincount(self.place), Counter(self.edges()))

    def extended(self, assignment: Sequence[int]) -> Assignment:
        """Return the assignment of the whole problem; left-out layers are like their stand-in."""
        return tuple([assignment[i] for i in self.place])


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
    place = layers.stand_ins(runs)
    kept = np.flatnonzero(place == np.arange(len(place)))
    if len(kept) == len(place):
        return unchanged(problem)
    number = np.full(len(place), -1)
    number[kept] = np.arange(len(kept))
    whole = layers.columns
    found = list(_Gap(layers, runs, number).edges(problem))
    nodes = tuple([problem.nodes[i] for i in kept.tolist()])
    shorter = replace(problem, nodes=nodes, edges=tuple([edge for edge, _ in found]))
    short = Columns(shorter, whole.names)
    origin = np.array([end for _, here in found for end in here], dtype=np.int64)
    ends = standing_for(whole, number[place], short)
    return Shortened(
        shorter,
        tuple(number[place].tolist()),
        tuple(kept.tolist()),
        tuple(whole.edge[origin[short.position == 0]].tolist()),
        ends,
        folds=alike(whole, ends, short, origin),
    )


def unchanged(problem: Problem) -> Shortened:
    """Return the problem as it is."""
    columns = Columns(problem)
    nodes, tensors = (tuple(range(len(items))) for items in (problem.nodes, problem.edges))
    ends = Ends(columns.begin, columns.edge, columns.position)
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
        return np.asarray(np.where(codes[found] == wanted, nodes[found], -1))


@dataclass(frozen=True, eq=False)
class _Layers:
    """What is the same for all ways to shorten a problem; equal `looks` of layers mean equal ones."""

    places: _Places
    looks: Mapping[int, Mapping[int, int]]
    columns: Columns

    def stand_ins(self, runs: Mapping[int, Sequence[_Run]]) -> Ints:
        """Return for every node the one that stands for it: itself if its layer remains."""
        places = self.places
        found = np.arange(len(places.prefix))
        for prefix, mine in runs.items():
            for run in mine:
                dropped = np.array(run.dropped)
                stand_in = np.array([run.stand_in(i) for i in run.dropped])
                nodes = np.flatnonzero(
                    (places.prefix == prefix)
                    & (places.layer >= dropped[0])
                    & (places.layer <= dropped[-1])
                )
                layer = stand_in[places.layer[nodes] - dropped[0]]
                found[nodes] = places.node_at(places.prefix[nodes], layer, places.name[nodes])
        return found


def _layers(problem: Problem) -> _Layers:
    """Return what is the same for all ways to shorten a problem."""
    if "layers" not in problem.notes:
        places = _places(problem)
        problem.notes["layers"] = _Layers(places, _looks(problem, places), Columns(problem))
    found: _Layers = problem.notes["layers"]
    return found


def _places(problem: Problem) -> _Places:
    """Return where each node is; of those with equal names the first, second, ... are told apart."""
    paths: dict[str, int] = {}
    kinds: dict[tuple[str, str], int] = {}
    path_of, kind_of = [], []
    for node in problem.nodes:
        path, kind = _module(problem, node)
        path_of.append(paths.setdefault(path, len(paths)))
        kind_of.append(kinds.setdefault(kind, len(kinds)))
    prefixes: dict[str, int] = {}
    rests: dict[str, int] = {}
    parts = []
    for path in paths:
        found = _numbered(path)
        if found is None:
            parts.append((-1, -1, -1))
        else:
            prefix_of, index, rest_of = found
            numbers = (
                prefixes.setdefault(prefix_of, len(prefixes)),
                rests.setdefault(rest_of, len(rests)),
            )
            parts.append((numbers[0], index, numbers[1]))
    paths_, kinds_ = np.array(path_of), np.array(kind_of)
    prefix, layer, rest = np.array(parts, dtype=np.int64).reshape(-1, 3)[paths_].T
    turn = _turns(paths_ * len(kinds) + kinds_)
    _, name = np.unique((rest * len(kinds) + kinds_) * len(turn) + turn, return_inverse=True)
    return _Places(prefix, layer, np.where(prefix >= 0, name, -1))


def _module(problem: Problem, node: Node) -> tuple[str, tuple[str, str]]:
    """Return the path of what a node belongs to, "" if that is nothing, and what kind of node it is."""
    if node.kind == "op":
        op = problem.program.op[node.name]
        return op.module, (op.phase, op.type)
    if node.kind == "parameter":
        return node.name, (node.kind, "")
    if node.kind != KEPT:
        return "", ("", "")
    maker = problem.program.producer.get(node.name)
    return (node.name, (KEPT, "")) if maker is None else (maker.module, (KEPT, maker.type))


def _turns(keys: Ints) -> Ints:
    """Return of each key how many equal ones are before it."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    first = np.searchsorted(ordered, ordered)
    turns = np.empty_like(order)
    turns[order] = np.arange(len(order)) - first
    return turns


@lru_cache(maxsize=1 << 14)
def _numbered(path: str) -> tuple[str, int, str] | None:
    """Return what stands before the first number in a module's path, that number, and the rest."""
    match = re.match(r"(?:(.*?)\.)?(\d+)(?:\.(.*))?$", path)
    return None if match is None else (match[1] or "", int(match[2]), match[3] or "")


def _looks(problem: Problem, places: _Places) -> dict[int, dict[int, int]]:
    """Return by prefix and index what a layer looks like: equal numbers for equal nodes."""
    known: dict[object, object] = {}
    numbers: dict[object, int] = {}
    looks = []
    for node in problem.nodes:
        look = _look(node, known)
        looks.append(numbers.setdefault(look, len(numbers)))
    nodes, _ = places.sorted
    rows = np.array([places.name[nodes], np.array(looks, dtype=np.int64)[nodes]]).T
    prefix, layer = places.prefix[nodes], places.layer[nodes]
    begins = np.flatnonzero(np.diff(prefix, prepend=-1) | np.diff(layer, prepend=-1))
    found: dict[int, dict[int, int]] = defaultdict(dict)
    equal: dict[bytes, int] = {}
    for first, last in pairwise([*begins.tolist(), len(nodes)]):
        look = rows[first:last].tobytes()
        found[int(prefix[first])][int(layer[first])] = equal.setdefault(look, len(equal))
    return found


def _look(node: Node, known: dict[object, object]) -> object:
    """Return what equal nodes of different layers have in common: choices and their costs."""
    ids = id(node.choices), id(node.compute_s)  # equal ops share them
    if node.kind == "op":
        return ids
    key = *ids, id(node.memory_bytes)
    if key not in known:
        states = tuple([choice[TENSOR] for choice in node.choices])
        known[key] = states, node.compute_s.tobytes(), node.memory_bytes.tobytes()
    return known[key]


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


@dataclass(frozen=True, eq=False)
class _Gap:
    """The layers that are left out: runs by prefix, and the `number` that each kept node gets."""

    layers: _Layers
    runs: Mapping[int, Sequence[_Run]]
    number: Ints

    def edges(self, problem: Problem) -> Iterator[tuple[Edge, list[int]]]:
        """Yield the edges of the kept nodes, with the ends of the whole problem that theirs are.

        A reader that was left out is replaced across the gap.
        """
        begin = self.layers.columns.begin
        producers = self.number[self.layers.columns.node[begin[:-1]]]
        for index in np.flatnonzero(producers >= 0).tolist():
            edge, first = problem.edges[index], int(begin[index])
            readers, ends = [], [first]
            for end, (node, states) in enumerate(edge.readers, first + 1):
                reader = self._reader(edge.producer, node)
                if reader >= 0:
                    readers.append((reader, states))
                    ends.append(end)
            if readers:
                producer, table, source = int(producers[index]), edge.table, edge.source
                operands = tuple([edge.operands[end - first] for end in ends])
                yield Edge(edge.tensor, table, producer, source, tuple(readers), operands), ends

    def _reader(self, producer: int, reader: int) -> int:
        """Return the number of the node that reads what `producer` makes, across the gap; or -1."""
        if self.number[reader] < 0:
            reader = self._across(producer, reader)
        return -1 if reader < 0 else int(self.number[reader])

    def _across(self, producer: int, reader: int) -> int:
        """Return which node reads instead of one left out: as far behind the gap, or before it; or -1."""
        places = self.layers.places
        prefix, layer, name = places.prefix[reader], places.layer[reader], places.name[reader]
        if places.prefix[producer] != prefix:
            return -1
        run = next(r for r in self.runs[int(prefix)] if layer in r.dropped)
        gap = len(run.dropped) if places.layer[producer] < layer else -len(run.dropped)
        if layer + gap in run.dropped:
            return -1
        return int(places.node_at(prefix, layer + gap, name))
