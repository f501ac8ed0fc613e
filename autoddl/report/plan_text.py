"""A plan as text: one row per module, totals, and the baselines beside it."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from autoddl.errors import MOST_SHOWN, one_line
from autoddl.perfmodel.pipeline.schedules import CREDITS, GPIPE, ONE_F_ONE_B
from autoddl.plan.parts import Estimate, ModuleCost
from autoddl.plan.search_report import PlanTrial
from autoddl.plan.value import ROOMY, PlanValue
from autoddl.sbp.program.blocks import pattern
from autoddl.sbp.rewrites.recomputed_layers import layers_again, layers_of, ops_again
from autoddl.sbp.shares import units
from autoddl.units import bytes_text, runs_text, seconds_text

WIDTH = 120
MOST_SIZES = 8  # of gathers that are told, the largest
COUNTED = {
    "time": "a step takes", "sum": "compute + communication take",
    "communication": "communication takes",
}  # fmt: skip


def plan_table(plan: PlanValue) -> str:
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, color_system=None, legacy_windows=False, emoji=False)
    console.print(_modules(plan))
    if plan.pipelined:
        console.print(_stages(plan))
    console.print(comparison(plan))
    if plan.search.trials:
        console.print(trials_table(plan.search.trials))
    if plan.compute_stream:
        console.print(
            "boxings are ops of the compute stream: their results are reused, nothing overlaps"
        )
    if again := _again(plan):
        console.print(again)
    for line in _grouped(plan):
        console.print(line)
    if plan.duplex:
        console.print("the batch goes through the step as two halves in turn, updates come once")
    if over := _undivided(plan):
        which = "which does not divide it" if len(over) == 1 else "none of which divides it"
        axes = shown(" and ".join(over))
        console.print(f"the batch of {_batch(plan)} stays whole over {axes}, {which}")
    found = plan.search
    for cost in found.pins:
        more = plan.estimate.step_s - cost.without_s
        console.print(
            f"{shown(cost.pin)} costs {seconds_text(more)} ({more / cost.without_s:.1%}): without it a "
            f"step takes {seconds_text(cost.without_s)}"
        )
    counted = COUNTED[found.objective]
    console.print(
        f"searched with {shown(found.solver)} (seed {found.seed}) in {found.seconds:.1f} s; "
        f"{counted} at least {seconds_text(found.lower_bound_s)}"
    )
    if found.untried:
        console.print(
            f"no time was left for {found.untried} more (meshes, stages, micro-batches): give a budget "
            "of more seconds"
        )
    return out.getvalue().rstrip()


def _again(plan: PlanValue) -> str:
    """Return what is computed again, and what that takes, "" for nothing."""
    ops, layers = len(ops_again(plan.program)), len(layers_again(plan.program))
    stages = [number for number, part in enumerate(plan.parts) if part.recomputed]
    if ops:
        of = len(layers_of(plan.program))
        text = f"the backward pass runs {ops} ops inside {layers} of {of} layers again"
    elif stages:
        text = f"the backward pass of stages {runs_text(stages)} makes all forward results again"
    else:
        return ""
    for row in plan.baselines:
        if row.name == ROOMY:
            more = plan.estimate.step_s - row.step_s
            text += f": {seconds_text(more)} ({more / row.step_s:.1%}) more per step"
    return text


def _grouped(plan: PlanValue) -> Iterator[str]:
    """Yield over which axis gathers of which sizes are grouped; none of even cuts ever are."""
    for part in plan.parts:
        for number, axis in enumerate(part.mesh.axes):
            sizes = [each.size_bytes for each in part.grouped if each.axis == number]
            told = list(map(bytes_text, sorted(sizes, reverse=True)))
            if told:
                several = ", ".join(told[:MOST_SIZES]) + (", …" if len(told) > MOST_SIZES else "")
                yield shown(
                    f"over {axis} gathers of {several} are grouped, a broadcast from each place; others "
                    "are padded to the largest shard"
                )


def comparison(plan: PlanValue, measured_s: dict[str, float] | None = None) -> Table:
    """Return the plan beside its baselines; `measured_s` adds measured step times by name."""
    table = Table(title=shown(f"predicted per step and device, profile {plan.profile}"))
    waits = any(row.idle_s for row in (plan.estimate, *plan.baselines))
    for name in ("", "step", "compute", "communication", "overlap", "idle", "memory"):
        if name != "idle" or waits:
            table.add_column(name, justify="left" if not name else "right")
    if measured_s is not None:
        table.add_column("measured step", justify="right")
    for row in (plan.estimate, *plan.baselines):
        cells = [
            shown(row.name),
            f"{seconds_text(row.step_s)} ± {row.uncertainty_s / max(row.step_s, 1e-12):.0%}",
            seconds_text(row.compute_s),
            seconds_text(row.communication_s),
            seconds_text(row.overlap_s),
            *([seconds_text(row.idle_s)] if waits else []),
            _memory_text(row, plan.memory_limit_bytes),
        ]
        if measured_s is not None:
            cells.append(seconds_text(measured_s[row.name]) if row.name in measured_s else "-")
        table.add_row(*cells)
    return table


def trials_table(trials: Sequence[PlanTrial]) -> Table:
    """Return a row for each plan that was run: what was predicted and measured, or what went wrong."""
    table = Table(title="plans that were run, seconds of a step")
    table.add_column("plan", overflow="fold")
    for name in ("predicted", "measured", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("note", overflow="fold")
    for each in trials:
        measured = ["-", "-"]
        if each.measured_s is not None:
            ratio = each.measured_s / max(each.predicted_s, 1e-12)
            measured = [seconds_text(each.measured_s), f"{ratio:.2f}"]
        cells = seconds_text(each.predicted_s), *measured
        table.add_row(shown(each.name), *cells, shown(each.note))
    return table


def _stages(plan: PlanValue) -> Table:
    """Return a row per stage: devices, modules, seconds, how long it waits for others."""
    count, known = len(plan.parts), all(part.work is not None for part in plan.parts)
    several = f"{count} stages" if count > 1 else "1 stage"
    title = f"{several}, {plan.micro_batches} micro-batches of {_batch(plan)}"
    table = Table(title=shown(f"{title}{_order_text(plan)}"))
    meshes = {(str(part.mesh), part.kinds) for part in plan.parts}
    unlike = len(meshes) > 1  # else the title above says it
    for name in ("stage", *(["devices"] if unlike else []), "ranks", "modules"):
        table.add_column(name, overflow="fold")
    for name in ("forward", "backward", "once per step", "in flight", "idle", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    timeline = plan.timeline if known else None
    for stage, part in enumerate(plan.parts):
        cells = ["-"] * 5
        if part.work is not None and timeline is not None:
            passes = (part.work.forward, part.work.backward, part.work.once)
            cells = [
                *(seconds_text(sum(s for _, s in each)) for each in passes),
                f"{timeline.in_flight[stage]}",
                f"{timeline.idle[stage]:.0%}",
            ]
        if part.recomputed:
            cells[1] += " (forward again)"
        memory = bytes_text(part.memory_bytes) if part.memory_bytes else "-"
        devices = [shown(" ".join((str(part.mesh), *part.kinds)))] if unlike else []
        span = shown(_span(plan, stage))
        table.add_row(str(stage), *devices, runs_text(part.ranks), span, *cells, memory)
    return table


def _order_text(plan: PlanValue) -> str:
    """Return in which order stages do their tasks."""
    if len(plan.parts) == 1:
        return ""
    if plan.engine.schedule == CREDITS:
        return ", passes as they are ready, within credits"
    known = {GPIPE: "GPipe", ONE_F_ONE_B: "1F1B"}
    return f", in {known.get(plan.order_name, 'an order of their own')}"


def _batch(plan: PlanValue) -> str:
    sizes = {item.shape[0] for item in plan.inputs if item.shape}
    return "/".join(map(str, sorted(sizes))) + " samples"


def _undivided(plan: PlanValue) -> list[str]:
    """Return the mesh axes that divide the batch of no input."""
    batches = {item.shape[0] for item in plan.inputs if item.shape}
    axes = dict.fromkeys(axis for part in plan.parts for axis in part.mesh.axes)
    return [
        str(axis) for axis in axes if batches and all(size % units(axis.cut) for size in batches)
    ]


def _span(plan: PlanValue, stage: int) -> str:
    """Return the first and the last module of a stage, and whether the cut before it is in a module."""
    modules = [
        (op.module, plan.stage_of[op.name])
        for op in plan.program.ops
        if op.phase == "forward" and (op.module or stage == 0)
    ]
    here = [module for module, s in modules if s == stage]
    if not here:
        return ""
    text = here[0] if here[0] == here[-1] else f"{here[0]} … {here[-1]}"
    before = [module for module, s in modules if s == stage - 1]
    inside = before and before[-1] == here[0]
    return f"{text} (cut inside {here[0]})" if inside else text


def _modules(plan: PlanValue) -> Table:
    """Return a row per module, with stages those of one after the other; equal ones of layers once."""
    staged = len(plan.parts) > 1
    where = {
        part.mesh.describe(): f"mesh {part.mesh} {part.mesh.describe()}" for part in plan.parts
    }
    title = f"plan on {' and '.join(where.values())}, costs per module and device"
    table = Table(title=shown(title))
    for name in (*(["stage"] if staged else []), "module", "signature of the main op"):
        table.add_column(name, overflow="fold")
    for name in ("compute", "communication", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    repeats: dict[tuple[str, ...], list[str]] = {}
    for stage, part in enumerate(plan.parts):
        for row in part.rows:
            key = (str(stage), pattern(row.module), *_cells(row))
            repeats.setdefault(key, []).append(row.module)
    for (number, path, *cells), modules in repeats.items():
        name = modules[0] if len(modules) == 1 else f"{path} ×{len(modules)}"
        table.add_row(*([number] if staged else []), shown(name), *cells)
    return table


def shown(text: str, most: int = MOST_SHOWN) -> str:
    """Return a text with names in it as a terminal may get it: no markup, no escape sequences."""
    return escape(one_line(text, most))


def _cells(row: ModuleCost) -> tuple[str, ...]:
    return (
        shown(row.signature),
        seconds_text(row.compute_s),
        seconds_text(row.communication_s),
        bytes_text(row.memory_bytes),
    )


def _memory_text(row: Estimate, limit: int | None) -> str:
    text = bytes_text(row.memory_bytes)
    return f"{text} (does not fit)" if limit is not None and row.counted_bytes > limit else text
