"""Integer linear programming with HiGHS: slow, but an independent check of the other solvers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from autoddl.errors import InfeasibleError
from autoddl.search.budget import BINARY, EVALUATION_S, Allowance
from autoddl.search.heuristics.descent import least_memory, replicated
from autoddl.search.incumbent import Incumbent
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.result import DEFAULTS, Assignment, SearchOptions, SearchResult
from autoddl.search.solvers.milp_model import Model

# HiGHS's tolerances are absolute, 1e-7 and more, so costs are scaled until the largest is this.
LARGEST = 1e4
INFEASIBLE = 2  # scipy.optimize.OptimizeResult.status


def search(problem: CostNetwork, options: SearchOptions = DEFAULTS) -> SearchResult:
    """Return the optimal assignment, or the best one that the budget brings.

    HiGHS takes no starts: they are what is returned where it finds nothing better in time. `progress`
    is called before and after; the seed has no effect.

    Raises:
        InfeasibleError: no assignment fits into the memory, or none has a finite cost, or the budget
            ended before any was found.
    """
    run = Incumbent(problem, options)
    for known in (*options.starts, replicated(problem), least_memory(problem)):
        run.offer(known)
    found, bound_s = _solved(Model(problem, run.limit), run.allowance, options.stop_gap)
    if found is not None:
        run.offer(found)
    run.raise_to(bound_s)
    return run.result("ilp")


def _solved(model: Model, allowance: Allowance, stop_gap: float) -> tuple[Assignment | None, float]:
    """Return the best assignment, which fits, None if there was no time for one, and the bound.

    HiGHS lets the memory row be exceeded by its tolerance; such assignments are cut off.
    """
    problem, limit, bound = model.problem, model.limit, 0.0
    while True:
        x, last = _solve(model, allowance, stop_gap)
        bound = max(bound, last)
        if x is None:
            return None, bound
        found = model.decode(x)
        if limit is None or problem.memory_bytes(found) <= limit:
            return found, bound
        model.forbid(found)


def _solve(model: Model, allowance: Allowance, stop_gap: float) -> tuple[Any, float]:
    """Return HiGHS's columns, None if it ran out of time before it had any, and its bound (s)."""
    from scipy import optimize  # 600 modules that no other solver needs

    cost = model.cost
    scale = LARGEST / max(float(cost.max(initial=0.0)), 1e-300)
    # presolve loses optima now and then
    options: dict[str, Any] = {"mip_rel_gap": stop_gap, "presolve": False}
    allowance.clock.count(BINARY * model.binaries)
    if math.isfinite(allowance.seconds):
        if allowance.clock.counted:  # of nodes, each is worth the program's binaries
            node_s = EVALUATION_S * BINARY * model.binaries
            options["node_limit"] = int(allowance.left_s() / node_s)
        else:
            options["time_limit"] = allowance.left_s()
    answer = optimize.milp(
        cost * scale,
        integrality=np.arange(model.width) < model.binaries,
        bounds=optimize.Bounds(0.0, 1.0),
        constraints=model.constraint,
        options=options,
    )
    allowance.clock.count(BINARY * model.binaries * (answer.mip_node_count or 0))
    if answer.status == INFEASIBLE:
        raise InfeasibleError(_no_way(model))
    bound = answer.mip_dual_bound
    return answer.x, float(bound) / scale if bound is not None else -math.inf


def _no_way(model: Model) -> str:
    limit, least = model.limit, model.problem.least_memory_bytes
    within = "" if limit is None else f" in {limit:,} B per device (the least is {least:,} B)"
    return (
        f"ILP of {len(model.problem)} nodes on mesh {model.problem.mesh}: every assignment"
        f"{within} has a redistribution without a way; give more memory, or allow less (pins, allow=)"
    )
