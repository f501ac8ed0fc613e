"""The problem with boxings on streams of their own, from that with all on one, or the reverse."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from autoddl.perfmodel.redistribute import RedistributionTable, Redistributor
from autoddl.sbp.rules.engines import ONEFLOW
from autoddl.sbp.state import OWN
from autoddl.search.problem import Edge, Problem


def on_stream(problem: Problem, compute_stream: bool, *, engine: str | None = ONEFLOW) -> Problem:
    """Return the problem with other kinds of streams: only what boxings cost is another."""
    redistributor = Redistributor(
        problem.mesh,
        problem.profile,
        any_order=engine is None,
        compute_stream=compute_stream,
    )
    tables: dict[int, RedistributionTable] = {}
    edges = []
    for edge in problem.edges:
        known = edge.table
        if id(known) not in tables:
            size, own = problem.program.tensor[edge.tensor].item_bytes, OWN in chain(*known.states)
            tables[id(known)] = redistributor.table(known.shape, size, own=own)
        table = tables[id(known)]
        edges.append(
            Edge(edge.tensor, table, edge.producer, edge.source, edge.readers, edge.operands)
        )
    return replace(problem, edges=tuple(edges), compute_stream=compute_stream)
