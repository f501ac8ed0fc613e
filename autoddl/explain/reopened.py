"""A plan as the choice that it was: the problem that it solves, made again, and its assignment there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.profile import Profile
from autoddl.plan.priced_with import check_prices
from autoddl.plan.value import PlanValue
from autoddl.planner.plan_options import EXACT, SHARDED
from autoddl.planner.request import Request
from autoddl.planner.whole.assigned import Assigned
from autoddl.planner.whole.plan_choices import choices_of
from autoddl.sbp.layout import Redistribution
from autoddl.sbp.mesh import Cluster
from autoddl.sbp.program import Op
from autoddl.sbp.rules.registry import Signature, find
from autoddl.search.network.choices import SignatureLists
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.network.evaluator import Ints
from autoddl.search.reductions.saved_tensors import SavedTensors
from autoddl.search.result import Assignment

# Whether users allowed other numbers than one device's; the first where the plan is a choice.
ALLOWED = (False, True)


@dataclass(frozen=True, eq=False)
class Reopened:
    """A plan, the request that it answers, the problem of that, and what was chosen there.

    It is simulated in the network of what was `chosen`, which may have more variables than the problem:
    those of tensors that wait for the backward pass.
    """

    plan: PlanValue
    request: Request
    problem: CostNetwork
    chosen: Assigned

    @cached_property
    def variables(self) -> dict[tuple[str, str], int]:
        """Return the variables of the problem by kind and name."""
        return _by_name(self.problem)

    @cached_property
    def simulated(self) -> dict[tuple[str, str], int]:
        """Return the same of the network in which plans are simulated."""
        return _by_name(self.chosen.problem)

    def with_choice(self, variable: tuple[str, str], choice: int) -> Assigned:
        """Return the plan with another choice of one variable, and all others as they are."""
        found = np.array(self.chosen.assignment, dtype=np.int64)
        found[self.simulated[variable]] = choice
        return Assigned(self.chosen.problem, Assignment(found))


def _by_name(network: CostNetwork) -> dict[tuple[str, str], int]:
    columns = network.variables
    kinds = [columns.kinds[kind] for kind in columns.kind.tolist()]
    return {key: number for number, key in enumerate(zip(kinds, columns.name, strict=True))}


def check_whole(plan: PlanValue) -> None:
    """Raise AutoDDLError where a plan has stages or micro-batches."""
    if plan.pipelined:
        parts, micro = len(plan.parts), plan.micro_batches
        raise AutoDDLError(
            f"explain: the plan has {parts} stages and {micro} micro-batches; other choices are priced "
            "for plans of one stage and one micro-batch so far; without why it tells what stages wait for"
        )


def reopened(plan: PlanValue, profile: Profile) -> Reopened:
    """Return a plan as an assignment of the problem that it solves, priced with a profile.

    Raises:
        AutoDDLError: it has stages, or states that are none of the problem's choices.
    """
    check_whole(plan)
    check_prices(plan, "plan")
    problems = list[str]()
    for allowed in ALLOWED:
        request = request_of(plan, profile, allowed)
        part = plan.parts[0]
        problem = request.problem(
            plan.mesh,
            kinds=part.device_kinds or part.kinds,
            ways=request.ways,
            strides=part.layout.has_strides,
        )
        try:
            return _chosen(plan, request, problem)
        except AutoDDLError as error:
            problems.append(str(error))
    raise AutoDDLError(problems[0])


def request_of(
    plan: PlanValue, profile: Profile, allowed: bool, cluster: Cluster | None = None
) -> Request:
    """Return what the plan answers; of its options those count that its file tells."""
    queue, usual = plan.queue, plan.engine.collectives.get(plan.device)
    own = f"{queue.threshold_mb},{queue.max_ops}" if queue is not None and queue != usual else None
    stages, micro = len(plan.parts), plan.micro_batches
    ways = [
        way
        for way in plan.engine.streams
        if way.compute_stream == plan.compute_stream and way.runs_for(plan.device, stages, micro)
    ]
    return Request(
        program=plan.program, engine=plan.engine, cluster=cluster or plan.parts[0].cluster,
        profile=profile, mesh=plan.mesh, limit_bytes=plan.memory_limit_bytes, ways=tuple(ways[:1]),
        lists=_lists(plan),
        objective=plan.search.objective, seed=plan.search.seed, fusion=own, recompute="none",
        compute_stream=plan.compute_stream, allow_local_batchnorm=allowed,
        dropout=SHARDED if allowed else EXACT,
    )  # fmt: skip


def _lists(plan: PlanValue) -> SignatureLists:
    """Return the signatures of ops that have no rule: those that the plan itself has for them."""

    def listed(op: Op, size: int) -> tuple[Signature, ...]:
        if find(op.type) is not None:
            return ()
        chosen = plan.signatures[op.name]
        sizes = plan.parts[plan.stage_of[op.name]].mesh.shape
        axes = [axis for axis, n in enumerate(sizes) if n == size]
        return tuple({o: states[axis] for o, states in chosen.items()} for axis in axes)

    return listed


def _chosen(plan: PlanValue, request: Request, problem: CostNetwork) -> Reopened:
    """Return the plan in the network in which it has the same redistributions."""
    choices = np.array(list(choices_of(plan, problem)), dtype=np.int64)
    found = [Assigned(problem, choices)]
    if plan.compute_stream:
        saved = SavedTensors.apply(problem)
        waiting = _waiting(plan, saved, choices)
        found += [Assigned(saved.network, of) for of in (waiting, saved.as_read(choices))]
    for same in (set, _ends):  # under another profile the best paths between two states are others
        for one in found:
            if same(one.layout.redistributions) == same(plan.redistributions):
                return Reopened(plan, request, problem, one)
    raise AutoDDLError(
        "plan: tensors are redistributed in other ways than the search would; plans that were written by "
        "hand, or whose tensors wait in states of their own, can't be priced again yet"
    )


def _waiting(plan: PlanValue, saved: SavedTensors, choices: Ints) -> Assignment:
    """Return the plan's choices, and of tensors that wait those with which they move as in the plan.

    Each tensor moves whatever others do, so choices of all are tried at once.
    """
    variables, wanted = saved.network.variables, _by_tensor(plan.redistributions)
    found = np.array(saved.as_read(choices), dtype=np.int64)
    unlike = saved.variables.tolist()
    sizes = {variable: len(variables.of(variable).choices) for variable in unlike}
    for choice in range(-1, max(sizes.values(), default=0)):  # as they are at first
        for variable in unlike:
            found[variable] = found[variable] if choice < 0 else min(choice, sizes[variable] - 1)
        have = _by_tensor(Assigned(saved.network, Assignment(found)).layout.redistributions)
        unlike = [v for v in unlike if have.get(variables.name[v]) != wanted.get(variables.name[v])]
    return Assignment(found)


def _by_tensor(moves: Iterable[Redistribution]) -> dict[str, set[Redistribution]]:
    found = dict[str, set[Redistribution]]()
    for move in moves:
        found.setdefault(move.tensor, set()).add(move)
    return found


def _ends(moves: Iterable[Redistribution]) -> set[tuple[object, ...]]:
    """Return what is redistributed, to which state and for whom."""
    return {(move.tensor, move.path[-1], frozenset(move.readers)) for move in moves}
