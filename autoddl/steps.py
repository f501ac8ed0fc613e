"""What steps of a problem's assignments take: a bound, and a simulation, from arrays of the problem.

The same as perfmodel.timeline says of their layouts, without making these; what is the same for all
assignments of a problem is computed once. Tensors that wait in nodes of their own (search/passes.py)
are not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np

from autoddl.owners import owners_of
from autoddl.perfmodel.rank import Rows
from autoddl.perfmodel.simulation import Graph, ends
from autoddl.perfmodel.step import Price, Priced, StepCost, Totals
from autoddl.perfmodel.timeline import DEVICE, Parts, PartsOf, Prediction, Works, turns
from autoddl.redistributions import ends_of
from autoddl.search.problem import TENSOR, Floats, Ints, Problem


class Way(NamedTuple):
    """A path of boxings: their prices, and what each takes of which resource."""

    prices: Sequence[Price]
    parts: Sequence[Parts]


class Moved(NamedTuple):
    """The redistributions of an assignment, in the order in which their tensors are made.

    `way` numbers their paths, `maker` is the op that makes the tensor, -1 if none does. Reader
    `reader[i]`, counted over all edges, gets its tensor from number `item[i]`.
    """

    way: Ints
    maker: Ints
    reader: Ints
    item: Ints


def steps_of(problem: Problem) -> Steps:
    """Return what the steps of a problem's assignments have in common."""
    return problem.once("steps", lambda: Steps(problem))


class Steps:
    """What the steps of a problem's assignments have in common."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.program, self.flat = problem, problem.program, problem.flat
        columns = self.program.columns
        self.place = owners_of(problem).place  # of each node: the op whose compute it has
        self.nodes = np.flatnonzero(self.place >= 0)
        self.maker = columns.maker[problem.tensors]
        output = columns.output[problem.tensors]
        self.turn = self.maker * (output.max(initial=0) + 1) + output  # in which tensors are made
        self.before = Rows.sorted(*columns.waits, len(self.program.ops))  # what each op waits for
        self.parts_of = PartsOf(problem.mesh, problem.profile, overlaps=not problem.compute_stream)
        self.ways: list[Way] = []
        self.way_at: dict[int, int] = {}  # by table, source and goal
        self.price_at: dict[tuple[int, int], Price] = {}

    def compute_s(self, assignment: Sequence[int]) -> Floats:
        """Return the seconds of every op."""
        found = np.zeros(len(self.program.ops))
        found[self.place[self.nodes]] = self.flat.compute_s(assignment)[self.nodes]
        return found

    def moved(self, assignment: Sequence[int]) -> Moved:
        """Return what is redistributed."""
        reader, edge, source, goal = self.flat.paid(assignment)
        most = int(self.flat.size.max(initial=1))
        _, first, item = np.unique(edge * most + goal, return_index=True, return_inverse=True)
        # by the turn of the tensor, then by that of the edge, then by that of the first reader
        order = np.lexsort((first, self.turn[edge[first]]))
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        first = first[order]
        edge, source, goal = edge[first], source[first], goal[first]
        keys = (self.flat.table_at[edge] * most + source) * most + goal
        kinds, where, kind = np.unique(keys, return_index=True, return_inverse=True)
        columns = [column.tolist() for column in (kinds, edge[where], source[where], goal[where])]
        ways = [self._way(*at) for at in zip(*columns, strict=True)]
        return Moved(np.array(ways, dtype=np.int64)[kind], self.maker[edge], reader, rank[item])

    def _way(self, key: int, edge: int, source: int, goal: int) -> int:
        """Return the number of a path of boxings from one state of an edge's table to another."""
        if key not in self.way_at:
            found, table = self.problem.edges[edge], self.problem.edges[edge].table
            start, path = table.states[source], table.path(table.states[source], table.states[goal])
            prices = self.problem.prices.path(found.tensor, start, path)
            self.way_at[key] = len(self.ways)
            self.ways.append(Way(prices, [self.parts_of(price) for price in prices]))
        return self.way_at[key]

    @property
    def slots(self) -> tuple[Ints, Ints, Ints]:
        """Return of every input of every op the op, and the op that makes it, or -1.

        Besides, which of these inputs each reader of the edges is, or a number below 0.
        """
        inputs = self.program.columns.inputs
        return inputs.op, self.program.columns.maker[inputs.tensor], ends_of(self.problem).slot

    @cached_property
    def kind(self) -> Ints:
        """Return equal numbers for nodes whose ops are of one kind and choose from the same."""
        kinds, forms = self.program.columns.kind, self.problem.node_columns.form
        keys = kinds[self.place[self.nodes]] * (int(forms.max(initial=0)) + 1) + forms[self.nodes]
        return np.asarray(np.unique(keys, return_inverse=True)[1])

    def priced(self, assignment: Sequence[int]) -> Priced:
        """Return the prices of all ops."""
        chosen = np.asarray(assignment, dtype=np.int64)[self.nodes]
        keys = self.kind * (int(chosen.max(initial=0)) + 1) + chosen
        _, where, kind = np.unique(keys, return_index=True, return_inverse=True)
        columns = (self.kind[where].tolist(), self.nodes[where].tolist(), chosen[where].tolist())
        which = np.zeros(len(self.program.ops), dtype=np.int64)
        which[self.place[self.nodes]] = kind
        return Priced([self._price(*at) for at in zip(*columns, strict=True)], which)

    def _price(self, kind: int, index: int, choice: int) -> Price:
        """Return the price of one choice of a node."""
        key = kind, choice
        if key not in self.price_at:
            node, op = self.problem.nodes[index], self.program.ops[self.place[index]]
            signature = node.choices[choice]
            if node.kind == "parameter":
                parameter = self.program.parameter[node.name]
                signature = self.problem.update_signature(parameter, signature[TENSOR])
            self.price_at[key] = self.problem.prices.of(op, signature)
        return self.price_at[key]

    @property
    def prices(self) -> list[Price]:
        """Return the prices of the boxings of all ways."""
        return [price for way in self.ways for price in way.prices]


class Step:
    """The step of one assignment."""

    def __init__(self, problem: Problem, assignment: Sequence[int]) -> None:
        self.of, self.assignment = steps_of(problem), assignment

    @cached_property
    def compute_s(self) -> Floats:
        """Return the seconds of every op."""
        return self.of.compute_s(self.assignment)

    @cached_property
    def moved(self) -> Moved:
        """Return what is redistributed."""
        return self.of.moved(self.assignment)

    def _busy(self) -> dict[str, float]:
        """Return for how many seconds each resource is busy."""
        found = {DEVICE: sum(self.compute_s.tolist())}
        for number, count in enumerate(np.bincount(self.moved.way).tolist()):
            for resource, seconds in chain(*self.of.ways[number].parts) if count else ():
                found[resource] = found.get(resource, 0.0) + seconds * count
        return found

    @cached_property
    def least_s(self) -> float:
        """Return seconds that the simulated step does not go below.

        A resource is busy from the first time on at which the maker of some tensor that it moves has
        ended. An op ends after those that it waits for, whatever moves between them.
        """
        ended = np.append(ends(self.compute_s, *self.of.before), 0.0)  # the last is there at once
        first, moved = {DEVICE: 0.0}, self.moved
        begins = np.full(len(self.of.ways), np.inf)
        np.minimum.at(begins, moved.way, ended[moved.maker])
        for way, begin_s in zip(self.of.ways, begins.tolist(), strict=True):
            for resource, _ in chain(*way.parts):
                first[resource] = min(first.get(resource, np.inf), begin_s)
        return max([first[r] + seconds for r, seconds in self._busy().items()]) * (1 - 1e-9)

    @cached_property
    def prediction(self) -> Prediction:
        """Return what the step costs, and takes when ops and boxings overlap."""
        return Prediction(self.totals(), self.works().end_s)

    def totals(self) -> Totals:
        """Return what the step costs."""
        which = self._boxings.items  # notes their prices, too
        ops = self.of.priced(self.assignment)
        return StepCost(ops, Priced(self.of.prices, which)).totals

    @cached_property
    def _boxings(self) -> Rows:
        """Return the numbers of the prices of each redistribution."""
        ways = self.moved.way  # notes their prices, too
        counts = np.array([len(way.prices) for way in self.of.ways], dtype=np.int64)
        start = np.concatenate(([0], counts.cumsum()))
        return Rows(start, np.arange(start[-1])).take(ways)

    def works(self) -> Works:
        """Return the ops in their order, then the boxings."""
        ops, moved, start = len(self.compute_s), self.moved, self._boxings.start
        last = ops - 1 + start[1:]  # of the boxings of each redistribution
        boxings = ops + np.arange(start[-1])
        before = boxings - 1  # what each of them waits for
        before[start[:-1]] = moved.maker
        reads, source, slots = self.of.slots
        slot, source = slots[moved.reader], source.copy()
        source[slot[slot >= 0]] = last[moved.item[slot >= 0]]
        total = ops + len(boxings)
        first, then = np.concatenate([source, before]), np.concatenate([reads, boxings])
        pairs = np.unique(first[first >= 0] * total + then[first >= 0])
        first, then = np.divmod(pairs, total)
        turn = np.repeat(moved.maker, np.diff(start)) + (boxings - ops + 1) * (
            1 / (len(boxings) + 1)
        )
        resources, begin, resource, seconds = self._parts()
        return Works(
            (),
            resources,
            Graph(
                begin,
                resource,
                seconds,
                np.bincount(then, minlength=total),
                np.searchsorted(first, np.arange(total + 1)),
                then,
                turns(np.concatenate((np.arange(ops), turn))),
            ),
        )

    def _parts(self) -> tuple[Sequence[str], Ints, Ints, Floats]:
        """Return the resources, where the parts of each work begin, their resources and seconds."""
        found = [parts for way in self.of.ways for parts in way.parts]
        resources = {DEVICE: 0}
        each = [[resources.setdefault(r, len(resources)) for r, _ in parts] for parts in found]
        resource = Rows.of(each)
        seconds = np.array([s for parts in found for _, s in parts], dtype=np.float64)
        part = Rows(resource.start, np.arange(len(seconds))).take(self._boxings.items)
        busy = self.compute_s > 0
        begin = np.concatenate(([0], np.cumsum(busy)))
        return (
            tuple(resources),
            np.concatenate((begin, begin[-1] + part.start[1:])),
            np.concatenate((np.zeros(begin[-1], dtype=np.int64), resource.items[part.items])),
            np.concatenate((self.compute_s[busy], seconds[part.items])),
        )
