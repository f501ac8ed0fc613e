"""The arrays on which the loops of a relaxation run (sweeps.py)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from autoddl.search.problem import Floats, Ints
from autoddl.search.sweeps import (
    END,
    NODE,
    SLOT,
    TABLE,
    TERM,
    USE,
    Network,
    Records,
)
from autoddl.search.terms import starts

# Ends of many copies go by the terms that nearly all of them are in; those at the edge of a run of
# layers have nodes of their own that adapt.
COMMON = 8.0


class Contacts(NamedTuple):
    """Where nodes touch terms: by end the `node`, the `term`, and the `table` of that.

    The states by choice are in `arrays[states]`.
    """

    node: Ints
    term: Ints
    table: Ints
    states: Ints
    arrays: Sequence[Ints]


class Whole(NamedTuple):
    """The terms of the whole problem: their ends are the `members` from `place` on; `copies` occur."""

    members: Ints
    place: Ints
    copies: Floats


def network(
    choices: Ints, copies: Floats, ends: Contacts, whole: Whole, tables: Sequence[Floats]
) -> Network:
    """Lay out nodes and ends; `choices` and `copies` say how many each node has, how often it occurs.

    `tables` are prices [s, w].
    """
    node_of, nodes, count = ends.node, len(choices), len(ends.node)
    members, place, occur = whole
    slots = np.argsort(node_of, kind="stable")
    term = np.repeat(np.arange(len(occur)), np.diff(place))
    order = np.argsort(members, kind="stable")
    use = starts(np.bincount(members, minlength=count))
    counted = occur[term] ** COMMON
    all_counted = np.bincount(members, counted)[members]
    touched = node_of[members]
    earlier = _least(np.minimum.reduceat(touched, place[:-1])[term], members, count) < node_of
    later = _least(-np.maximum.reduceat(touched, place[:-1])[term], members, count) < -node_of
    lends = np.stack([earlier, later], axis=1)
    there = np.stack([np.bincount(node_of, side, nodes) for side in lends.T], axis=1)
    part = 1.0 / np.maximum(1.0, there.max(axis=1))
    pair = node_of * (count + 1) + ends.term
    _, which, same = np.unique(pair[slots], return_inverse=True, return_counts=True)
    states = starts(_lengths(ends.arrays))
    return Network(
        nodes=_records(
            NODE, slot=starts(np.bincount(node_of, minlength=nodes)), choice=starts(choices),
            copies=copies, part=part, kept=1.0 - part[:, None] * there,
        ),
        slots=_records(
            SLOT, end=slots, state=np.append(states[ends.states[slots]], states[-1]),
            once=1.0 / same[which], lends=lends[slots],
        ),
        ends=_records(END, use=use),
        uses=_records(USE, term=term[order], weight=(counted / all_counted)[order]),
        terms=_records(TERM, place=place, table=ends.table[members[place[:-1]]], count=occur),
        tables=_records(
            TABLE, price=starts(_lengths([table.ravel() for table in tables])), size=_lengths(tables)
        ),
        members=members,
        states=np.concatenate(ends.arrays) if len(ends.arrays) else members,
        prices=_floats([table.ravel() for table in tables]),
        turned=_floats([table.T.ravel() for table in tables]),
    )  # fmt: skip


def repriced(net: Network, terms: Ints, prices: Floats) -> Network:
    """Return a network in which some terms have other prices [s, w]."""
    changed, tables = net.terms.copy(), np.append(net.tables, net.tables[-1:])
    changed["table"][terms] = len(net.tables) - 1
    tables["size"][-2] = len(prices)
    tables["price"][-1] += prices.size
    return net._replace(
        terms=changed, tables=tables, prices=np.append(net.prices, prices),
        turned=np.append(net.turned, prices.T),
    )  # fmt: skip


def _records(kind: np.dtype[np.void], **fields: npt.NDArray[Any]) -> Records:
    """Return records with these fields, and one more of zeros where only some have a value for it."""
    found = np.zeros(max(map(len, fields.values())), dtype=kind)
    for name, values in fields.items():
        found[name][: len(values)] = values
    return found


def _lengths(arrays: Iterable[npt.NDArray[Any]]) -> Ints:
    return np.array([len(array) for array in arrays], dtype=np.int64)


def _floats(arrays: Sequence[Floats]) -> Floats:
    return np.concatenate(arrays) if arrays else np.zeros(0)


def _least(values: Ints, groups: Ints, count: int) -> Ints:
    """Return the least value of each group."""
    found = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(found, groups, values)
    return found
