"""What redistributions add to the tasks of a rank: boxings, with identities behind them.

Most of them are alike: they bring tensors of one form and state to others of one kind. What such a one
adds is looked up once, as a chain of parts, and then written down for all of them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autoddl.perfmodel.parts import INPUT, Parts
from autoddl.perfmodel.rank import NONE, Ints, Rows, Table
from autoddl.perfmodel.wiring import BITS
from autoddl.sbp.state import NdSbp


class Link(NamedTuple):
    """A part of a chain: behind so many states; boxings are shared where they begin one."""

    part: int
    step: int
    is_boxing: bool


def chain_of(parts: Parts, form: int, state: NdSbp, path: Sequence[NdSbp]) -> list[Link]:
    """Return the identities of a redistribution with the boxings between them."""
    found = []
    for step, goal in enumerate(path):
        boxing = parts.boxing(form, state, goal)
        if boxing != NONE:
            found.append(Link(boxing, step, is_boxing=True))
        found.append(Link(parts.identity(form, goal), step, is_boxing=False))
        state = goal
    return found


class Wanted(NamedTuple):
    """What is added, in this turn: chains, each for a tensor and before an op.

    They read the result `source`, or what the chain `behind` makes, where that is not NONE. `order` is
    that of an identity behind no state. The one behind `late` states waits for the op `after`, if that
    is not NONE.
    """

    chain: Ints
    tensor: Ints
    op: Ints
    order: Ints
    source: Ints
    behind: Ints
    after: Ints
    late: Ints


class Added(NamedTuple):
    """The parts of chains, and those that wait for ops, as Chosen has them; what each chain makes."""

    parts: Table
    after: Table
    result: Ints


def added(chains: Sequence[Sequence[Link]], wanted: Wanted, results: Ints, first: int) -> Added:
    """Return the parts of all chains that are wanted, numbered from `first`.

    `results` are those of all parts. What begins with a boxing of one kind of one result shares it.
    """
    links = np.array([link for chain in chains for link in chain], dtype=np.int64).reshape(-1, 3)
    ends = np.cumsum([0, *map(len, chains)])
    start, items = Rows(ends, np.arange(len(links))).take(wanted.chain)
    part, step, boxing = links[items].T
    counts = np.diff(start)
    row, place = np.arange(len(counts)).repeat(counts), np.arange(len(items))
    begin = start[:-1][counts > 0]
    boxed = begin[boxing[begin] != 0]
    keys = (wanted.source[row[boxed]] << BITS) + part[boxed]
    _, once, known = np.unique(keys, return_index=True, return_inverse=True)
    original = place.copy()
    original[boxed] = boxed[once[known]]
    number = first - 1 + (original == place).cumsum()[original]

    made = (number << BITS) + results[part]
    reads = _behind(made, begin, wanted.source[row[begin]])
    kept = results[part] == INPUT  # these devices keep what they have
    made[kept] = reads[kept]
    result = np.where(counts > 0, np.append(made, NONE)[start[1:] - 1], wanted.source)
    source = np.where(wanted.behind == NONE, wanted.source, result[wanted.behind])
    reads = _behind(made, begin, source[row[begin]])
    order = np.where(boxing, 0, wanted.order[row] + step)
    parts = np.stack((part, wanted.tensor[row], reads, wanted.op[row], order))
    after = wanted.after[row]
    waits = (boxing == 0) & (after != NONE) & (step == wanted.late[row])
    return Added(parts[:, original == place], np.stack((number[waits], after[waits])), result)


def _behind(made: Ints, begin: Ints, source: Ints) -> Ints:
    """Return what links read: what the one before makes, or the source of their chain."""
    reads = np.roll(made, 1)
    reads[begin] = source
    return reads
