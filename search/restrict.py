"""The same problem with fewer choices: what is left when some can't be part of a better plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from autoddl.search.problem import Edge, Ints, Node, Problem

_T = TypeVar("_T")


def restricted(problem: Problem, domains: Sequence[Ints]) -> Problem:
    """Return `problem` with only the choices of `domains`, by node.

    Arrays that nodes share are shared afterwards too, where the same choices are left.
    """
    known: dict[object, object] = {}

    def once(key: object, make: Callable[[], _T]) -> _T:
        if key not in known:
            known[key] = make()
        found: _T = known[key]  # type: ignore[assignment]
        return found

    names = [domain.tobytes() for domain in domains]

    def node(index: int, old: Node) -> Node:
        left, name = domains[index], names[index]
        return Node(
            old.kind,
            old.name,
            once((id(old.choices), name), lambda: tuple(old.choices[i] for i in left)),
            once((id(old.compute_s), name), lambda: old.compute_s[left]),
            once((id(old.memory_bytes), name), lambda: old.memory_bytes[left]),
        )

    def states(index: int, old: Ints) -> Ints:
        return once((id(old), names[index]), lambda: old[domains[index]])

    def edge(old: Edge) -> Edge:
        readers = tuple((n, states(n, array)) for n, array in old.readers)
        return replace(old, source=states(old.producer, old.source), readers=readers)

    nodes = tuple(node(index, old) for index, old in enumerate(problem.nodes))
    return replace(problem, nodes=nodes, edges=tuple(edge(old) for old in problem.edges))
