"""The same problem with fewer choices: what is left when some can't be part of a better plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from autoddl.search.columns import Edges, Form, Nodes
from autoddl.search.problem import Ints, Problem

_T = TypeVar("_T")


def restricted(problem: Problem, domains: Sequence[Ints]) -> Problem:
    """Return `problem` with only the choices of `domains`, by node.

    Arrays that nodes share are shared afterwards too, where the same choices are left.
    """
    nodes, edges = problem.node_columns, problem.edge_columns
    numbers: dict[bytes, int] = {}
    names = [numbers.setdefault(domain.tobytes(), len(numbers)) for domain in domains]
    different = list(dict(zip(names, domains, strict=True)).values())
    left, count = np.array(names, dtype=np.int64), len(different)
    known: dict[object, Any] = {}

    def once(key: object, make: Callable[[], _T]) -> _T:
        if key not in known:
            known[key] = make()
        found: _T = known[key]
        return found

    def form(number: int, name: int) -> Form:
        old, kept = nodes.forms[number], different[name]
        return Form(
            once((id(old.choices), name), lambda: tuple([old.choices[i] for i in kept.tolist()])),
            once((id(old.compute_s), name), lambda: old.compute_s[kept]),
            once((id(old.memory_bytes), name), lambda: old.memory_bytes[kept]),
        )

    pairs, forms = np.unique(nodes.form * count + left, return_inverse=True)
    fewer = [form(*divmod(pair, count)) for pair in pairs.tolist()]
    pairs, states = np.unique(edges.states * count + left[edges.node], return_inverse=True)
    arrays = [edges.arrays[pair // count][different[pair % count]] for pair in pairs.tolist()]
    return replace(
        problem,
        nodes=Nodes(nodes._replace(forms=fewer, form=forms)),
        edges=Edges(edges._replace(arrays=arrays, states=states)),
    )
