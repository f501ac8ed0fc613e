"""Fewer layers that are computed again: just so many that the step fits into memory.

A plan of which all layers are computed again is left with the first k of them, in the states that it has;
the least k that fits is found by bisection. The first ones, since memory is shortest where the
backward pass begins: the last layer's results are read at once, those of the first wait longest.

    24 layers in 10 GiB: 11 need 11.3 → 17 need 9.4 → 14 need 10.3 → 15 need 10, so 15 are made again.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autoddl.planner.race import Solution
from autoddl.planner.request import Request
from autoddl.planner.whole.assigned import Assigned
from autoddl.planner.whole.one_stage import OneStage
from autoddl.sbp.program import Program
from autoddl.sbp.rewrites.recomputed_layers import in_layers, layers_again
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.saved_tensors import SavedTensors
from autoddl.search.result import Assignment


def with_fewer(request: Request, program: Program, every: Solution) -> Solution:
    """Return a solution with as few of the layers again as fit; `every` has all those of a program."""
    best, least = every, -1
    while best.candidate.recomputed - least > 1:
        count = (best.candidate.recomputed + least) // 2
        found = with_layers(request, program, every, count)
        if request.limit_bytes is None or found.row.memory_bytes <= request.limit_bytes:
            best = found
        else:
            least = count
    return best


def with_layers(request: Request, program: Program, like: Solution, count: int) -> Solution:
    """Return the solution with the first layers again, so many of those of another one, in its states."""
    known, one = like.found.assigned(0), like.candidate
    program = in_layers(program, layers_again(known.problem.program)[:count])
    problem = replace(request, program=program).problem(one.mesh, ways=(one.way,))
    if one.way.compute_stream and request.limit_bytes is not None:
        problem = SavedTensors.apply(problem).network
    assigned = Assigned(problem, _in_states_of(known, problem))
    result = problem.result(like.result.solver, assigned.assignment)
    found = replace(
        like,
        candidate=replace(one, recomputed=count),
        found=OneStage(assigned),
        result=replace(result, cost_s=assigned.step_s),
        cost_s=assigned.step_s,
    )
    return replace(found, judged_s=found.row.step_s)


def _in_states_of(known: Assigned, problem: CostNetwork) -> Assignment:
    """Return the assignment of a problem with the choices of one that has all its ops, and more.

    What waits for the backward pass here alone does so as its first reader wants it.
    """
    ours, theirs = problem.variables, known.problem.variables
    chosen = {
        (theirs.kinds[kind], name): choice
        for kind, name, choice in zip(
            theirs.kind.tolist(), theirs.name, known.assignment, strict=True
        )
    }
    keys = [
        (ours.kinds[kind], name) for kind, name in zip(ours.kind.tolist(), ours.name, strict=True)
    ]
    found, saved = np.array([chosen.get(key, -1) for key in keys]), SavedTensors(problem)
    others = np.asarray(saved.as_read(found[~saved.saved]))
    return Assignment(np.where(found < 0, others, found))
