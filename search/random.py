"""Random assignments, for tests that a plan of any kind runs right."""

from __future__ import annotations

import numpy as np

from autoddl.search.problem import Problem
from autoddl.search.result import Assignment


def random_assignment(problem: Problem, seed: int) -> Assignment:
    """Return an assignment with a uniformly random choice for every node."""
    rng = np.random.default_rng(seed)
    return tuple(int(rng.integers(len(node.choices))) for node in problem.nodes)
