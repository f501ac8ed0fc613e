"""Bounds on a step that are sums over variables and factors, and the network of a mixture of them.

A pivot parts a step into two windows (dependency_path.py), and it takes at least what both take. A
resource does one thing at a time, so a window takes at least what each is busy with what has to run
there; and what the dependency path takes there. For each window, weights ≥ 0 of these bounds add up to
1. What may run in either window counts with the smaller weight that its resource has. Then all is a sum
of seconds that an assignment decides one by one, and the cheapest assignment of the network of these
prices bounds the step of every assignment.

    early: path 5 ms, device 4; late: path 6, device 9, links 3; and 7 ms on links in either. With all
    weight on the path, then on the device: 5 + 9 = 14 ms. With half of the weight of each window on the
    links: (5 + 9 + 0 + 3 + 7) / 2 = 12 ms, less; with links of 14 ms in either it would be 15.5.

A factor becomes several terms, which add up to what its boxings count: for all readers what they count
in any case, for readers in the early window what they count more there, for the one on the path that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from autoddl.perfmodel.redistribution import RedistributionTable, Redistributor
from autoddl.perfmodel.resources import DEVICE, QUEUE, SERIAL, SHARED
from autoddl.perfmodel.timeline import StepTimeline
from autoddl.search.network.cost_network import CostNetwork, Factors, Floats, Ints, as_ints
from autoddl.search.network.evaluator import Flags, paid_of, unary_of
from autoddl.search.reductions.prices import Prices
from autoddl.search.reductions.retabulated import table
from autoddl.search.result import Point
from autoddl.search.step.dependency_path import EARLY, EITHER, LATE, DependencyPath

SPANS = (EARLY, LATE, EITHER)
Kind: TypeAlias = tuple[int, str]
"""What has a weight: a resource in a span, or SERIAL, the path, in a window."""
Weights: TypeAlias = Mapping[Kind, float]


class StepBounds:
    """The bounds along one dependency path: by kind, what an assignment makes of them."""

    def __init__(self, network: CostNetwork, path: DependencyPath) -> None:
        self.network, self.path = network, path
        levels = dict.fromkeys(axis.level for axis in network.mesh.axes)
        self.resources = (DEVICE, *(levels if network.setting.queue is None else (QUEUE,)))
        self.kinds: tuple[Kind, ...] = (
            *[(span, resource) for span in SPANS for resource in self.resources],
            (EARLY, SERIAL), (LATE, SERIAL),
        )  # fmt: skip

    def of(self, timeline: StepTimeline) -> Floats:
        """Return what all kinds are of an assignment."""
        path, inputs, slot = self.path, self.path.program.columns.inputs, timeline.layout.moves.slot
        early = np.zeros(len(timeline.tensor), dtype=np.bool_)
        reader = inputs.op[slot[slot >= 0]]
        early[timeline.move[slot >= 0][path.spans[reader] == EARLY]] = True
        span = _span(path.is_made_late[timeline.maker], early)[timeline.boxing.row]
        seconds = {resource: np.zeros(len(SPANS)) for resource in self.resources}
        seconds[DEVICE] += _sums(path.spans[:-1], timeline.compute_s)
        for number, parts in enumerate(timeline.least_parts):
            times = np.bincount(span[timeline.boxing.items == number], minlength=len(SPANS))
            for resource, each_s in parts:
                if resource != SHARED:
                    seconds[resource] += times * each_s
        return self.flat(seconds, path.paths_s(timeline))

    def flat(self, seconds: Mapping[str, Floats], paths_s: Floats) -> Floats:
        """Return seconds of resources by span, and those of the path by window, in the order of kinds."""
        of_span = np.stack([seconds[resource] for resource in self.resources], axis=1)
        return np.append(of_span, paths_s)


class Mixture:
    """The mixture of bounds with these weights: its `network`, and what each is of an assignment."""

    def __init__(self, bounds: StepBounds, weights: Weights) -> None:
        self.bounds, network, path = bounds, bounds.network, bounds.path
        self._priced: dict[tuple[float, ...], Redistributor] = {}
        self._tables: dict[tuple[int, tuple[float, ...]], RedistributionTable] = {}
        ops, factors = network.timed_ops, network.factors
        # By span what seconds on each resource count; that of the path is the last column.
        self._price = np.array([[weights[s, r] for r in bounds.resources] + [0.0] for s in SPANS])
        on_path = np.array([weights[EARLY, SERIAL], weights[LATE, SERIAL], 0.0])  # OFF is the last
        self._place, self._mine = path.places_of(factors, ops)
        self._path_price = np.zeros((len(factors.table), len(bounds.resources) + 1))
        self._path_price[:, -1] = on_path[self._place]
        self._late = path.is_made_late[network.program.columns.maker[factors.tensor]]
        self._early = factors.reads & (path.spans[ops[factors.variable]] == EARLY)
        of_op = self._price[path.spans, 0] + on_path[path.places]
        terms = [self._term(*term) for term in self._terms()]
        device = np.where(ops >= 0, of_op[ops], 0.0)
        self.network = Prices(device=device).apply(replace(network, factors=joined(terms)))

    def _terms(self) -> Iterator[tuple[Flags, Floats]]:
        """Yield sets of readers with what seconds count for them, factor by factor."""
        factors = self.bounds.network.factors
        early = self._early & ~self._late[factors.factor]
        every, first, path = (self._count(ends) for ends in (factors.reads, early, self._mine))
        span = _span(self._late, first == every)
        more = np.where(span == EITHER, 1.0, 0.0)[:, None] * np.maximum(
            self._price[EARLY] - self._price[EITHER], 0.0
        )
        # What has the same readers is one term, whose boxings go one way.
        alone = path == every
        as_early = (path == first) & (self._count(self._mine & early) == first)
        serial = self._path_price
        yield factors.reads, self._price[span] + serial * alone[:, None]
        yield early, more + serial * (as_early & ~alone)[:, None]
        yield self._mine, serial * ~(as_early | alone)[:, None]

    def _count(self, ends: Flags) -> Ints:
        factors = self.bounds.network.factors
        return np.bincount(factors.factor[ends], minlength=len(factors.table))

    def _term(self, ends: Flags, weights: Floats) -> Factors:
        """Return the factors of some readers at some prices, without those that cost nothing."""
        factors = self.bounds.network.factors
        costs = (weights.max(axis=1) > 0) & (self._count(ends) > 0)
        kept = costs[factors.factor] & (ends | ~factors.reads)
        tables, which = self._at(factors.table[costs], weights[costs])
        return factors._replace(
            tensor=factors.tensor[costs], tables=tables, table=which,
            begin=np.append(0, self._count(kept)[costs].cumsum()),
            variable=factors.variable[kept], states=factors.states[kept],
            operand=factors.operand[kept],
        )  # fmt: skip

    def _at(self, numbers: Ints, weights: Floats) -> tuple[list[RedistributionTable], Ints]:
        """Return tables at weighted prices, once each, and which one is for each of the numbers."""
        network, resources = self.bounds.network, (*self.bounds.resources, SERIAL)
        rows = np.column_stack([numbers, weights])
        rows, which = np.unique(rows, axis=0, return_inverse=True)
        found = []
        for number, *row in rows.tolist():
            key = int(number), tuple(row)
            if key[1] not in self._priced:
                own = network.setting.redistributor
                priced = own.weighted({**dict(zip(resources, row, strict=True)), SHARED: 0.0})
                self._priced[key[1]] = priced
            if key not in self._tables:
                self._tables[key] = table(network, key[0], self._priced[key[1]])
            found.append(self._tables[key])
        return found, which.reshape(-1)

    def plane(self, point: Point) -> Floats:
        """Return what each kind is of an assignment with the boxings that are cheapest here."""
        bounds, path, whole = self.bounds, self.bounds.path, self.bounds.network
        arrays, point = whole.arrays, as_ints(point)
        compute_s = np.zeros(len(path.spans))
        compute_s[whole.timed_ops] = unary_of(arrays, point)[0]
        compute_s[-1] = 0.0
        every = paid_of(arrays, point)
        paid, _ = every.first(arrays)
        most = int(arrays.size.max(initial=1))
        known, which = np.unique(every.factor * most + every.wanted, return_inverse=True)
        early, on_path = (
            (np.bincount(which, ends[every.end], len(known)) > 0)[
                np.searchsorted(known, paid.factor * most + paid.wanted)
            ]
            for ends in (self._early, self._mine)
        )
        span = _span(self._late[paid.factor], early)
        weights = self._price[span] + np.where(on_path[:, None], self._path_price[paid.factor], 0.0)
        tables, number = self._at(whole.factors.table[paid.factor], weights)
        resources = (*bounds.resources, SHARED)
        parts = {resource: np.zeros(len(paid.factor)) for resource in resources}
        for which_one, its in enumerate(tables):
            mine = np.flatnonzero(number == which_one)
            for resource, seconds in its.parts.items():
                parts[resource][mine] = seconds[paid.made[mine], paid.wanted[mine]]
        all_s = np.sum(list(parts.values()), axis=0)
        paths_s = _sums(path.places, compute_s)
        paths_s += _sums(self._place[paid.factor[on_path]], all_s[on_path])
        busy = {resource: _sums(span, parts[resource]) for resource in bounds.resources}
        busy[DEVICE] += _sums(path.spans, compute_s)
        return bounds.flat(busy, paths_s[: LATE + 1])


def _span(is_made_late: Flags, is_read_early: Flags) -> Ints:
    """Return in which window boxings are."""
    return np.where(is_made_late, LATE, np.where(is_read_early, EARLY, EITHER))


def _sums(span: Ints, seconds: Floats) -> Floats:
    return np.bincount(span, seconds, len(SPANS)).astype(float)


def joined(terms: Sequence[Factors]) -> Factors:
    """Return all factors of several terms; by term variables call a tensor something else."""
    names, tables = terms[0].operands, [table for term in terms for table in term.tables]
    first = np.cumsum([0, *[len(term.tables) for term in terms]]).tolist()
    end = np.cumsum([0, *[len(term.variable) for term in terms]]).tolist()
    numbered = list(enumerate(terms))
    return terms[0]._replace(
        tensor=np.concatenate([term.tensor for term in terms]),
        tables=tables,
        table=np.concatenate([term.table + first[n] for n, term in numbered]),
        begin=np.concatenate([[0], *[term.begin[1:] + end[n] for n, term in numbered]]),
        variable=np.concatenate([term.variable for term in terms]),
        states=np.concatenate([term.states for term in terms]),
        operands=[f"{name} {n}" for n, _ in numbered for name in names],
        operand=np.concatenate([term.operand + n * len(names) for n, term in numbered]),
    )
