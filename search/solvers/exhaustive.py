"""Exhaustive search: every assignment of a small problem, for holding other solvers against it."""

from __future__ import annotations

import math

import numpy as np

from autoddl.errors import InfeasibleError
from autoddl.search.incumbent import Incumbent
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.network.evaluator import one_factor
from autoddl.search.result import DEFAULTS, SearchOptions, SearchResult

LIMIT = 2_000_000


def search(
    problem: CostNetwork, options: SearchOptions = DEFAULTS, *, limit: int = LIMIT
) -> SearchResult:
    """Return the optimal assignment by trying all of them (depth first, cut where already dearer).

    `limit` bounds the number of partial assignments that are looked at, which are the result's
    `evaluations`; the best of the starts is what partial ones are cut against from the beginning.
    Budget, seed and gap have no effect here.

    Raises:
        InfeasibleError: more than `limit` partial assignments, or nothing fits into the memory.
    """
    run = Incumbent(problem, options)
    for start in options.starts:
        run.offer(start)
    walk = _DepthFirst(problem, run, limit)
    walk.run()
    run.bound_s, run.evaluations = math.inf, limit - walk.left
    return run.result("exhaustive")


class _DepthFirst:
    """Depth-first enumeration: an edge is charged once the last of its nodes has a choice."""

    def __init__(self, problem: CostNetwork, incumbent: Incumbent, limit: int) -> None:
        self.problem, self.incumbent, self.limit, self.left = problem, incumbent, limit, limit
        self.point = np.zeros(len(problem), dtype=np.int64)
        factors, variables = problem.factors, problem.variables
        closing = np.maximum.reduceat(factors.variable, factors.begin[:-1])
        self.closing = [np.flatnonzero(closing == v).tolist() for v in range(len(problem))]
        self.domains = [variables.of(v) for v in range(len(problem))]
        least = [int(domain.memory_bytes.min()) for domain in self.domains]
        self.rest = [sum(least[i:]) for i in range(len(least) + 1)]

    def run(self) -> None:
        """Go through all assignments; without recursion, since problems are thousands of nodes deep."""
        count, net = len(self.point), self.problem.arrays
        seconds, memory = [0.0] * (count + 1), [0] * (count + 1)
        following = [0] * count  # the next choice to try of every node
        depth = 0
        while depth >= 0:
            if depth == count:
                self.incumbent.offer(self.point, (seconds[depth], memory[depth]))
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
            if after_s < self.incumbent.best_s and self._may_fit(held + self.rest[depth + 1]):
                depth += 1
                seconds[depth], memory[depth] = after_s, held

    def _may_fit(self, least_bytes: int) -> bool:
        limit = self.incumbent.limit
        return limit is None or least_bytes <= limit

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise InfeasibleError(
                f"exhaustive search: more than {self.limit:,} partial assignments of the "
                f"{len(self.point)} nodes on mesh {self.problem.mesh}; use search='coordinate'"
            )
