"""Load the compiled loops of searches, or compile them, before a clock starts."""

from __future__ import annotations

from functools import cache

import numpy as np

from autoddl.search.baselines import flow, follow
from autoddl.search.network import evaluator, reachability
from autoddl.search.relaxation import srmp


@cache
def prepare() -> None:
    """Call every loop with next to nothing: of use in the first search of a process."""
    none, ints, floats = np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
    one = np.zeros(2, dtype=np.int64)  # where the factors of a single variable begin and end
    _messages()
    arrays = evaluator.Arrays(
        ints, floats, ints, ints, ints, none, ints, ints, ints, floats, ints, ints
    )
    queue = evaluator.Queue(ints, ints, np.zeros(4, dtype=np.int64))
    frozen = ints.copy()
    frozen.flags.writeable = False
    for point in (ints, frozen):  # which numba tells apart
        evaluator.costs_of(arrays, point)
    evaluator.block_of(arrays, evaluator.BlockMove(ints, np.zeros((0, 1), np.int64), ints), ints)
    by, wide = evaluator.Incidence(none, ints), np.zeros((0, 0), dtype=np.int64)
    evaluator.descend(arrays, by, ints, queue, 0, 0.0, 0)
    follow.follow(follow.Reads(arrays, by, none, ints, wide), ints, ints, 1.0, 0)
    flow.flow(flow.Features(ints, none, ints, none, ints, ints, ints, ints, ints), ints)
    reachability.leave_waiting(one, ints, none, none)


def _messages() -> None:
    """A variable that makes a tensor and one that reads it, with one choice each."""
    both, one = np.arange(3), np.zeros((1, 1))
    graph = srmp.FactorGraph(
        np.zeros(3, srmp.NODE), np.zeros(3, srmp.SLOT), np.zeros(3, srmp.END),
        np.zeros(3, srmp.USE), np.zeros(2, srmp.TERM), np.zeros(2, srmp.TABLE), both[:2],
        np.zeros(2, dtype=np.int64), one.ravel(), one.ravel(),
    )  # fmt: skip
    for records, name in ((graph.nodes, "slot"), (graph.nodes, "choice"), (graph.ends, "use")):
        records[name] = both
    graph.slots["end"] = graph.slots["state"] = [0, 1, 2]
    graph.terms["place"], graph.tables["size"] = [0, 2], [1, 0]
    cost, messages, lent = np.zeros(2), np.zeros((2, 1)), np.zeros((2, 1))
    srmp.lend(graph, cost, messages, lent, 1)
    srmp.sweep(graph, cost, messages, lent, 1)
    srmp.bound(graph, cost, messages, lent, 1)
    srmp.rounded(graph, cost, messages, lent)
    srmp.excess(graph, cost, messages, lent)
