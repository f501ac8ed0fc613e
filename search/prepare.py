"""Load the compiled loops of searches, or compile them, before a clock starts."""

from __future__ import annotations

from functools import cache

import numpy as np

from autoddl.search import forest, node_moves, sweeps, walks
from autoddl.search.baselines import flow, follow
from autoddl.search.network import Contacts, Whole, network
from autoddl.search.problem import Floats, Ints


@cache
def prepare() -> None:
    """Call every loop with next to nothing: of use in the first search of a process."""
    none, ints = np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64)
    table, floats, places = np.zeros((1, 1)), np.zeros(0), np.zeros((1, 1), dtype=np.int64)
    _sweeps(none, table)
    forest.improve(
        forest.Network(none, none, ints, none, ints, ints, ints, floats, ints, ints),
        forest.Star(ints, table, ints, ints, floats, table, places, floats, floats, floats),
        ints, floats, ints, ints, ints,
    )  # fmt: skip
    whole = node_moves.Network(
        ints, floats, ints, ints, ints, none, ints, ints, ints, floats, ints, ints
    )
    queue = node_moves.Queue(ints, ints, np.zeros(4, dtype=np.int64))
    node_moves.priced(whole, ints)
    node_moves.descend(whole, node_moves.Touching(none, ints), ints, queue, 0, 0.0, 0)
    reads = follow.Reads(
        none, floats, floats, none, ints, ints, none, ints, ints, floats, ints, ints, ints, ints
    )
    follow.follow(reads, ints, ints, 1.0, 0)
    flow.flow(flow.Network(ints, none, ints, none, ints, ints, ints, ints, ints), ints)
    one = np.zeros(2, dtype=np.int64)  # where the sources of a single op begin and end
    walks.leave_waiting(one, ints, none, none)
    walks.count_before(one, ints, 0, 0, np.zeros(1))
    walks.count_behind(one, ints, 0, np.zeros(1))


def _sweeps(state: Ints, table: Floats) -> None:
    both, neither = np.arange(2), np.zeros(2, dtype=np.int64)  # a producer and a reader
    whole = Whole(both, np.array([0, 2]), np.ones(1))
    contacts = Contacts(both, neither, neither, neither, [state])
    net = network(neither + 1, np.ones(2), contacts, whole, [table])
    cost, messages, lent = np.zeros(2), np.zeros((2, 1)), np.zeros((2, 1))
    sweeps.lend(net, cost, messages, lent, 1)
    sweeps.sweep(net, cost, messages, lent, 1)
    sweeps.bound(net, cost, messages, 1, sweeps.parts(net, messages, lent))
    sweeps.rounded(net, cost, messages, lent)
    sweeps.excess(net, sweeps.own(net, cost, messages, lent), messages, lent)
