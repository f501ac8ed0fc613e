"""What the relaxation of a problem (dual.py) is made of: terms of tensors, and their ends.

A term hangs on the states at its ends: those of a tensor's producer and of its readers, or of some of
them where they are many. Ends are numbered; each has a node and, in the relaxation, a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np

from autoddl.search.columns import EdgeColumns
from autoddl.search.problem import Floats, Ints

# Readers of one term: 3^n ways to part them are looked at. A tensor with more has several terms, which
# bounds it worse: what all its readers share each term counts in part.
FEW_READERS, MANY_READERS = 4, 8
_MOST_ENTRIES = 400_000  # for the sets of many readers by producer's and wanted state


@dataclass(frozen=True, eq=False)
class Fold:
    """How often the nodes of a problem occur in the whole one: `copies`, and its edges.

    Those are given by the edges at which the nodes that stand for its ends have the same place (see
    shorten.Shortened), with how often that occurs.
    """

    copies: Ints
    edges: Mapping[tuple[int, ...], int]


@dataclass(frozen=True, eq=False)
class _Kind:
    """What equal edges have in common: the terms' `tables`, `sizes` and their ends' `positions`.

    `states` number the arrays of the edges' own ends: the producer's, then those of all readers.
    """

    tables: tuple[int, ...]
    sizes: tuple[int, ...]
    positions: tuple[int, ...]
    states: tuple[int, ...]


class Terms:
    """The terms of all edges as columns: one for each group of an edge's readers.

    Those of edge e are numbered from `first[e]` on, and `occurring[e]` are the states that count there.
    Term t is of the edge `edge[t]`, has the prices `prices[table[t]]` [s, w], and its ends are numbered
    from `begin[t]` on: the producer's, then those of (some) readers. An end is that of `node[end]`, at
    the `position` 0 of its edge for the producer, 1 + the reader's number; `arrays[states[end]]` are
    the states by choice, as positions among those that occur.
    """

    def __init__(
        self,
        edges: EdgeColumns,
        *,
        fold: Fold | None = None,
        most_s: float = np.inf,
        wide: bool = False,
    ) -> None:
        """Give terms few readers, or many if they are `wide`; of prices at most `most_s` counts."""
        self._edges, self._wide, self._most_s = edges, wide, most_s
        self._known: dict[object, int] = {}
        self.sets: list[Ints] = []
        self.prices: list[Floats] = []
        self.arrays: list[Ints] = []
        numbers: dict[tuple[int, bytes], int] = {}
        data, ends = edges.states.tobytes(), (edges.states.itemsize * edges.begin).tolist()
        looks = zip(edges.table.tolist(), [data[a:b] for a, b in pairwise(ends)], strict=True)
        form = _ints([numbers.setdefault(look, len(numbers)) for look in looks])
        forms = [(table, np.frombuffer(states, np.int64).tolist()) for table, states in numbers]
        self.set = _ints([self._occurring(states) for _, states in forms])[form]
        for group in fold.edges if fold is not None else ():
            if len(set(group)) > 1:
                both = [self.sets[number] for number in self.set[list(group)].tolist()]
                self.set[list(group)] = self._set(np.unique(np.concatenate(both)))
        self.occurring = [self.sets[number] for number in self.set.tolist()]
        pairs, kind = np.unique(form * len(self.sets) + self.set, return_inverse=True)
        places = [divmod(pair, len(self.sets)) for pair in pairs.tolist()]
        self._kinds = [self._kind(forms[number], place) for number, place in places]
        self._kind_of = kind.tolist()
        self._assemble(kind)

    def _assemble(self, kind: Ints) -> None:
        """Put the terms and ends of all edges one behind the other."""
        kinds, edges = self._kinds, self._edges
        terms, first = _rows([k.tables for k in kinds], kind)
        sizes, _ = _rows([k.sizes for k in kinds], kind)
        self.table, self.first, self.begin = terms, first, starts(sizes)
        self.edge = np.repeat(np.arange(len(kind)), np.diff(first))
        self.group = np.arange(len(terms)) - first[self.edge]
        self.term = np.repeat(np.arange(len(terms)), sizes)
        self.position, _ = _rows([k.positions for k in kinds], kind)
        at = edges.begin[self.edge[self.term]] + self.position
        self.node = edges.node[at]
        by_position, _ = _rows([k.states for k in kinds], kind)
        self.states = by_position[at]
        self.reader = np.zeros(
            len(edges.node), dtype=np.int64
        )  # the end of each reader of each edge
        self.reader[at] = np.arange(len(at))

    def _kind(self, form: tuple[int, Sequence[int]], place: int) -> _Kind:
        """Return what an edge is made of at which the states of one of the `sets` occur."""
        table, states = form
        readers = len(states) - 1
        occurring = self.sets[place]
        most = many_readers(len(occurring)) if self._wide else FEW_READERS
        groups, tables = reader_groups(readers, most), []
        for group in groups:
            key = table, place, len(group) / readers
            if key not in self._known:
                self._known[key] = len(self.prices)
                cost = self._edges.tables[table].cost[np.ix_(occurring, occurring)]
                self.prices.append(np.minimum(cost, self._most_s) * key[2])
            tables.append(self._known[key])
        numbers = []
        for array in states:
            if (array, place) not in self._known:
                self._known[array, place] = len(self.arrays)
                self.arrays.append(np.searchsorted(occurring, self._edges.arrays[array]))
            numbers.append(self._known[array, place])
        positions = [position for group in groups for position in (0, *(r + 1 for r in group))]
        sizes = tuple([1 + len(group) for group in groups])
        return _Kind(tuple(tables), sizes, tuple(positions), tuple(numbers))

    def _occurring(self, states: Sequence[int]) -> int:
        """Return which of the `sets` has the states that occur in some arrays."""
        key = "occurring", *sorted(set(states))
        if key not in self._known:
            arrays = [self._edges.arrays[number] for number in states]
            self._known[key] = self._set(np.unique(np.concatenate(arrays)))
        return self._known[key]

    def _set(self, states: Ints) -> int:
        key = states.tobytes()
        if key not in self._known:
            self._known[key] = len(self.sets)
            self.sets.append(states)
        return self._known[key]

    def of(self, edge: int) -> range:
        """Return the terms of an edge."""
        return range(int(self.first[edge]), int(self.first[edge + 1]))

    def ends(self, term: int) -> Iterator[tuple[int, int]]:
        """Yield the ends of a term with their positions at the edge."""
        first, last = self.begin[term : term + 2].tolist()
        yield from zip(range(first, last), self.position[first:last].tolist(), strict=True)

    def by_choice(self, edge: int) -> tuple[Ints, ...]:
        """Return the states by choice at all ends of an edge: the producer's, then its readers'."""
        return tuple([self.arrays[number] for number in self._kinds[self._kind_of[edge]].states])

    def occurrences(self, fold: Fold | None) -> tuple[Ints, Ints, Floats]:
        """Return the ends of all terms of the whole problem, where each begins, and how many occur."""
        if fold is None:
            return np.arange(len(self.node)), self.begin, np.ones(len(self.table))
        found: dict[tuple[int, ...], int] = {}
        first, begin, reader = self.first.tolist(), self.begin.tolist(), self.reader.tolist()
        at = self._edges.begin.tolist()
        for edges, count in fold.edges.items():
            for group, term in enumerate(self.of(edges[0])):
                ends = [begin[first[edges[0]] + group]]
                ends += [reader[at[edges[i]] + i] for _, i in self.ends(term) if i > 0]
                found[tuple(ends)] = found.get(tuple(ends), 0) + count
        members = _ints([end for ends in found for end in ends])
        return (
            members,
            starts(_ints(list(map(len, found)))),
            np.array([*found.values()], dtype=float),
        )


def starts(lengths: Ints) -> Ints:
    """Return where each of some parts begins, and where the last one ends."""
    return np.concatenate(([0], np.cumsum(lengths)))


def many_readers(states: int) -> int:
    """Return how many readers a term may have at most for a tensor of so many states."""
    fits = (n for n in range(MANY_READERS, FEW_READERS, -1) if states**2 << n <= _MOST_ENTRIES)
    return next(fits, FEW_READERS)


@cache
def reader_groups(readers: int, most: int) -> tuple[tuple[int, ...], ...]:
    """Part readers into groups of at most so many, which one term can have."""
    count = -(-readers // most)
    return tuple(tuple(part.tolist()) for part in np.array_split(np.arange(readers), count))


def _rows(rows: Sequence[tuple[int, ...]], numbers: Ints) -> tuple[Ints, Ints]:
    """Return some of the rows, by number, one behind the other, and where each begins."""
    lengths = _ints([len(row) for row in rows])
    found, begin = lengths[numbers], starts(lengths[numbers])
    at = np.repeat(starts(lengths)[numbers] - begin[:-1], found) + np.arange(begin[-1])
    return _ints([value for row in rows for value in row])[at], begin


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)
