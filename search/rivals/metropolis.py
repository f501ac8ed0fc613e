"""Metropolis–Hastings: a random walk over assignments that prefers cheap ones.

In the long run the walk is at an assignment S with probability π(S) ∝ exp(−cost(S) / temperature).
That holds for proposals that change one node, which are symmetric. Proposals that change a cell have no
way back in one step: its distribution is another one with them.

Source: AutoDDL §4.4 (temperature = 1 / β_T); FlexFlow's search.
"""

from __future__ import annotations

import math

import numpy as np

from autoddl.search.heuristics import cells
from autoddl.search.heuristics.descent import IMPROVEMENT, first_points
from autoddl.search.incumbent import Incumbent
from autoddl.search.network.cost_network import CostNetwork, as_ints
from autoddl.search.network.evaluator import BlockMove, block_of
from autoddl.search.result import DEFAULTS, Point, SearchOptions, SearchResult

# Of the proposals change cells: far better for VGG13, a little worse for ResNet-50.
CELL_SHARE = 0.1
PROBES = 256  # nodes whose moves tell the temperature
COLDNESS = 200.0  # the median difference between two choices of a node, in temperatures


def search(
    problem: CostNetwork, options: SearchOptions = DEFAULTS, *, proposals: int | None = None
) -> SearchResult:
    """Return the best assignment on a walk of `proposals` steps, or of as many as the budget allows.

    The walk begins at the best of the starts, or of a few simple assignments. The same seed gives the
    same result where `proposals` ends it.

    Raises:
        InfeasibleError: no assignment fits into the memory.
    """
    run = Incumbent(problem, options)
    given = first_points(problem, options)
    for start in given:
        run.offer(start)
    rng = np.random.default_rng(options.seed)
    walk = Walk(problem, run.best or given[0], rng, memory_bytes=run.limit, cell_share=CELL_SHARE)
    walk.temperature_s = walk.scale_s()
    step = 0
    while walk.nodes and not run.over() and (proposals is None or step < proposals):
        step += 1
        run.allowance.clock.count(1)
        if walk.step() and walk.seconds < run.best_s:
            run.offer(walk.point, (walk.seconds, walk.memory))
    run.evaluations = len(given) + walk.evaluations
    return run.result("metropolis")


class Walk:
    """A Markov chain over assignments; `point` is where it is, `seconds` and `memory` what that costs.

    It begins within the memory limit and never leaves it.
    """

    def __init__(
        self,
        problem: CostNetwork,
        start: Point,
        rng: np.random.Generator,
        *,
        memory_bytes: int | None = None,
        cell_share: float = 0.0,
    ) -> None:
        self.problem, self.rng, self.limit = problem, rng, memory_bytes
        self.temperature_s = 0.0
        self.nodes = np.flatnonzero(problem.variables.sizes > 1).tolist()
        self.cells = cells.build(problem) if cell_share > 0 else []
        self.cell_share = cell_share if self.cells else 0.0
        self.point, self.evaluations = as_ints(start).copy(), 0
        self.seconds, self.memory = problem.costs(start)

    def scale_s(self) -> float:
        """Return a temperature that suits the problem, in seconds of cost.

        Rule: 1 / 200 of the median, over nodes and choices, of what another choice of one node
        costs more or less than that node's choice at the start; choices that cost the same don't
        count. Other than the step's cost this does not grow with the depth of a model. The fraction
        is small because every node of many may be that much above its best.
        """
        found = [np.zeros(0)]
        for turn in self.rng.permutation(len(self.nodes))[:PROBES]:
            node = self.nodes[turn]
            seconds, _ = block_of(self.problem.arrays, cells.single(self.problem, node), self.point)
            self.evaluations += len(seconds) - 1
            found.append(np.abs(seconds - seconds[self.point[node]]))
        spread = np.concatenate(found)
        spread = spread[np.isfinite(spread) & (spread > IMPROVEMENT * self.seconds)]
        return float(np.median(spread)) / COLDNESS if len(spread) else 0.0

    def step(self) -> bool:
        """Propose a change, take it or leave it; tell whether the walk has moved."""
        change = self._cell() if self.rng.random() < self.cell_share else self._node()
        if (change.columns[:, 0] == change.columns[:, 1]).all():
            return False
        self.evaluations += 1
        seconds, held = block_of(self.problem.arrays, change, self.point)
        memory = self.memory + int(held[1] - held[0])
        more_s = float(seconds[1] - seconds[0])
        if (self.limit is not None and memory > self.limit) or not self._accepts(more_s):
            return False
        self.point[change.variables] = change.columns[:, 1]
        self.memory = memory
        finite = math.isfinite(more_s)
        self.seconds = self.seconds + more_s if finite else self.problem.cost_s(self.point)
        return True

    def _accepts(self, more_s: float) -> bool:
        """Accept with probability min(1, exp(−difference / temperature))."""
        if not more_s > 0:  # or the walk can't be done here nor there
            return True
        if self.temperature_s == 0:
            return False
        return self.rng.random() < math.exp(-more_s / self.temperature_s)

    def _node(self) -> BlockMove:
        """Propose one of the other choices of one variable, all alike: as likely as the way back."""
        node = self.nodes[int(self.rng.integers(len(self.nodes)))]
        now = int(self.point[node])
        other = int(self.rng.integers(self.problem.arrays.choices[node] - 1))
        begin, factor = self.problem.incidence
        return BlockMove(
            np.array([node]), np.array([[now, other + (other >= now)]]),
            factor[begin[node] : begin[node + 1]],
        )  # fmt: skip

    def _cell(self) -> BlockMove:
        """Propose an alternative of a cell."""
        move = self.cells[int(self.rng.integers(len(self.cells)))]
        taken = move.columns[:, int(self.rng.integers(move.columns.shape[1]))]
        return move._replace(columns=np.stack([self.point[move.variables], taken], axis=1))
