"""The page of a plan as HTML: values put into templates, which jinja2 escapes.

    <td>{{ row.name | short }}</td>   of a module "<b>" gives   <td>&lt;b&gt;</td>

Whatever is put in is made printable first, so names bring neither markup nor control characters.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from math import prod
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from autoddl import store
from autoddl.errors import AutoDDLError, printable, shortened
from autoddl.explain.waits import stage_waits
from autoddl.perfmodel.profile import Profile
from autoddl.plan.parts import Estimate
from autoddl.plan.value import PlanValue
from autoddl.report.page import page_charts as charts
from autoddl.report.page.page_values import PageValues, known_values, page_values
from autoddl.sbp.rewrites.recomputed_layers import layers_again, ops_again
from autoddl.units import bytes_text, seconds_text

MOST_NAME = 160  # characters of a name on the page
MOST_ROWS = {"layers": 400, "waits": 14, "sources": 20}


def write(plan: PlanValue, path: str | Path, profile: str | Path | Profile | None = None) -> None:
    """Write the page of a plan.

    Raises:
        AutoDDLError: there is no such profile, or the file can't be written.
    """
    store.write(path, page(plan, profile).encode())


def page(plan: PlanValue, profile: str | Path | Profile | None = None) -> str:
    """Return a plan as one HTML file that needs nothing else."""
    return _html("page.html", _context(page_values(plan, profile)))


def notebook(plan: PlanValue) -> str:
    """Return what a notebook shows of a plan: the first sections, or one line where these fail."""
    try:
        return _html("notebook.html", _context(known_values(plan)))
    except AutoDDLError as error:
        return _html("problem.html", {"problem": str(error)})


def _html(name: str, context: Mapping[str, Any]) -> str:
    return _environment().get_template(name).render(context)


@cache
def _environment() -> Environment:
    folder = resources.files(__package__).joinpath("templates")
    made = Environment(
        autoescape=True, undefined=StrictUndefined, finalize=_final, trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(lambda name: folder.joinpath(name).read_text(encoding="utf-8")),
    )  # fmt: skip
    made.filters |= {
        "seconds": seconds_text, "bytes": bytes_text, "short": _short, "signed": _signed,
        "percent": lambda share: f"{share:.1%}", "place": lambda x: f"{x:.2f}",
    }  # fmt: skip
    return made


def _final(value: Any) -> Any:
    """Return what may be put into the page: of what is no markup of the templates printable text."""
    return value if isinstance(value, Markup) else printable(str(value))


def _short(text: str, most: int = MOST_NAME) -> str:
    return shortened(text, most)


def _signed(seconds: float) -> str:
    return f"{'−' if seconds < 0 else '+'}{seconds_text(abs(seconds))}"


def _context(values: PageValues) -> dict[str, Any]:
    """Return what the templates get: values, and the places of what is drawn."""
    plan = values.plan
    rows = (plan.estimate, *plan.baselines)
    return {
        "v": values, "plan": plan, "facts": _facts(plan), "most": MOST_ROWS, "charts": charts,
        "rows": [_compared(row, bar, plan) for row, bar in zip(rows, charts.bars(rows), strict=True)],
        "tied": {name for name, _ in values.certain.tied},
        "stages": stage_waits(plan),
        "waits": charts.waits_bar(values.waits) if values.waits else (),
        "lanes": charts.lanes(plan, values.timeline) if values.timeline else (),
        "area": _area(values), "scatter": charts.scatter(values.points) if values.points else None,
    }  # fmt: skip


def _area(values: PageValues) -> charts.Area | None:
    plan, course = values.plan, values.memory
    if course is None or not course.total:
        return None
    step, limit = plan.estimate, plan.memory_limit_bytes
    return charts.memory_area(
        course, step.memory_bytes, None if limit is None else int(limit * step.room)
    )


def _compared(row: Estimate, bar: charts.Bar, plan: PlanValue) -> dict[str, Any]:
    """Return a plan or baseline with its bar, and how much longer it takes."""
    limit, step_s = plan.memory_limit_bytes, plan.estimate.step_s
    return {
        "row": row, "bar": bar, "own": row is plan.estimate, "more_s": row.step_s - step_s,
        "share": (row.step_s - step_s) / row.step_s if row.step_s else 0.0,
        "fits": limit is None or row.counted_bytes <= limit,
    }  # fmt: skip


def _facts(plan: PlanValue) -> list[tuple[str, str]]:
    """Return what is planned, and where for, in words."""
    program, found = plan.program, plan.search
    numbers = sum(prod(program.tensor[p.tensor].shape) for p in program.parameters)
    inputs = [f"{i.name} {'×'.join(map(str, i.shape)) or 'scalar'}" for i in plan.inputs]
    more = f" and {len(inputs) - 4} more" if len(inputs) > 4 else ""
    facts = [
        ("Program", f"{len(program.ops):,} ops, {numbers:,} parameters, on {program.device}"),
        ("Inputs of a micro-batch" if plan.micro_batches > 1 else "Inputs",
         ", ".join(_short(text, 80) for text in inputs[:4]) + more),
        ("Devices", f"{plan.devices}: {plan.devices_text}"),
        ("Profile", plan.profile),
        ("Search", f"{found.solver}, seed {found.seed}, {found.seconds:.1f} s; proven: at least "
         f"{seconds_text(found.lower_bound_s)}, so at most {found.gap:.1%} to gain"),
    ]  # fmt: skip
    kinds = sorted({kind for part in plan.parts for kind in part.kinds})
    if kinds:
        facts.insert(3, ("Kinds of devices", ", ".join(kinds)))
    ways = []
    if plan.micro_batches > 1:
        ways.append(f"{plan.micro_batches} micro-batches")
    if plan.duplex:
        ways.append("the batch as two halves in turn")
    if plan.compute_stream:
        ways.append("redistributions on the compute stream, nothing overlaps")
    if again := ops_again(program):
        ways.append(f"{len(again)} ops in {len(layers_again(program))} layers computed again")
    if any(part.recomputed for part in plan.parts):
        ways.append("stages compute forward results again")
    if ways:
        facts.append(("Way of running", "; ".join(ways)))
    return facts
