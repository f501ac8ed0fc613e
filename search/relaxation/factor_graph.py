"""The factor graph on which messages pass: terms of factors over states, their ends, in arrays.

A term is a factor, or a part of one whose readers are many: it hangs on the states at its ends, which
are those of the producer and of some readers, and has its part of the prices. Each end has a message.

    a tensor with 10 readers, at most 8 in a term: two terms of 5 readers with half of the prices each.

Source: Kolmogorov 2015 (SRMP: factors, sub-factors and their messages).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from autoddl.ragged import Ragged, distinct
from autoddl.search.network.cost_network import CostNetwork, Factors
from autoddl.search.network.evaluator import Flags, Floats, Ints
from autoddl.search.reductions.quotient import Multiplicities
from autoddl.search.relaxation.srmp import END, NODE, SLOT, TABLE, TERM, USE, FactorGraph, Records

# Readers of one term at most: fewer leave gaps, 16 have 43 million ways to part them.
MANY_READERS = 8
# Of a term, sets of readers times pairs of states; beyond it is parted, which 2-D meshes never need.
MOST_ENTRIES = 400_000


class Terms:
    """The terms of all factors: one for each group of a factor's readers.

    Those of factor f are numbered from `first[f]` on; `sets[set[f]]` are the states that occur there,
    and `place[set[f]]` has for every state its position among these, or -1.
    Term t is of the factor `factor[t]`, has the prices `prices[table[t]]` [s, w], and its ends are
    numbered from `begin[t]` on: the producer's, then those of (some) readers. An end is that of
    `variable[end]` in the term `term[end]`, at the `position` 0 of its factor for the producer, 1 + the
    reader's number; its states by choice, as positions among those that occur, begin at
    `states_at[end]` of `states`.
    """

    def __init__(
        self, network: CostNetwork, *, copies: Multiplicities | None = None, most_s: float = np.inf
    ) -> None:
        """Of prices at most `most_s` counts."""
        factors = network.factors
        width = max([len(table.cost) for table in factors.tables], default=1)
        self._begin = factors.begin
        flat = np.concatenate([np.zeros(0, dtype=np.int64), *factors.arrays])
        arrays = Ragged(starts(lengths_of(factors.arrays)), flat)
        made = np.zeros((len(factors.arrays), width), np.bool_)
        made[arrays.row, arrays.items] = True
        occurs = made[factors.states]
        if len(factors.table):
            occurs = np.logical_or.reduceat(occurs, factors.begin[:-1], axis=0)
        for group in _mixed(copies):
            occurs[group] = occurs[group].any(axis=0)
        rows, self.set = _distinct(occurs)
        self.sets = [np.flatnonzero(row) for row in rows]
        self.place = np.where(rows, rows.cumsum(axis=1) - 1, -1)
        end_set = self.set[factors.factor]
        first, which = distinct(factors.states, end_set)
        states = arrays.take(factors.states[first])
        self.states: Ints = self.place[end_set[first][states.row], states.items]
        self._part(factors, np.diff(factors.begin) - 1, most_s)
        at = factors.begin[self.factor[self.term]] + self.position
        self.variable, self.states_at = factors.variable[at], states.start[which[at]]
        self.reader = np.zeros(len(factors.variable), dtype=np.int64)  # each reader's end
        self.reader[at] = np.arange(len(at))

    def _part(self, factors: Factors, readers: Ints, most_s: float) -> None:
        """Part the readers of factors into groups, a term for each, with their part of the prices."""
        sizes = lengths_of(self.sets)[self.set]
        some, kind = distinct(readers, sizes)
        kinds = zip(readers[some].tolist(), sizes[some].tolist(), strict=True)
        groups = [reader_groups(n, many_readers(size)) for n, size in kinds]
        parts = Ragged.of([[len(group) for group in parted] for parted in groups]).take(kind)
        self.first, lengths = parts.start, parts.items
        ends = [[i for group in parted for i in (0, *[r + 1 for r in group])] for parted in groups]
        self.position = Ragged.of(ends).take(kind).items
        self.begin = starts(lengths + 1)
        self.factor = parts.row
        self.group = np.arange(len(lengths)) - self.first[self.factor]
        self.term = np.repeat(np.arange(len(lengths)), lengths + 1)
        table, occurring, most = (by[self.factor] for by in (factors.table, self.set, readers))
        some, self.table = distinct(table, occurring, lengths, most)
        self.prices = list[Floats]()
        for term in some.tolist():
            states = self.sets[occurring[term]]
            cost = factors.tables[table[term]].cost[states[:, None], states]
            self.prices.append(np.minimum(cost, most_s) * (lengths[term] / most[term]))

    def occurrences(self, copies: Multiplicities | None) -> tuple[Ints, Ints, Floats]:
        """Return the ends of all terms of the whole network, where each begins, and how many occur."""
        if copies is None:
            return np.arange(len(self.variable)), self.begin, np.ones(len(self.table))
        first = copies.factor[copies.begin[:-1]]  # of each pattern; its terms are those of all
        term = Ragged(self.first, np.arange(len(self.table))).take(first)
        end = Ragged(self.begin, np.arange(len(self.variable))).take(term.items)
        position, pattern = self.position[end.items], term.row[end.row]
        other = copies.factor[copies.begin[pattern] + position]
        member = np.where(position == 0, end.items, self.reader[self._begin[other] + position])
        first, which = Ragged(end.start, member).distinct()
        once = Ragged(end.start, member).take(first)
        times = np.bincount(which, weights=copies.times[term.row]).astype(np.float64)
        return once.items, once.start, times


def graph_of(terms: Terms, choices: Ints, copies: Multiplicities | None) -> FactorGraph:
    """Lay out variables and ends for message passing; `choices` says how many each variable has."""
    members, place, occur = terms.occurrences(copies)
    of, count, total = terms.variable, len(choices), len(terms.variable)
    slots = np.argsort(of, kind="stable")
    term = np.repeat(np.arange(len(occur)), np.diff(place))
    order = np.argsort(members, kind="stable")
    most = -_least(-occur[term], members, total)  # an end goes by the terms that most copies are in
    counted = (occur[term] == most[members]).astype(float)
    all_counted = np.bincount(members, counted)[members]
    touched = of[members]
    earlier = _least(np.minimum.reduceat(touched, place[:-1])[term], members, total) < of
    later = _least(-np.maximum.reduceat(touched, place[:-1])[term], members, total) < -of
    lends = np.stack([earlier, later], axis=1)
    there = np.stack([np.bincount(of, side, count) for side in lends.T], axis=1)
    part = 1.0 / np.maximum(1.0, there.max(axis=1))
    _, which, same = np.unique(
        (of * (total + 1) + terms.term)[slots], return_inverse=True, return_counts=True
    )
    nodes = _records(
        NODE, slot=starts(np.bincount(of, minlength=count)), choice=starts(choices),
        copies=np.ones(count) if copies is None else copies.variable.astype(float),
        part=part, kept=1.0 - part[:, None] * there,
    )  # fmt: skip
    touches = _records(
        SLOT, end=slots, state=np.append(terms.states_at[slots], len(terms.states)),
        once=1.0 / same[which], lends=lends[slots],
    )  # fmt: skip
    ends = _records(END, use=starts(np.bincount(members, minlength=total)))
    uses = _records(USE, term=term[order], weight=(counted / all_counted)[order])
    table = terms.table[terms.term[members[place[:-1]]]]
    records = _records(TERM, place=place, table=table, count=occur)
    flat = [prices.ravel() for prices in terms.prices]
    tables = _records(TABLE, price=starts(lengths_of(flat)), size=lengths_of(terms.prices))
    turned = [prices.T.ravel() for prices in terms.prices]
    return FactorGraph(
        nodes, touches, ends, uses, records, tables, members, terms.states, _one(flat), _one(turned)
    )


def starts(lengths: Ints) -> Ints:
    """Return where each of some parts begins, and where the last one ends."""
    return np.concatenate(([0], np.cumsum(lengths)))


def _one(arrays: Sequence[Floats]) -> Floats:
    return np.concatenate(arrays) if arrays else np.zeros(0)


def lengths_of(arrays: Iterable[npt.NDArray[Any]]) -> Ints:
    """Return the length of each array."""
    return np.array([len(array) for array in arrays], dtype=np.int64)


def many_readers(states: int) -> int:
    """Return how many readers a term may have at most for a tensor of so many states."""
    fits = (n for n in range(MANY_READERS, 1, -1) if states**2 << n <= MOST_ENTRIES)
    return next(fits, 1)


@cache
def reader_groups(readers: int, most: int) -> tuple[tuple[int, ...], ...]:
    """Part readers into groups of at most so many, which one term can have."""
    count = -(-readers // most)
    return tuple(tuple(part.tolist()) for part in np.array_split(np.arange(readers), count))


def _mixed(copies: Multiplicities | None) -> list[Ints]:
    """Return the factors that occur together in some pattern, where they are several."""
    if copies is None:
        return []
    begin, factor = copies.begin, copies.factor
    least, most = (of.reduceat(factor, begin[:-1]) for of in (np.minimum, np.maximum))
    return [factor[begin[p] : begin[p + 1]] for p in np.flatnonzero(least < most).tolist()]


def _distinct(rows: Flags) -> tuple[Flags, Ints]:
    """Return the distinct rows, and which of them each row is."""
    packed = np.packbits(rows, axis=1)
    _, first, which = np.unique(
        packed.view(f"S{packed.shape[1]}"), return_index=True, return_inverse=True
    )
    return rows[first], which.reshape(-1)


def _records(kind: np.dtype[np.void], **fields: npt.NDArray[Any]) -> Records:
    """Return records with these fields, and one more of zeros where only some have a value for it."""
    found = np.zeros(max(map(len, fields.values())), dtype=kind)
    for name, values in fields.items():
        found[name][: len(values)] = values
    return found


def _least(values: Ints | Floats, groups: Ints, count: int) -> Floats:
    """Return the least value of each group."""
    found = np.full(count, np.inf)
    np.minimum.at(found, groups, values)
    return found
