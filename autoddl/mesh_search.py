"""Which mesh of a cluster has the best plan: all are candidates, and those that can't win are left out.

A mesh that cuts an axis of another one in two can do all that the other can: any group of its axes acts
as one. So what was found on the coarser mesh is where the search on the finer one starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autoddl.errors import AutoDDLError, InfeasibleError
from autoddl.plan import Plan
from autoddl.sbp.mesh import Cluster, Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.state import NdSbp
from autoddl.search.problem import TENSOR, Node, Problem
from autoddl.search.result import Assignment

MOST_STATES = 700  # of one tensor: tables of all pairs of states grow with the square of it
# Relative; a mesh of more axes has to be better by so much. The model does not tell less apart, and
# what two calibrations of the same machine measure must not decide between two grids.
WORTH = 1e-3
SEARCHED, PRUNED, TOO_LARGE, IMPOSSIBLE = OUTCOMES = (
    "searched", "no better plan", "too many states", "impossible",
)  # fmt: skip


@dataclass(frozen=True)
class Work:
    """What is done for each mesh.

    `make` makes its problem; `solve` is called with a problem, seconds to search and assignments to
    start from; of plans that with the least `judged_s` is the best one, and `bound_s` is a number below
    that of every plan of a problem. What ops and boxings cost is no such bound where they overlap.
    """

    make: Callable[[Mesh], Problem]
    bound_s: Callable[[Problem], float]
    solve: Callable[[Problem, float, Sequence[Assignment]], Plan]
    judged_s: Callable[[Plan], float]


@dataclass
class _Candidate:
    """A mesh with its problem, and what came of it."""

    mesh: Mesh
    problem: Problem | None = None
    outcome: str = ""
    bound_s: float | None = None
    plan: Plan | None = None


@dataclass
class _Search:
    """The best plan so far, and all of them without what only the best one needs."""

    work: Work
    budget: float
    begin: float = field(default_factory=time.perf_counter)
    plans: list[Plan] = field(default_factory=list)
    best: Plan | None = None

    def left_s(self) -> float:
        return max(0.0, self.budget - (time.perf_counter() - self.begin))

    def can_win(self, mesh: Mesh, judged_s: float) -> bool:
        """Tell whether a plan on a mesh is better than the best so far; axes must be worth it."""
        if self.best is None:
            return True
        more = mesh.ndim - self.best.mesh.ndim
        worth = 1 - WORTH * (more > 0) + WORTH * (more < 0)
        return judged_s < self.work.judged_s(self.best) * worth

    def found(self, plan: Plan) -> Plan:
        if self.can_win(plan.mesh, self.work.judged_s(plan)):
            self.best = plan
        self.plans.append(replace(plan, baselines=()))  # these may hold on to the whole problem
        return self.plans[-1]


def cluster_of(given: str | Sequence[int] | Cluster, levels: Sequence[str]) -> Cluster:
    """Return the cluster that the user means, on the levels of a profile; one node has no level.

    Raises:
        AutoDDLError: not a cluster, or one of more levels than the profile has.
    """
    if isinstance(given, Cluster):
        return given
    if not isinstance(given, str | Sequence):
        raise AutoDDLError(
            f"cluster: got {given!r}; allowed are counts such as '2x4' (nodes x devices) or (2, 4)"
        )
    if not isinstance(given, str) and len(levels) == 1 and len(given) == 2:
        given = (given[0] * given[1],)  # the profile does not tell nodes apart
    return Cluster.parse(given, levels)


def too_large(program: Program, mesh: Mesh) -> bool:
    """Tell whether some tensor has too many states on a mesh: B, P or S of any dim for every axis."""
    most_dims = max((len(t.shape) for t in program.tensors), default=0)
    return (most_dims + 2) ** mesh.ndim > MOST_STATES


def best_plan(program: Program, meshes: Sequence[Mesh], work: Work, *, budget: float) -> Plan:
    """Return the best plan of all meshes; its `search` tells what came of each.

    Meshes are searched in the order of their lower bounds, equal ones in the given order. One whose
    bound is not below the best plan so far is not searched. Of meshes whose plans are within WORTH
    that with fewer axes is taken. Each gets an equal part of the seconds
    that are left of `budget`. The plan's own lower bound and gap are those of its mesh.

    Raises:
        AutoDDLError: there is no plan on any mesh; what was wrong with the first one.
    """
    found = [_Candidate(mesh) for mesh in meshes]
    failure: AutoDDLError | None = None
    run = _Search(work, budget)
    for candidate in found:
        if len(found) > 1 and too_large(program, candidate.mesh):
            candidate.outcome = TOO_LARGE
            continue
        try:
            candidate.problem = work.make(candidate.mesh)
            candidate.bound_s = work.bound_s(candidate.problem)
        except AutoDDLError as error:
            candidate.outcome, failure = IMPOSSIBLE, failure or error
    for candidate, rest in _in_order(found):
        try:
            _searched(candidate, run, rest)
        except AutoDDLError as error:
            candidate.outcome, failure = IMPOSSIBLE, failure or error
    if run.best is None:
        raise failure or InfeasibleError(
            f"mesh: tensors have too many states on all meshes {', '.join(map(str, meshes))}; give one"
        )
    if len(found) == 1:
        return run.best
    return replace(run.best, search={**run.best.search, **_told(found, run)})


def _in_order(found: Sequence[_Candidate]) -> list[tuple[_Candidate, int]]:
    """Return the candidates that have a problem, lowest bound first, each with how many are left."""
    ready = [(c.bound_s, n, c) for n, c in enumerate(found) if c.bound_s is not None]
    ready.sort(key=lambda item: (float(f"{item[0]:.9g}"), item[1]))  # rounding must not decide
    return [(c, len(ready) - n) for n, (_, _, c) in enumerate(ready)]


def _searched(candidate: _Candidate, run: _Search, rest: int) -> None:
    """Search one mesh unless it can't win; drop its problem afterwards."""
    problem, candidate.problem = candidate.problem, None
    if problem is None or candidate.bound_s is None:
        return
    if not run.can_win(candidate.mesh, candidate.bound_s):
        candidate.outcome = PRUNED
        return
    known = [carried(plan, problem) for plan in sorted(run.plans, key=run.work.judged_s)]
    plan = run.work.solve(problem, run.left_s() / rest, [a for a in known if a is not None])
    candidate.outcome, candidate.plan = SEARCHED, run.found(plan)


def _told(found: Sequence[_Candidate], run: _Search) -> Mapping[str, object]:
    rows = [
        {
            "mesh": c.mesh.describe(),
            "outcome": c.outcome,
            "lower_bound_s": c.plan.search["lower_bound_s"] if c.plan else c.bound_s,
            "step_s": c.plan.estimate.step_s if c.plan else None,
        }
        for c in found
    ]
    return {"seconds": time.perf_counter() - run.begin, "meshes": rows}


def carried(plan: Plan, problem: Problem) -> Assignment | None:
    """Return a plan on the finer mesh of a problem: what an axis does, all its parts do.

    None where the mesh does not refine the plan's, or a node has no such choice.
    """
    parts = refinement(plan.mesh, problem.mesh)
    if parts is None:
        return None
    finer: dict[NdSbp, NdSbp] = {}

    def on(state: NdSbp) -> NdSbp:
        if state not in finer:
            finer[state] = NdSbp(s for s, n in zip(state, parts, strict=True) for _ in range(n))
        return finer[state]

    inputs = {item.name: item.state for item in plan.inputs}
    known: dict[int, dict[tuple[NdSbp, ...], int]] = {}
    assignment = []
    for node in problem.nodes:
        wanted = _states(node, plan, inputs)
        table = known.setdefault(id(node.choices), {})
        if not table:
            table |= {tuple(c[o] for o in wanted): i for i, c in enumerate(node.choices)}
        choice = table.get(tuple(map(on, wanted.values())))
        if choice is None:
            return None
        assignment.append(choice)
    return tuple(assignment)


def _states(node: Node, plan: Plan, inputs: Mapping[str, NdSbp]) -> NdSignature:
    """Return the states that a plan has for a node; none for an output, which has no choice."""
    if node.kind == "op":
        return plan.signatures[node.name]
    if node.kind == "output":
        return {}
    return {TENSOR: inputs[node.name] if node.kind == "input" else plan.variables[node.name]}


def refinement(coarse: Mesh, fine: Mesh) -> tuple[int, ...] | None:
    """Return for every axis of a mesh how many of a finer one make it up; None if it is not finer."""
    axes, counts = list(fine.axes), []
    for axis in coarse.axes:
        size, count = 1, 0
        while axes and size < axis.size and axes[0].level == axis.level:
            size *= axes.pop(0).size
            count += 1
        if size != axis.size:
            return None
        counts.append(count)
    return None if axes else tuple(counts)
