"""All solvers by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from autoddl.search.exact import primal_dual as exact
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.result import DEFAULTS, SearchOptions, SearchResult
from autoddl.search.rivals import metropolis
from autoddl.search.rivals import random_sampling as random
from autoddl.search.rivals.hap import alternation, synthesis
from autoddl.search.rivals.hidup import chain_search
from autoddl.search.rivals.rhino import cones, largest, segments
from autoddl.search.solvers import coordinate, exhaustive, ilp

Solver = Callable[[CostNetwork, SearchOptions], SearchResult]
"""What every solver does; InfeasibleError: nothing fits, or the problem is too large for it."""

FAST_GAP = 0.01
HAP = alternation.HAP
HIDUP = "hidup"  # a model of its own says what a step takes there, which no other plan improves on


def fast(problem: CostNetwork, options: SearchOptions = DEFAULTS) -> SearchResult:
    """Search as "exact" does, but only until the gap is 1 %."""
    stop_gap = max(FAST_GAP, options.stop_gap)
    return replace(exact.search(problem, replace(options, stop_gap=stop_gap)), solver="fast")


def between_shares(problem: CostNetwork, options: SearchOptions = DEFAULTS) -> SearchResult:
    """Search for the program of HAP's alternation under given shares, as "exact" does.

    Which shares these are is for the planner to ask (rivals.hap.alternation): they are the mesh.
    """
    return replace(exact.search(problem, options), solver=HAP)


SOLVERS: Mapping[str, Solver] = {
    "astar": synthesis.search,
    "coordinate": coordinate.search,
    "exact": exact.search,
    "exhaustive": exhaustive.search,
    "fast": fast,
    HAP: between_shares,
    HIDUP: chain_search.search,
    "ilp": ilp.search,
    largest.LARGEST_K: largest.search,
    "metropolis": metropolis.search,
    segments.O2: segments.search,
    cones.O3: cones.search,
    "random": random.search,
}
