"""An explanation of a plan as text."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import fields

from rich.console import Console
from rich.table import Table

from autoddl.explain.alternatives import Alternative, Why
from autoddl.explain.certainty import Certainty
from autoddl.explain.explanation import Explanation
from autoddl.explain.waits import COMPUTE, StageWait, Waits
from autoddl.explain.why_not import WhyNot
from autoddl.report.plan_text import WIDTH, shown
from autoddl.units import bytes_text, seconds_text

MOST_TEXT = 1000  # characters of a signature with its words
ROUNDING = 1e-9  # relative, of seconds
MOST_ROWS = 12  # of what a step waits for


class Explained(Explanation):
    """An explanation that prints itself."""

    @classmethod
    def of(cls, told: Explanation) -> Explained:
        """Return an explanation with its text."""
        return cls(**{f.name: getattr(told, f.name) for f in fields(told)})

    def __str__(self) -> str:
        return explanation_text(self)


def explanation_text(told: Explanation) -> str:
    """Return an explanation as tables and lines."""
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, color_system=None, legacy_windows=False, emoji=False)
    if told.layers:
        console.print(_layers(told))
    if told.repriced_s is not None:
        console.print(
            shown(
                f"with profile {told.profile} the step takes {seconds_text(told.repriced_s)} now, which "
                "is not what the plan was made for"
            )
        )
    for why in told.whys:
        _print_why(console, why)
    if told.why_not is not None:
        _print_why_not(console, told.why_not)
    if told.stages:
        console.print(_stages(told.stages))
    elif told.waits is not None:
        console.print(_waits(told.waits))
    elif told.layers:
        console.print(
            shown(f"what the step waits for: profile {told.profile} is not bundled; give its file")
        )
    if told.certain is not None:
        for line in _certain(told.certain):
            console.print(shown(line))
    return out.getvalue().rstrip()


def _print_why(console: Console, why: Why) -> None:
    """Print what was chosen, and a row for each other choice."""
    console.print(
        shown(
            f"{why.name}: chosen of {why.choices} is {why.signature}; the step takes "
            f"{seconds_text(why.step_s)}, memory {bytes_text(why.memory_bytes)}",
            MOST_TEXT,
        )
    )
    if why.words:
        console.print(shown(f"in words: {why.words}"))
    if why.others:
        console.print(_alternatives(why.others, why.step_s, why.memory_bytes))
    best_s = min((each.step_s for each in why.others if each.replanned_s), default=why.step_s)
    if best_s < why.step_s * (1 - ROUNDING):
        console.print(
            f"a search around another one found a step {seconds_text(why.step_s - best_s)} shorter than "
            "the plan's: plan again with a larger budget"
        )


def _print_why_not(console: Console, told: WhyNot) -> None:
    """Print the reason, or what it would cost."""
    begin = f"{told.tensor}: is {told.now} in the plan; {told.wanted}"
    if told.cost is None:
        console.print(shown(f"{begin}: {told.reason}", MOST_TEXT))
        return
    console.print(shown(f"{begin} would be possible", MOST_TEXT))
    console.print(_alternatives([told.cost], told.step_s, told.memory_bytes))


def _alternatives(others: Sequence[Alternative], step_s: float, memory_bytes: int) -> Table:
    """Return what choices cost: as differences to the plan."""
    table = Table(
        title="rest fixed: all other ops as they are; re-planned: the best step with this choice"
    )
    table.add_column("other signature, in words", overflow="fold")
    for name in ("rest fixed", "re-planned", "memory (fixed)"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("against it", overflow="fold")
    for each in others:
        again = each.note if each.replanned_s is None else _more(each.replanned_s - step_s)
        table.add_row(
            shown(f"{each.signature}; {each.words}" if each.words else each.signature, MOST_TEXT),
            _more(each.fixed_s - step_s), shown(again),
            _more_bytes(each.fixed_bytes - memory_bytes) + ("" if each.fits else " (does not fit)"),
            shown(f"{each.decides}{', tied' if each.tied else ''}"),
        )  # fmt: skip
    return table


def _layers(told: Explanation) -> Table:
    table = Table(title=shown(f"what each device of {told.devices} does; seconds of all of a row"))
    if told.stages:
        table.add_column("stage")
    for name in ("layer", "main op", "how it is cut"):
        table.add_column(name, overflow="fold")
    for name in ("compute", "comm.", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in told.layers:
        table.add_row(
            *([str(row.stage)] if told.stages else []),
            shown(row.name), shown(row.op_type), shown(row.words), seconds_text(row.compute_s),
            seconds_text(row.communication_s), bytes_text(row.memory_bytes),
        )  # fmt: skip
    return table


def _stages(stages: Sequence[StageWait]) -> Table:
    """Return the seconds of each stage, and how long it waits for the others."""
    table = Table(title="what the step waits for: its stages, seconds of one micro-batch")
    for name in ("stage", "devices"):
        table.add_column(name, overflow="fold")
    for name in ("forward", "backward", "once per step", "in flight", "waits", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in stages:
        passes = [seconds_text(s) for s in each.passes_s] or ["-"] * 3
        table.add_row(
            str(each.number), shown(each.devices), *passes,
            "-" if each.in_flight is None else str(each.in_flight),
            "-" if each.idle is None else f"{each.idle:.1%}", bytes_text(each.memory_bytes),
        )  # fmt: skip
    return table


def _waits(waits: Waits) -> Table:
    """Return the critical path: by link, then by layer, the most seconds first."""
    table = Table(
        title=f"what the step of {seconds_text(waits.step_s)} waits for: its critical path"
    )
    table.add_column("what", overflow="fold")
    for name in ("compute", "communication", "share"):
        table.add_column(name, justify="right", no_wrap=True)

    def row(name: str, compute_s: float, communication_s: float) -> None:
        share = (compute_s + communication_s) / (waits.step_s or 1.0)
        seconds = (seconds_text(s) if s else "-" for s in (compute_s, communication_s))
        table.add_row(shown(name), *seconds, f"{share:.1%}")

    for name, seconds in waits.links:
        row(name, *((seconds, 0.0) if name == COMPUTE else (0.0, seconds)))
    table.add_section()
    for each in waits.layers[:MOST_ROWS]:
        row(each.name, each.compute_s, each.communication_s)
    if rest := waits.layers[MOST_ROWS:]:
        sums = sum(each.compute_s for each in rest), sum(each.communication_s for each in rest)
        row(f"{len(rest)} others", *sums)
    return table


def _certain(told: Certainty) -> list[str]:
    """Return what is certain, line by line."""
    bound = f"no plan of this kind takes less than {seconds_text(told.lower_bound_s)}"
    lines = [
        f"certain: {bound}, so the best one may be up to {told.gap:.1%} shorter; the prediction may be "
        f"off by {seconds_text(told.uncertainty_s)}"
    ]
    for names, what in (
        (told.tied, "tied with this plan (the calibration can't tell which is shorter)"),
        (told.clear, "told apart from this plan"),
    ):
        if names:
            listed = ", ".join(f"{name} ({_more(more_s)})" for name, more_s in names)
            lines.append(f"{what}: {listed}")
    return lines


def _more(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{seconds_text(abs(seconds))}"


def _more_bytes(size: int) -> str:
    return f"{'-' if size < 0 else '+'}{bytes_text(abs(size))}"
