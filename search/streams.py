"""The problem with boxings on streams of their own, from that with all on one, or the reverse."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from autoddl.perfmodel.redistribute import Redistributor
from autoddl.sbp.rules.engines import ONEFLOW
from autoddl.sbp.state import OWN
from autoddl.search.columns import Edges
from autoddl.search.problem import Problem


def on_stream(problem: Problem, compute_stream: bool, *, engine: str | None = ONEFLOW) -> Problem:
    """Return the problem with other kinds of streams: only what boxings cost is another."""
    redistributor = Redistributor(
        problem.mesh,
        problem.profile,
        any_order=engine is None,
        compute_stream=compute_stream,
    )
    edges, tables = problem.edge_columns, []
    for number, known in enumerate(edges.tables):
        tensor = edges.tensor[int((edges.table == number).argmax())]
        size, own = problem.program.tensor[tensor].item_bytes, OWN in chain(*known.states)
        tables.append(redistributor.table(known.shape, size, own=own))
    made = Edges(edges._replace(tables=tables))
    found = replace(problem, edges=made, compute_stream=compute_stream)
    return found.knowing(problem.ops, problem.tensors)
