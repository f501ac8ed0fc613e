"""Random assignments: as a solver (AutoDDL's figure 7), and for tests that any plan runs right."""

from __future__ import annotations

import numpy as np

from autoddl.search.heuristics.descent import least_memory
from autoddl.search.incumbent import Incumbent
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.result import DEFAULTS, Assignment, SearchOptions, SearchResult


def random_assignment(problem: CostNetwork, seed: int) -> Assignment:
    """Return an assignment with a uniformly random choice for every node."""
    rng = np.random.default_rng(seed)
    return Assignment(np.array([rng.integers(n) for n in problem.variables.sizes.tolist()]))


def search(
    problem: CostNetwork, options: SearchOptions = DEFAULTS, *, samples: int | None = None
) -> SearchResult:
    """Return the best of `samples` uniformly random assignments, or of those within the budget.

    Under a limit the assignment with the least memory is looked at as well, since random ones rarely
    fit.

    Raises:
        InfeasibleError: no assignment fits into the memory.
    """
    run = Incumbent(problem, options)
    for start in (random_assignment(problem, options.seed), *options.starts):
        run.offer(start)
    if run.limit is not None:
        run.offer(least_memory(problem))
    drawn, rng = 0, np.random.default_rng((options.seed, 1))
    sizes = problem.variables.sizes
    while not run.over() and (samples is None or drawn < samples):
        drawn += 1
        run.offer(rng.integers(0, sizes))
    return run.result("random")
