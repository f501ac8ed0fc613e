"""A plan with stages or micro-batches as the assignments that it was cut from, priced with a profile.

Each class of stages (those of one mesh) follows one assignment. The file of a plan has the states of what
each stage runs; what runs on other classes is whole here, and costs this one nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from autoddl.errors import AutoDDLError, shown
from autoddl.explain.reopened import ALLOWED, request_of
from autoddl.perfmodel.profile import Profile
from autoddl.plan.value import PlanValue
from autoddl.planner.request import Request, cluster_of
from autoddl.planner.stages.stage_links import Links
from autoddl.planner.stages.stage_moves import StagePart
from autoddl.planner.stages.staged_assignment import Staged
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.mesh import Cluster, Level, Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.program.forward_positions import Positions, positions
from autoddl.sbp.program.ops_and_tensors import STAGE, TIED, copy_of
from autoddl.sbp.rewrites.stage_copies import is_own
from autoddl.sbp.rewrites.tied_sums import is_late
from autoddl.sbp.state import B
from autoddl.search.network.cost_network import CostNetwork

YET = "can't be priced again yet; plan with autoddl.optimize"


def staged_again(plan: PlanValue, profile: Profile, cluster: Cluster) -> Staged:
    """Return the stages of a plan at the prices of a profile, with transfers between them.

    Raises:
        AutoDDLError: stages on several kinds of devices, or a plan that the search would not make.
    """
    if any(part.kinds for part in plan.parts):
        raise AutoDDLError(f"plan: stages on devices of several kinds {YET}")
    program = uncut(plan)
    found = positions(program, plan.stage_of)
    problems = list[str]()
    for allowed in ALLOWED:
        request = request_of(plan, profile, allowed, cluster)
        try:
            staged = _staged(plan, request, program, found)
        except AutoDDLError as error:
            problems.append(str(error))
            continue
        if staged.program == plan.program and staged.stage_of == plan.stage_of:
            return staged
        problems.append(f"plan: stages share ops in another way than the planner's; such {YET}")
    raise AutoDDLError(problems[0])


def cluster_of_stages(plan: PlanValue, profile: Profile, given: Any) -> Cluster:
    """Return all devices of a plan: those given, or those that its file tells.

    Raises:
        AutoDDLError: `given` are other devices; or stages don't tell what nodes they are in.
    """
    if given is not None:
        cluster = cluster_of(given, profile.levels)
        told = f"cluster: got {shown(str(given), 60)}"
        if len(plan.parts) == 1:
            raise AutoDDLError(f"{told}; the plan has one stage, whose mesh tells it; leave it out")
        if cluster.size != plan.devices or cluster.kinds:
            kinds = " of kinds" if cluster.kinds else ""
            raise AutoDDLError(
                f"{told} with {cluster.size} devices{kinds}; the plan has {plan.devices} that are alike"
            )
        return cluster
    if len(plan.parts) == 1:
        return plan.parts[0].cluster
    for outcome in plan.search.outcomes:
        if outcome.stages == 1:
            mesh = Mesh.parse(outcome.mesh)
            if mesh.size == plan.devices:
                return mesh.cluster
    outer, *inner = plan.mesh.cluster.levels
    equal = all(part.mesh == plan.mesh for part in plan.parts)
    if equal and outer.name == profile.levels[0]:
        return Cluster((Level(outer.name, outer.size * len(plan.parts)), *inner))
    raise AutoDDLError(
        f"cluster: the plan's {len(plan.parts)} stages don't tell in which nodes their devices are; give "
        "nodes x devices, cluster='4x8' (--cluster 4x8)"
    )


def uncut(plan: PlanValue) -> Program:
    """Return the program of a micro-batch of which the stages' own copies of ops were made."""
    program = plan.program
    if any(op.name.startswith(TIED) for op in program.ops):
        raise AutoDDLError(f"plan: stages that cast parts of a tied gradient {YET}")
    ops = [
        replace(
            op, inputs=tuple((o, copy_of(name)) for o, name in op.inputs),
            phase="backward" if is_late(op) else op.phase,
        )
        for op in program.ops
        if not op.name.startswith(STAGE)
    ]  # fmt: skip
    tensors = tuple(each for each in program.tensors if not each.name.startswith(STAGE))
    return replace(program, ops=tuple(ops), tensors=tensors)


def _staged(plan: PlanValue, request: Request, program: Program, found: Positions) -> Staged:
    classes: dict[Mesh, list[int]] = {}
    for stage, part in enumerate(plan.parts):
        classes.setdefault(part.mesh, []).append(stage)
    assigned = {}
    for mesh, stages in classes.items():
        problem = request.problem(mesh, program, (), ways=request.ways)
        choices = list(_choices(plan, problem, stages))
        assigned[mesh] = Assigned(problem, np.array(choices, dtype=np.int64))
    staged = Staged(
        [StagePart(assigned[part.mesh], part.ranks) for part in plan.parts],
        found, list(_bounds(plan, program, found)), plan.micro_batches,
        Links(request.profile, request.cluster),
        recomputed=[n for n, part in enumerate(plan.parts) if part.recomputed],
    )  # fmt: skip
    return staged.with_orders(plan.orders, [part.in_flight for part in plan.parts])


def _bounds(plan: PlanValue, program: Program, found: Positions) -> Iterator[int]:
    """Yield the first position of each stage but the first; what any stage may have tells nothing."""
    first: dict[int, int] = {}
    for name, place in (*found.op.items(), *found.held.items()):
        if not is_own(program, program.op.get(name)):
            stage = plan.stage_of[name]
            first[stage] = min(place, first.get(stage, found.count))
    for stage in range(1, len(plan.parts)):
        if stage not in first:
            raise AutoDDLError(f"plan: a stage without ops of its own {YET}")
        yield first[stage]


def _choices(plan: PlanValue, problem: CostNetwork, stages: Collection[int]) -> Iterator[int]:
    """Yield the choice of each variable: that of some stages, or whole where it is on others."""
    variables, states = problem.variables, _states(plan, stages)
    for kind, name, number in zip(
        variables.kind.tolist(), variables.name, variables.domain.tolist(), strict=True
    ):
        choices = variables.domains[number].choices
        sort, operands = variables.kinds[kind], tuple(choices[0])
        if sort == "output":
            yield 0
            continue
        wanted = states.get(name)
        if wanted is None:
            yield _whole(choices)
            continue
        keys = [tuple(c[o] for o in operands) for c in choices]
        key = tuple(wanted[o] if isinstance(wanted, Mapping) else wanted for o in operands)
        if key not in keys:
            raise AutoDDLError(
                f"plan: {sort} {shown(name, 80)} has states {', '.join(map(str, key))}, which are none "
                "of those that can be planned; plan again with autoddl.optimize"
            )
        yield keys.index(key)


def _states(plan: PlanValue, stages: Collection[int]) -> Mapping[str, Any]:
    """Return the states of what some stages run or keep, of copies by the names of their originals."""
    found = dict[str, Any]()
    for stage in stages:
        layout = plan.parts[stage].layout
        found |= {**layout.variables, **layout.inputs}
        found |= {copy_of(name): signature for name, signature in layout.signatures.items()}
    return found


def _whole(choices: Sequence[Mapping[str, Any]]) -> int:
    """Return the first choice in which as few states as can be are anything but whole."""
    cut = [sum(entry != B for s in c.values() for entry in s) for c in choices]
    return cut.index(min(cut))
