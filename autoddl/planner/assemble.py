"""From what a search has found to a plan: the only place where plans are made."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from autoddl.plan.search_report import SearchReport
from autoddl.plan.value import Estimate, Part, PlanValue
from autoddl.planner.stages.module_costs import module_costs
from autoddl.planner.stages.stage_links import Links
from autoddl.planner.stages.staged_assignment import Staged
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.lazy import LazyTuple
from autoddl.sbp.program.forward_positions import positions
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.objective import TIME
from autoddl.search.result import SearchResult


def plan_of(
    found: Assigned | Staged,
    search: SearchReport,
    *,
    baselines: Sequence[Estimate] = (),
    limit: int | None = None,
    duplex: bool = False,
) -> PlanValue:
    """Return the plan of an assignment, or of one that is cut into stages."""
    problem = found.assigned(0).problem if isinstance(found, Staged) else found.problem
    parts = _stages(found) if isinstance(found, Staged) else (_whole(found),)
    return PlanValue(
        program=problem.program,
        profile=problem.profile.name,
        parts=parts,
        estimate=found.estimate("plan"),
        search=search,
        baselines=baselines,
        micro_batches=found.micro_batches,
        memory_limit_bytes=limit,
        engine=problem.setting.engine,
        compute_stream=problem.compute_stream,
        duplex=duplex,
    )


def make_plan(problem: CostNetwork, result: SearchResult) -> PlanValue:
    """Return the plan of a search's result, without baselines."""
    return plan_of(Assigned(problem, result.assignment), report_of(result))


def staged_plan(
    staged: Staged, result: SearchResult, *, limit: int | None = None, seed: int = 0
) -> PlanValue:
    """Return the plan of a search's result that is cut into stages."""
    report = report_of(result, max(staged.bounded_s, result.lower_bound_s), seed=seed)
    return plan_of(staged, report, limit=limit)


def report_of(result: SearchResult, cost_s: float | None = None, **told: Any) -> SearchReport:
    """Return how a plan was found; the bound is held against `cost_s`, by default the result's."""
    bound_s, cost_s = result.lower_bound_s, result.cost_s if cost_s is None else cost_s
    gap = 1 - bound_s / cost_s if cost_s > 0 else 0.0
    found = {"objective": TIME, "seed": 0, "seconds": 0.0, "gap": gap, **told}
    return SearchReport(solver=result.solver, lower_bound_s=bound_s, **found)


def _whole(assigned: Assigned) -> Part:
    """Return the only part of a plan without stages."""
    return Part(
        mesh=assigned.problem.mesh,
        layout=assigned.layout,
        ranks=tuple(range(assigned.problem.mesh.size)),
        memory_bytes=assigned.memory_bytes,
        kinds=assigned.problem.profile.kinds,
        rows=LazyTuple(lambda: module_costs(_one_stage(assigned), 0)),
    )


def _one_stage(assigned: Assigned) -> Staged:
    """Return the whole program as the only stage of a pipeline, with a batch as its only micro-batch."""
    problem = assigned.problem
    links = Links(problem.profile, problem.mesh.cluster)
    return Staged.equal(assigned, positions(problem.program), (), 1, links)


def _stages(staged: Staged) -> tuple[Part, ...]:
    """Return the parts of a pipeline."""
    return tuple(
        Part(
            mesh=staged.assigned(stage).problem.mesh,
            layout=staged.stage_layout(stage),
            ranks=staged.parts[stage].ranks,
            arrivals=tuple(item for item in staged.transfers if item.target == stage),
            recomputed=stage in staged.recomputed,
            in_flight=staged.in_flight[stage],
            work=staged.step.stages[stage],
            memory_bytes=staged.memory[stage].total,
            kinds=staged.assigned(stage).problem.profile.kinds,
            rows=LazyTuple(partial(module_costs, staged, stage)),
        )
        for stage in range(staged.stages)
    )
