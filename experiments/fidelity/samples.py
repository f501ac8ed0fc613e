"""The plans to predict and to run: baselines, searched ones, and random ones from near to far of them.

Uniformly random plans all cost about the same, far more than any sensible one. So a sample starts
from the best plan known, gives a share of the parameters, inputs and contractions random states, and
lets the other ops follow as cheaply as they can: AutoDDL's random strategies, from tuned to untuned.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autoddl.api import Plan
from autoddl.planner.assemble import make_plan
from autoddl.search.baselines import assignments
from autoddl.search.heuristics import cells, descent
from autoddl.search.heuristics.descent import Descent
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.result import Assignment, SearchOptions
from autoddl.search.rivals.random_sampling import random_assignment
from autoddl.search.solvers import coordinate

SHARES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0)
SEARCH_S = 10.0


def plans(problem: CostNetwork, count: int, seed: int = 0) -> Iterator[tuple[str, Plan]]:
    """Yield `count` (name, plan) pairs: baselines, the searched plan, random ones, one unfollowed."""
    found: dict[Assignment, str] = {}
    for name, assignment in assignments(problem).items():
        found.setdefault(assignment, name)
    best = coordinate.search(
        problem, SearchOptions(budget=SEARCH_S, seed=seed, starts=list(found))
    ).assignment
    found.setdefault(best, "searched")
    found.setdefault(descent.replicated(problem), "replicated")
    found.setdefault(random_assignment(problem, seed), "uniform")
    number = 0
    while len(found) < count:
        share = SHARES[number % len(SHARES)]
        point = disturbed(problem, best, share, np.random.default_rng((seed, number)))
        found.setdefault(point, f"random {share:.0%} #{number}")
        number += 1
    for assignment, name in list(found.items())[:count]:
        yield name, Plan.of(make_plan(problem, problem.result(name, assignment)))


def disturbed(
    problem: CostNetwork, start: Assignment, share: float, rng: np.random.Generator
) -> Assignment:
    """Return `start` with this share of the deciding nodes at random and the others following them."""
    deciding = {*cells.roots(problem), *cells.roots(problem, "backward")}
    deciding |= set(problem.variables.where("input", "parameter").tolist())
    held = [i for i in sorted(deciding) if rng.random() < share]
    point = list(start)
    for index in held:
        point[index] = int(rng.integers(problem.arrays.choices[index]))
    free = set(range(len(problem))) - set(held)
    return Assignment(Descent(problem).refine(point, free))
