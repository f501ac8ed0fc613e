"""Load the compiled loops of searches, or compile them, before a clock starts."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from autoddl.perfmodel.simulation.event_simulation import Works, longest_path
from autoddl.perfmodel.simulation.step_graph import BoxingParts, OpWaits, StepMoves, step_works
from autoddl.ragged import Ragged
from autoddl.search.assigned.simulated_steps import BoxingPaths, FactorReaders, step_moves
from autoddl.search.baselines import flow, follow
from autoddl.search.heuristics.cells import single
from autoddl.search.heuristics.descent import Descent, replicated
from autoddl.search.network.cost_network import CostNetwork, Domain, Factors, Variables, as_ints
from autoddl.search.network.evaluator import crossed_s
from autoddl.search.relaxation.dual import Dual


@cache
def prepare() -> None:
    """Call every loop with a single variable: of use in the first search of a process."""
    none, zero = np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
    program: Any = None  # there is none
    domain = Domain(({}, {}), np.zeros(2), np.zeros(2, dtype=np.int64))
    variables = Variables(("op",), zero, [""], [domain], zero, zero)
    factors = Factors(none, [], none, zero, none, [], none, [], none)
    network = CostNetwork(program, variables, factors)
    dual, descent = Dual(network), Descent(network)
    dual.ascend(1)
    dual.reduced_costs()
    point = as_ints(replicated(network))  # which is read-only: that is another type
    network.costs(point)
    descent.choose(descent.refine(dual.rounded()), 0, single(network, 0))
    follow.follow(follow.reads(network), zero, zero, 0)
    longest_path(np.zeros(1), np.zeros(2, dtype=np.int64), none, np.zeros(0))
    Works.of([""], [""], Ragged.of([[]]), np.zeros(0), none, none).critical_s()
    *moves, _ = step_moves(FactorReaders(*[none] * 9), BoxingPaths(none, zero, none), point, 0)
    ops = OpWaits(none, none, none, none)
    step_works(ops, np.zeros(0), StepMoves(*moves), BoxingParts.of([]), {})
    crossed_s(network.arrays, network.incidence, point, point[None].copy(), zero, none)
    flow.flow(flow.Features(none, zero, none, zero, none, none, none, none), none)
