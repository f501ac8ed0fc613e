"""Exhaustive search: every assignment of a small problem, for holding other solvers against it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from autoddl.errors import InfeasibleError
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.network.evaluator import one_factor
from autoddl.search.result import Assignment, Point, Progress, SearchResult, Trace

LIMIT = 2_000_000


def search(
    problem: CostNetwork,
    *,
    budget: float = math.inf,
    seed: int = 0,
    memory_bytes: int | None = None,
    stop_gap: float = 0.0,
    starts: Iterable[Assignment] = (),
    progress: Progress | None = None,
    limit: int = LIMIT,
) -> SearchResult:
    """Return the optimal assignment by trying all of them (depth first, cut where already dearer).

    `limit` bounds the number of partial assignments that are looked at, which are the result's
    `evaluations`; the best of `starts` is what partial ones are cut against from the beginning.
    `budget`, `seed` and `stop_gap` are those of every solver and have no effect here.

    Raises:
        InfeasibleError: more than `limit` partial assignments, or nothing fits into `memory_bytes`.
    """
    problem.check_memory(memory_bytes)
    trace = Trace(progress)
    walk = _DepthFirst(problem, memory_bytes, limit, trace)
    for start in starts:
        walk.begin_with(start)
    walk.run()
    result = problem.result("exhaustive", walk.best)
    return replace(
        result,
        lower_bound_s=result.cost_s,
        trace=trace.ended(result.cost_s),
        evaluations=limit - walk.left,
    )


class _DepthFirst:
    """Depth-first enumeration: an edge is charged once the last of its nodes has a choice."""

    def __init__(
        self, problem: CostNetwork, memory_bytes: int | None, limit: int, trace: Trace
    ) -> None:
        self.problem, self.memory, self.limit, self.left = problem, memory_bytes, limit, limit
        self.trace = trace
        self.point = np.zeros(len(problem), dtype=np.int64)
        self.best: Point = ()
        self.best_s = math.inf
        factors, variables = problem.factors, problem.variables
        closing = np.maximum.reduceat(factors.variable, factors.begin[:-1])
        self.closing = [np.flatnonzero(closing == v).tolist() for v in range(len(problem))]
        self.domains = [variables.of(v) for v in range(len(problem))]
        least = [int(domain.memory_bytes.min()) for domain in self.domains]
        self.rest = [sum(least[i:]) for i in range(len(least) + 1)]

    def begin_with(self, start: Assignment) -> None:
        """Take an assignment that fits as the best one so far."""
        fits = self.memory is None or self.problem.memory_bytes(start) <= self.memory
        if fits and self.problem.cost_s(start) < self.best_s:
            self._keep(start, self.problem.cost_s(start))

    def run(self) -> None:
        """Go through all assignments; without recursion, since problems are thousands of nodes deep."""
        count, net = len(self.point), self.problem.arrays
        seconds, memory = [0.0] * (count + 1), [0] * (count + 1)
        following = [0] * count  # the next choice to try of every node
        depth = 0
        while depth >= 0:
            if depth == count:
                self._keep(self.point, seconds[depth])
                depth -= 1
                continue
            node, choice = self.domains[depth], following[depth]
            if choice == len(node.choices):
                following[depth] = 0
                depth -= 1
                continue
            following[depth] += 1
            self._count()
            self.point[depth] = choice
            after_s = seconds[depth] + float(node.compute_s[choice])
            after_s += sum(one_factor(net, i, self.point) for i in self.closing[depth])
            held = memory[depth] + int(node.memory_bytes[choice])
            if after_s < self.best_s and self._may_fit(held + self.rest[depth + 1]):
                depth += 1
                seconds[depth], memory[depth] = after_s, held

    def _may_fit(self, least_bytes: int) -> bool:
        return self.memory is None or least_bytes <= self.memory

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise InfeasibleError(
                f"exhaustive search: more than {self.limit:,} partial assignments of the "
                f"{len(self.point)} nodes on mesh {self.problem.mesh}; use search='coordinate'"
            )

    def _keep(self, point: Iterable[int], seconds: float) -> None:
        self.best, self.best_s = list(point), seconds
        self.trace.improved(seconds)
