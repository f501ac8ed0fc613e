"""Rhino's way with memory ("largest-k"): the k largest parameters must not be whole on every device.

The search knows no limit. Of the parameters in descending order of size the first k lose the choice of
being replicated, and k is the smallest number at which the least sum fits. It is looked for by bisection,
as if more parameters that are cut always held less: k fits, and k − 1 does not.

    parameters of 4, 2 and 1 GB on two devices of 5.5 GB: k = 0 holds 7, k = 1 2 + 2 + 1 = 5 GB, and fits.

Its inner search is the exact one: what O3 finds, sooner.

Source: Rhino §4.4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log2

import numpy as np

from autoddl.errors import InfeasibleError
from autoddl.sbp.state import broadcast
from autoddl.search.exact import primal_dual as exact
from autoddl.search.incumbent import Incumbent
from autoddl.search.network.cost_network import TENSOR, CostNetwork, Ints, ints
from autoddl.search.reductions.restriction import Restriction, everything
from autoddl.search.result import DEFAULTS, SearchOptions, SearchResult

LARGEST_K = "largest-k"


@dataclass(frozen=True)
class Forced:
    """What is found with the `k` largest parameters cut, of so many that can be."""

    k: int
    parameters: int
    result: SearchResult


def search(problem: CostNetwork, options: SearchOptions = DEFAULTS) -> SearchResult:
    """Return what is found with as few parameters cut as fit, or a start that is cheaper.

    It proves nothing: the bound that is returned is that of compute alone.

    Raises:
        InfeasibleError: with all of them cut it does not fit, and no start does.
    """
    run = Incumbent(problem, options)
    for start in options.starts:
        run.offer(start)
    try:
        found = smallest(problem, replace(options, budget=run.left_s())).result
    except InfeasibleError:
        if run.best is None:
            raise
    else:
        run.offer(found.assignment)
        run.evaluations += found.evaluations
    return run.result(LARGEST_K)


def smallest(problem: CostNetwork, options: SearchOptions = DEFAULTS) -> Forced:
    """Return what is found with as few of the largest parameters cut as fit into the memory.

    Raises:
        InfeasibleError: with all of them cut it does not fit.
    """
    order, limit = largest(problem), options.memory_bytes
    run = Incumbent(problem, options)
    tries = 2 + int(log2(len(order) + 1))
    known: dict[int, SearchResult] = {}

    def found(k: int) -> SearchResult:
        if k not in known:
            known[k] = _found(
                problem, order[:k], options, run.left_s() / max(1, tries - len(known))
            )
        return known[k]

    def fits(k: int) -> bool:
        return limit is None or found(k).memory_bytes <= limit

    last = len(order)
    if not fits(0) and not fits(last):
        held = found(last).memory_bytes
        raise InfeasibleError(
            f"search='largest-k': with all {last} parameters cut that can be, what is found holds "
            f"{held:,} B per device, {held - (limit or 0):,} B more than there are; use search='exact'"
        )
    k = 0 if fits(0) else _least(fits, last)
    evaluations = sum(result.evaluations for result in known.values())
    return Forced(k, last, replace(found(k), evaluations=evaluations))


def largest(problem: CostNetwork) -> Ints:
    """Return the parameters that can be cut, the largest first; equal ones as in the program."""
    variables, program = problem.variables, problem.program
    some = [v for v in variables.where("parameter").tolist() if len(_cut(problem, v))]
    sizes = [program.tensor[variables.name[v]].size_bytes for v in some]
    return ints(some)[np.argsort(-ints(sizes), kind="stable")]


def _cut(problem: CostNetwork, variable: int) -> Ints:
    """Return the choices of a parameter in which it is not whole on every device."""
    whole, choices = broadcast(problem.mesh.ndim), problem.variables.of(variable).choices
    return np.flatnonzero([choice[TENSOR] != whole for choice in choices])


def _found(
    problem: CostNetwork, cut: Ints, options: SearchOptions, budget_s: float
) -> SearchResult:
    """Return the least sum with some parameters cut, whatever memory it takes."""
    domains = everything(problem)
    for variable in cut.tolist():
        domains[variable] = _cut(problem, variable)
    space = Restriction.apply(problem, domains)
    asked = replace(options, budget=budget_s, memory_bytes=None, starts=(), progress=None)
    result = exact.search(space.network, asked)
    return replace(result, assignment=space.invert(result.assignment))


def _least(fits: Callable[[int], bool], high: int) -> int:
    """Return a number that fits, up to `high`, which does, below which the next one does not."""
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
