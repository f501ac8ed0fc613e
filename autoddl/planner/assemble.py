"""From what a search has found to a plan: the only place where plans are made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from autoddl.plan.parts import Estimate, Part
from autoddl.plan.search_report import SearchReport
from autoddl.plan.value import PlanValue
from autoddl.planner.stages.module_costs import module_costs
from autoddl.planner.stages.staged_assignment import Staged
from autoddl.planner.whole.assigned import Assigned
from autoddl.planner.whole.one_stage import OneStage
from autoddl.sbp.layout import Layout, Path
from autoddl.sbp.lazy import LazyTuple
from autoddl.sbp.program import Tensor
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.objective import TIME
from autoddl.search.result import SearchResult


def plan_of(
    found: Staged,
    search: SearchReport,
    *,
    baselines: Sequence[Estimate] = (),
    limit: int | None = None,
    duplex: bool = False,
) -> PlanValue:
    """Return the plan of assignments that are cut into stages."""
    problem = found.assigned(0).problem
    return PlanValue(
        program=found.program,
        profile=problem.profile.name,
        parts=tuple(_part(found, stage) for stage in range(found.stages)),
        estimate=found.estimate("plan"),
        search=search,
        baselines=baselines,
        micro_batches=found.micro_batches,
        memory_limit_bytes=limit,
        engine=problem.setting.engine,
        compute_stream=problem.compute_stream,
        duplex=duplex,
        queue=problem.setting.queue,
        orders=found.orders,
    )


def _part(staged: Staged, stage: int) -> Part:
    """Return what the devices of a stage do."""
    problem, layout = staged.assigned(stage).problem, staged.stage_layout(stage)
    return Part(
        mesh=problem.mesh,
        layout=layout,
        ranks=staged.parts[stage].ranks,
        arrivals=tuple(item for item in staged.transfers if item.target == stage),
        recomputed=stage in staged.recomputed,
        in_flight=staged.in_flight[stage],
        work=staged.step.stages[stage] if staged.pipelined else None,
        memory_bytes=staged.memory[stage].total,
        kinds=problem.profile.kinds,
        device_kinds=problem.setting.kinds,
        grouped=problem.setting.prices.grouped(_paths(staged, stage, layout)),
        rows=LazyTuple(partial(module_costs, staged, stage)),
    )


def _paths(staged: Staged, stage: int, layout: Layout) -> Iterator[tuple[Tensor, Path]]:
    """Yield what is moved inside a stage, with its states from that in which it is made or arrives."""
    tensor, begin = staged.program.tensor, dict(staged.made)
    for item in staged.transfers:
        if item.source == stage:
            yield tensor[item.tensor], (begin[item.tensor], *item.path)
    begin |= {
        item.tensor: staged.arrived(item) for item in staged.transfers if item.target == stage
    }
    for move in layout.redistributions:
        yield tensor[move.tensor], (begin[move.tensor], *move.path)


def make_plan(problem: CostNetwork, result: SearchResult) -> PlanValue:
    """Return the plan of a search's result, without baselines."""
    return plan_of(OneStage(Assigned(problem, result.assignment)), report_of(result))


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
