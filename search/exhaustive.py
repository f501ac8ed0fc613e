"""Exhaustive search: every assignment of a small problem, for holding other solvers against it."""

from __future__ import annotations

import math
import time

from autoddl.errors import InfeasibleError
from autoddl.search.problem import Problem
from autoddl.search.result import SearchResult

LIMIT = 2_000_000


def search(
    problem: Problem,
    *,
    budget: float = math.inf,
    seed: int = 0,
    memory_bytes: int | None = None,
    limit: int = LIMIT,
) -> SearchResult:
    """Return the optimal assignment by trying all of them (depth first, cut where already dearer).

    `limit` bounds the number of partial assignments that are looked at; `budget` and `seed` are
    those of every solver and have no effect here.

    Raises:
        InfeasibleError: more than `limit` partial assignments, or nothing fits into `memory_bytes`.
    """
    begin = time.perf_counter()
    problem.check_memory(memory_bytes)
    walk = _Walk(problem, memory_bytes, limit)
    walk.descend(0, 0.0, 0)
    best = tuple(walk.best)
    return SearchResult(
        "exhaustive",
        best,
        problem.cost_s(best),
        problem.cost_s(best),
        problem.memory_bytes(best),
        ((time.perf_counter() - begin, problem.cost_s(best)),),
    )


class _Walk:
    """Depth-first enumeration: an edge is charged once the last of its nodes has a choice."""

    def __init__(self, problem: Problem, memory_bytes: int | None, limit: int) -> None:
        self.problem, self.memory, self.limit, self.left = problem, memory_bytes, limit, limit
        self.point = [0] * len(problem.nodes)
        self.best: list[int] = []
        self.best_s = math.inf
        self.closing: list[list[int]] = [[] for _ in problem.nodes]
        for index, edge in enumerate(problem.edges):
            self.closing[max(edge.producer, *(n for n, _ in edge.readers))].append(index)
        least = [int(node.memory_bytes.min()) for node in problem.nodes]
        self.rest = [sum(least[i:]) for i in range(len(least) + 1)]

    def descend(self, depth: int, seconds: float, memory: int) -> None:
        if self.memory is not None and memory + self.rest[depth] > self.memory:
            return
        if depth == len(self.point):
            if seconds < self.best_s:
                self.best, self.best_s = list(self.point), seconds
            return
        node = self.problem.nodes[depth]
        for choice in range(len(node.choices)):
            self.left -= 1
            if self.left < 0:
                raise InfeasibleError(
                    f"exhaustive search: more than {self.limit:,} partial assignments of the "
                    f"{len(self.point)} nodes on mesh {self.problem.mesh}; use search='coordinate'"
                )
            self.point[depth] = choice
            after = seconds + float(node.compute_s[choice])
            after += sum(self.problem.edges[i].seconds(self.point) for i in self.closing[depth])
            if after < self.best_s:
                self.descend(depth + 1, after, memory + int(node.memory_bytes[choice]))
