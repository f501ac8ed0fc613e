"""The arrays on which the loops of a relaxation run (sweeps.py)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from autoddl.search.problem import Floats, Ints, Node
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
from autoddl.search.terms import End

# Ends of many copies go by the terms that nearly all of them are in; those at the edge of a run of
# layers have nodes of their own that adapt.
COMMON = 8.0


def network(
    nodes: Sequence[Node], copies: Floats, ends: Sequence[End], terms: Sequence[Sequence[int]],
    count: Floats, tables: Sequence[Floats],
) -> Network:  # fmt: skip
    """Lay out nodes and ends; `terms` are those of the whole problem by their ends' numbers.

    `copies` and `count` say how often nodes and terms occur, `tables` are their prices [s, w].
    """
    node_of = _ints([end.node for end in ends])
    slots = np.argsort(node_of, kind="stable")
    states = [ends[slot].states for slot in slots.tolist()]
    place = _starts(map(len, terms))
    term, members = np.repeat(np.arange(len(terms)), np.diff(place)), _ints(chain(*terms))
    order = np.argsort(members, kind="stable")
    use = _starts(np.bincount(members, minlength=len(ends)))
    counted = count[term] ** COMMON
    all_counted = np.bincount(members, counted)[members]
    touched = node_of[members]
    earlier = _least(np.minimum.reduceat(touched, place[:-1])[term], members, len(ends)) < node_of
    later = _least(-np.maximum.reduceat(touched, place[:-1])[term], members, len(ends)) < -node_of
    lends = np.stack([earlier, later], axis=1)
    there = np.stack([np.bincount(node_of, side, len(nodes)) for side in lends.T], axis=1)
    part = 1.0 / np.maximum(1.0, there.max(axis=1))
    pair = node_of * (len(ends) + 1) + _ints([end.term for end in ends])
    _, which, same = np.unique(pair[slots], return_inverse=True, return_counts=True)
    return Network(
        nodes=_records(
            NODE, slot=_starts(np.bincount(node_of, minlength=len(nodes))),
            choice=_starts(len(node.choices) for node in nodes), copies=copies, part=part,
            kept=1.0 - part[:, None] * there,
        ),
        slots=_records(
            SLOT, end=slots, state=_starts(map(len, states)), once=1.0 / same[which], lends=lends[slots]
        ),
        ends=_records(END, use=use),
        uses=_records(USE, term=term[order], weight=(counted / all_counted)[order]),
        terms=_records(
            TERM, place=place, table=_ints([ends[term[0]].table for term in terms]), count=count
        ),
        tables=_records(
            TABLE, price=_starts(table.size for table in tables), size=_ints(map(len, tables))
        ),
        members=members,
        states=np.concatenate(states) if states else members,
        prices=_floats([table.ravel() for table in tables]),
        turned=_floats([table.T.ravel() for table in tables]),
    )  # fmt: skip


def _records(kind: np.dtype[np.void], **fields: npt.NDArray[Any]) -> Records:
    """Return records with these fields, and one more of zeros where only some have a value for it."""
    found = np.zeros(max(map(len, fields.values())), dtype=kind)
    for name, values in fields.items():
        found[name][: len(values)] = values
    return found


def _ints(values: Iterable[int]) -> Ints:
    return np.fromiter(values, dtype=np.int64)


def _starts(lengths: Iterable[int]) -> Ints:
    """Return where each of some parts begins, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(_ints(lengths))])


def _floats(arrays: Sequence[Floats]) -> Floats:
    return np.concatenate(arrays) if arrays else np.zeros(0)


def _least(values: Ints, groups: Ints, count: int) -> Ints:
    """Return the least value of each group."""
    found = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(found, groups, values)
    return found
