"""Comparisons of plans as text: what differs, what costs what elsewhere, variants, what fits."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import fields

from rich.console import Console
from rich.table import Table

from autoddl.compare.plan_diff import LayerDiff, LayerSide, PlanDiff
from autoddl.compare.recosted import Recost
from autoddl.compare.variants import Variant, WhatIf
from autoddl.compare.within_target import Fit
from autoddl.plan.parts import Estimate
from autoddl.report.plan_text import WIDTH, shown
from autoddl.units import bytes_text, seconds_text

SAME = "the plans are the same"
MOST_TEXT = 1000  # characters of words, signatures and reasons


class ShownDiff(PlanDiff):
    """A difference that prints itself."""

    @classmethod
    def of(cls, told: PlanDiff) -> ShownDiff:
        """Return a difference with its text."""
        return cls(**{f.name: getattr(told, f.name) for f in fields(told)})

    def __str__(self) -> str:
        return _written(lambda console: _print_diff(console, self))


class ShownRecost(Recost):
    """New costs of a plan that print themselves."""

    @classmethod
    def of(cls, told: Recost) -> ShownRecost:
        """Return new costs with their text."""
        return cls(**{f.name: getattr(told, f.name) for f in fields(told)})

    def __str__(self) -> str:
        return _written(lambda console: _print_recost(console, self))


class ShownWhatIf(WhatIf):
    """Variants that print themselves."""

    @classmethod
    def of(cls, told: WhatIf) -> ShownWhatIf:
        """Return variants with their text."""
        return cls(**{f.name: getattr(told, f.name) for f in fields(told)})

    def __str__(self) -> str:
        return _written(lambda console: _print_what_if(console, self))


class ShownFit(Fit):
    """What fits, which prints itself."""

    @classmethod
    def of(cls, told: Fit) -> ShownFit:
        """Return what fits with its text."""
        return cls(**{f.name: getattr(told, f.name) for f in fields(told)})

    def __str__(self) -> str:
        return _written(lambda console: _print_fit(console, self))


def _written(write: Callable[[Console], None]) -> str:
    """Return what is written to a console without colours."""
    out = io.StringIO()
    write(Console(file=out, width=WIDTH, color_system=None, legacy_windows=False))
    return out.getvalue().rstrip()


def _table(title: str, *names: str, left: int = 1) -> Table:
    """Return a table whose first columns hold text, the others numbers."""
    table = Table(title=shown(title, MOST_TEXT))
    for number, name in enumerate(names):
        if number < left:
            table.add_column(name, overflow="fold")
        else:
            table.add_column(name, justify="right", no_wrap=True)
    return table


# --- diff ------------------------------------------------------------------------------------


def _print_diff(console: Console, told: PlanDiff) -> None:
    if told.is_empty:
        console.print(SAME)
        return
    if told.settings:
        table = _table("what the plans are made for and how", "", "first", "second", left=3)
        for each in told.settings:
            table.add_row(
                *(shown(text, MOST_TEXT) for text in (each.name, each.first, each.second))
            )
        console.print(table)
    if told.layers:
        table = _table(
            "layers whose states differ; seconds and bytes of all of a row",
            "layer", "first", "second", "compute", "comm.", "memory", left=3,
        )  # fmt: skip
        for layer in told.layers:
            table.add_row(shown(layer.name), *_sides(layer), *_costs(layer.first, layer.second))
        console.print(table)
    else:
        console.print("no op has other states")
    table = _table(
        "predicted per step and device", "", "step", "compute", "communication", "memory"
    )
    for name, row in zip(("first", "second"), told.estimates, strict=True):
        table.add_row(name, *_estimate(row))
    console.print(table)


def _sides(layer: LayerDiff) -> list[str]:
    """Return what both plans do, in words; with the states where the words are the same."""
    alike = layer.first.words == layer.second.words
    found = []
    for side in (layer.first, layer.second):
        text = f"{side.words}; {side.signature}" if alike else side.words or side.signature
        found.append(shown(text, MOST_TEXT))
    more = layer.ops - 1
    if more > 0:
        found[1] += f" (and {more} other ops)" if more > 1 else " (and another op)"
    return found


def _costs(first: LayerSide, second: LayerSide) -> list[str]:
    pairs = (
        (first.compute_s, second.compute_s, seconds_text),
        (first.communication_s, second.communication_s, seconds_text),
        (first.memory_bytes, second.memory_bytes, bytes_text),
    )
    return [told(a) if a == b else f"{told(a)}\n→ {told(b)}" for a, b, told in pairs]


def _estimate(row: Estimate) -> list[str]:
    return [
        f"{seconds_text(row.step_s)} ± {row.uncertainty_s / max(row.step_s, 1e-12):.0%}",
        seconds_text(row.compute_s), seconds_text(row.communication_s), bytes_text(row.memory_bytes),
    ]  # fmt: skip


# --- recost ----------------------------------------------------------------------------------


def _print_recost(console: Console, told: Recost) -> None:
    table = _table(
        "the plan with both profiles, per step and device",
        "profile", "step", "compute", "communication", "memory",
    )  # fmt: skip
    table.add_row(shown(f"{told.before_profile} (as planned)"), *_estimate(told.before))
    table.add_row(shown(told.profile), *_estimate(told.now))
    if told.again is not None:
        table.add_row("planned again", *_estimate(told.again.estimate))
    console.print(table)
    room = bytes_text(told.limit_bytes)
    fits = "fits into" if told.fits else "does not fit into"
    console.print(f"the plan {fits} the {room} of a device")
    if told.again is not None:
        console.print(shown(f"planning again {_gain(told)}", MOST_TEXT))
    elif told.note:
        console.print(shown(f"not planned again: {told.note}", MOST_TEXT))


def _gain(told: Recost) -> str:
    gain = told.gain
    if told.again is None or gain is None or not told.fits:
        return f"makes it fit: {told.difference}"
    now_s = told.again.estimate.step_s
    if gain <= 0:
        return "finds nothing shorter within the budget: keep the plan, or give a larger one"
    spared = seconds_text(told.now.step_s - now_s)
    return f"spares {spared} of a step ({gain:.1%}): {told.difference}"


# --- what if, fit ----------------------------------------------------------------------------

_COLUMNS = "step", "memory", "device x step", "throughput", "gap"


def _print_what_if(console: Console, told: WhatIf) -> None:
    table = _table(f"base: {told.about}", "variant", "change", *_COLUMNS, "fits")
    for variant in told.variants:
        change = told.change(variant)
        more = "-" if change is None or variant is told.variants[0] else f"{change:+.1%}"
        fits = "yes" if variant.step_s is not None else "no"
        table.add_row(shown(variant.name), more, *_cells(variant), fits)
    console.print(table)
    console.print("change is that of the step; device x step is for each sample, over all devices")
    _print_notes(console, told.variants)


def _print_fit(console: Console, told: Fit) -> None:
    table = _table(f"{told.what} for {told.target}", "tried", *_COLUMNS, "meets it")
    for variant in told.tried:
        met = "yes" if told.target.met(variant) else "no"
        table.add_row(shown(variant.name), *_cells(variant), met)
    console.print(table)
    found = "none of these meets it" if told.best is None else f"{told.what}: {told.best.name}"
    console.print(shown(f"{found}; {told.note}"))
    _print_notes(console, told.tried)


def _cells(variant: Variant) -> list[str]:
    """Return a variant's step, memory, price of a sample, throughput and gap."""
    step_s, memory, gap = variant.step_s, variant.memory_bytes, variant.gap
    if step_s is None or memory is None or gap is None:
        return ["-"] * len(_COLUMNS)
    price_s, rate = variant.device_s_per_sample, variant.samples_per_s
    return [
        seconds_text(step_s), bytes_text(memory), "-" if price_s is None else seconds_text(price_s),
        "-" if rate is None else _rate(rate), f"{gap:.1%}",
    ]  # fmt: skip


def _rate(samples_per_s: float) -> str:
    digits = ",.0f" if samples_per_s >= 100 else ".3g"
    return f"{samples_per_s:{digits}}/s"


def _print_notes(console: Console, variants: tuple[Variant, ...]) -> None:
    """Print why some have no plan."""
    for variant in variants:
        if variant.note:
            console.print(shown(f"{variant.name}: {variant.note}", MOST_TEXT))
