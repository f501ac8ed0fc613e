"""A bound on the step of an assignment, in less time than a simulation takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoddl.perfmodel.timeline import DEVICE, Parts, PartsOf
from autoddl.search.problem import Floats, Problem


def least_step_s(problem: Problem, assignment: Sequence[int]) -> float:
    """Return seconds that the simulated step of an assignment does not go below.

    An op ends after those that it waits for, whatever moves between them; a resource is busy for the
    sum of its parts, from the first time on at which the maker of some tensor that it moves has ended.
    """
    compute_s = problem.flat.compute_s(assignment)
    ends = _ends(problem, compute_s)
    busy, first = {DEVICE: sum(compute_s.tolist())}, {DEVICE: 0.0}
    made, want = (states.tolist() for states in problem.states(assignment))
    order, first_reader = problem.program.order, problem.flat.first_reader
    for index in problem.redistributed(assignment):
        tensor, source = problem.edges[index].tensor, made[index]
        begin_s = ends[order.made[tensor][0]] if tensor in order.made else 0.0
        for goal in set(want[first_reader[index] : first_reader[index + 1]]):
            if goal == source:
                continue
            for resource, seconds in _parts(problem, index, source, goal):
                busy[resource] = busy.get(resource, 0.0) + seconds
                first[resource] = min(first.get(resource, begin_s), begin_s)
    least = max(max(ends, default=0.0), *(first[r] + seconds for r, seconds in busy.items()))
    return least * (1 - 1e-9)


def _ends(problem: Problem, compute_s: Floats) -> list[float]:
    """Return when each op of the program ends at the earliest; updates take nothing."""
    order = problem.program.order
    if "ops" not in problem.notes:
        pairs = [(i, order.number[n.name]) for i, n in enumerate(problem.nodes) if n.kind == "op"]
        problem.notes["ops"] = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    nodes, places = problem.notes["ops"]
    seconds = np.zeros(len(order.before))
    seconds[places] = compute_s[nodes]
    ends: list[float] = []
    for cost_s, before in zip(seconds.tolist(), order.before, strict=True):
        if len(before) == 1:
            ends.append(cost_s + ends[before[0]])
        else:
            ends.append(cost_s + max([ends[other] for other in before], default=0.0))
    return ends


def _parts(problem: Problem, index: int, source: int, goal: int) -> Parts:
    """Return what an edge's redistribution takes of which resource; equal ones are priced once."""
    edge = problem.edges[index]
    known: dict[object, Parts] = problem.notes.setdefault("parts", {})
    key = id(edge.table), source, goal
    if key not in known:
        start, end = edge.table.states[source], edge.table.states[goal]
        parts_of = PartsOf(problem.mesh, problem.profile, overlaps=not problem.compute_stream)
        path = edge.table.path(start, end)
        prices = problem.prices.path(edge.tensor, start, path)
        known[key] = tuple([part for price in prices for part in parts_of(price)])
    return known[key]
