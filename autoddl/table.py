"""A plan as text: one row per module, totals, and the baselines beside it."""

from __future__ import annotations

import io
from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from autoddl.plan import Estimate, Layer, Plan
from autoddl.sbp.program import Program

WIDTH = 120


def plan_table(plan: Plan) -> str:
    """Return the printable form of a plan."""
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, color_system=None, legacy_windows=False)
    console.print(_layers(plan))
    if plan.pipeline is not None:
        console.print(_stages(plan))
    console.print(comparison(plan))
    if plan.compute_stream:
        console.print(
            "boxings are ops of the compute stream: their results are reused, nothing overlaps"
        )
    found = plan.search
    if found:
        only = found.get("objective") == "communication"
        counted = "communication takes" if only else "compute + communication take"
        console.print(
            f"searched with {found['solver']} (seed {found['seed']}) in {found['seconds']:.1f} s; "
            f"{counted} at least {seconds_text(found['lower_bound_s'])}"
        )
    return out.getvalue().rstrip()


def comparison(plan: Plan, measured_s: dict[str, float] | None = None) -> Table:
    """Return the plan beside its baselines; `measured_s` adds measured step times by name."""
    table = Table(title=f"predicted per step and device, profile {plan.profile}")
    waits = any(row.idle_s for row in (plan.estimate, *plan.baselines))
    for name in ("", "step", "compute", "communication", "overlap", "idle", "memory"):
        if name != "idle" or waits:
            table.add_column(name, justify="left" if not name else "right")
    if measured_s is not None:
        table.add_column("measured step", justify="right")
    for row in (plan.estimate, *plan.baselines):
        cells = [
            row.name,
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


def _stages(plan: Plan) -> Table:
    """Return a row per stage: devices, modules, seconds, how long it waits for others."""
    pipeline, program = plan.pipeline, plan.program
    assert pipeline is not None
    several = f"{pipeline.stages} stages" if pipeline.stages > 1 else "1 stage"
    title = f"{several}, {pipeline.micro_batches} micro-batches of {_batch(plan)}"
    table = Table(title=escape(title))
    for name in ("stage", "ranks", "modules"):
        table.add_column(name, overflow="fold")
    for name in ("forward", "backward", "once per step", "in flight", "idle", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    step = pipeline.step
    timeline = None if step is None else pipeline.timeline
    for stage in range(pipeline.stages):
        first = stage * plan.mesh.size
        cells = ["-"] * 5
        if step is not None and timeline is not None:
            work = step.stages[stage]
            parts = [sum(s for _, s in p) for p in (work.forward, work.backward, work.once)]
            cells = [
                *map(seconds_text, parts), f"{timeline.in_flight[stage]}",
                f"{timeline.idle[stage]:.0%}",
            ]  # fmt: skip
        if stage in pipeline.recomputed:
            cells[1] += " (forward again)"
        memory = bytes_text(pipeline.memory_bytes[stage]) if pipeline.memory_bytes else "-"
        names = "" if program is None else _span(program, pipeline.stage_of, stage)
        ranks = f"{first}" if plan.mesh.size == 1 else f"{first}-{first + plan.mesh.size - 1}"
        table.add_row(str(stage), ranks, escape(names), *cells, memory)
    return table


def _batch(plan: Plan) -> str:
    sizes = {item.shape[0] for item in plan.inputs if item.shape}
    return "/".join(map(str, sorted(sizes))) + " samples"


def _span(program: Program, stage_of: Mapping[str, int], stage: int) -> str:
    """Return the first and the last module of a stage, and whether the cut before it is in a module."""
    modules = [
        (op.module, stage_of[op.name])
        for op in program.ops
        if op.phase == "forward" and (op.module or stage == 0)
    ]
    here = [module for module, s in modules if s == stage]
    if not here:
        return ""
    text = here[0] if here[0] == here[-1] else f"{here[0]} … {here[-1]}"
    before = [module for module, s in modules if s == stage - 1]
    inside = before and before[-1] == here[0]
    return f"{text} (cut inside {here[0]})" if inside else text


def _layers(plan: Plan) -> Table:
    title = f"plan on mesh {plan.mesh} {plan.mesh.describe()}, costs per module and device"
    table = Table(title=escape(title))
    for name in ("module", "signature of the main op"):
        table.add_column(name, overflow="fold")
    for name in ("compute", "communication", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    repeats: dict[tuple[str, ...], list[str]] = {}
    for layer in plan.layers:
        repeats.setdefault((_pattern(layer.module), *_cells(layer)), []).append(layer.module)
    for (pattern, *cells), modules in repeats.items():
        name = modules[0] if len(modules) == 1 else f"{pattern} ×{len(modules)}"
        table.add_row(escape(name), *cells)
    return table


def _pattern(module: str) -> str:
    """Return a module path with every layer number replaced by "*"."""
    return ".".join("*" if part.isdigit() else part for part in module.split("."))


def _cells(layer: Layer) -> tuple[str, ...]:
    return (
        layer.signature,
        seconds_text(layer.compute_s),
        seconds_text(layer.communication_s),
        bytes_text(layer.memory_bytes),
    )


def _memory_text(row: Estimate, limit: int | None) -> str:
    text = bytes_text(row.memory_bytes)
    return f"{text} (does not fit)" if limit is not None and row.memory_bytes > limit else text


def seconds_text(seconds: float) -> str:
    """Return seconds with a fitting unit: "1.50 s", "12.3 ms", "4.5 µs"."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return (
        f"{seconds * 1e3:.2f} ms" if seconds >= 1e-4 or seconds == 0 else f"{seconds * 1e6:.1f} µs"
    )


def bytes_text(size: float) -> str:
    """Return bytes with a binary unit: "3.5 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError
