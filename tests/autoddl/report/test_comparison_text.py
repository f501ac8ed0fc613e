"""Texts of comparisons: names put nothing into the terminal, and numbers are those of the values."""

from __future__ import annotations

import random
from dataclasses import replace

from autoddl.compare.plan_diff import PlanSetting
from autoddl.compare.variants import Variant
from autoddl.compare.within_target import Target
from autoddl.report.comparison_text import ShownDiff, ShownFit, ShownRecost, ShownWhatIf
from tests.autoddl.explain.plans import planned
from tests.support.clusters import cluster

ODD = [
    "[red]",
    "[/]",
    "\x1b[31m",
    "\x9b",
    "\u202e",
    "\r\n",
    "\x07",
    "<script>",
    "a" * 300,
    "\ud800",
]


def names(count: int) -> list[str]:
    drawn = random.Random(5)
    return ["x" + "".join(drawn.choices(ODD, k=3)) for _ in range(count)]


def test_hostile_names_put_nothing_into_the_terminal() -> None:
    told = planned("transformer").diff(planned("transformer", search="data parallel"))
    again = planned("transformer").recost(cluster(), again=False)
    for name in names(100):
        row = Variant(name, 4, 8, 1 << 30, 0.5, 1 << 20, 0.1, note=name)
        layer = replace(
            told.layers[0], modules=(name,), first=replace(told.layers[0].first, words=name),
            second=replace(told.layers[0].second, signature=name),
        )  # fmt: skip
        texts = [
            str(ShownDiff((PlanSetting(name, name, name),), (layer,), told.estimates)),
            str(ShownRecost(name, again.before, name, again.now, 1 << 30, None, name, name)),
            str(ShownWhatIf(name, (row, row))),
            str(ShownFit(name, Target(1.0), (row,), row, name)),
        ]
        for text in texts:
            assert text.replace("\n", "").isprintable(), ascii(name)
        plain = texts[2].replace("\n", "")
        assert "[red]" not in name or "[red]" in plain


def test_numbers_are_those_of_the_values() -> None:
    rows = (
        Variant("base", 4, 8, 1 << 30, 0.5, 1 << 20, 0.1),
        Variant("batch 16", 4, 16, 1 << 30, 0.75, 3 << 19, 0.05),
        Variant("memory 1 KiB", 4, 8, 1 << 10, note="does not fit: it needs more"),
    )
    text = str(ShownWhatIf("mesh 4", rows))
    lines = {line.split("│")[1].strip(): line for line in text.splitlines() if line.startswith("│")}
    for cell in ("+50.0%", "750.00 ms", "1.5 MiB", "187.50 ms", "21.3/s", "5.0%", "yes"):
        assert cell in lines["batch 16"], cell
    assert "no" in lines["memory 1 KiB"] and "memory 1 KiB: does not fit: it needs more" in text
    fit = str(ShownFit("the smallest cluster", Target(0.6), rows, rows[0], "2 were not tried"))
    met = [line.split("│")[-2].strip() for line in fit.splitlines() if line.startswith("│")]
    assert met == ["yes", "no", "no"]
    assert "the smallest cluster: base; 2 were not tried" in fit
