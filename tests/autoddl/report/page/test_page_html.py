"""Pages of plans: their numbers against the plan, its explanation and its timeline, from the HTML."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from autoddl.api import Plan, load, optimize
from autoddl.errors import AutoDDLError
from autoddl.report.page.page_html import page
from autoddl.units import bytes_text, seconds_text
from tests.autoddl.explain.plans import PROGRAMS, planned, profile_for
from tests.support.budgets import LITTLE
from tests.support.clusters import cluster, of_two_kinds
from tests.support.pages import SECTIONS, Page
from tests.support.programs import transformer

NAMES = ("mlp", "cuda")


@cache
def text_of(name: str) -> str:
    return page(planned(name), profile_for(name))


@cache
def read(name: str) -> Page:
    return Page(text_of(name))


def staged(**options: Any) -> Plan:
    return optimize(transformer(), mesh="2", pipeline=2, micro_batches=4, budget=LITTLE, **options)


def of_kinds() -> Plan:
    profile = of_two_kinds(cluster())
    cluster_text = "1*fastx2 + 1*slowx2"
    return optimize(transformer(), cluster=cluster_text, profile=profile, budget=LITTLE)


def halves() -> Plan:
    return optimize(transformer(), mesh="2x2", duplex=True, budget=LITTLE)


OTHERS = {
    "stages": staged, "kinds": of_kinds, "halves": halves, "unknown": lambda: planned("mlp"),
    "by hand": lambda: replace(planned("mlp"), baselines=()),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_step_its_parts_and_memory_are_those_of_the_estimate(name: str) -> None:
    told, row = read(name).text("summary"), planned(name).estimate
    assert f"{seconds_text(row.step_s)} predicted step, ± {seconds_text(row.uncertainty_s)}" in told
    assert f"{bytes_text(row.memory_bytes)} memory of the device" in told
    assert f"{seconds_text(row.compute_s)} compute" in told
    assert f"{seconds_text(row.communication_s)} communication" in told


@pytest.mark.parametrize("name", NAMES)
def test_each_baseline_has_its_row_bar_and_gain(name: str) -> None:
    plan, found = planned(name), read(name)
    (table,) = found.tables["baselines"]
    rows = [plan.estimate, *plan.baselines]
    assert table.column("Plan") == [row.name for row in rows]
    wanted = [f"{seconds_text(r.step_s)} ± {seconds_text(r.uncertainty_s)}" for r in rows]
    assert table.column("Seconds") == wanted
    assert table.column("Memory") == [bytes_text(row.memory_bytes) for row in rows]
    told = plan.explain(profile=profile_for(name)).certain
    assert told is not None
    for row, cell in zip(plan.baselines, table.column("Beside the plan")[1:], strict=True):
        assert cell.endswith("tied" if row.name in dict(told.tied) else "clear")
    text = text_of(name)
    part = text[text.index('id="baselines"') : text.index('id="pareto"')]
    widths = [float(w) for w in re.findall(r'<rect class="fill-[^>]*width="([\d.]+)%"', part)]
    scale = max(row.step_s + row.uncertainty_s for row in rows) / 100
    assert widths == pytest.approx([row.step_s / scale for row in rows], abs=0.01)
    summary = found.text("summary")
    for row in plan.baselines:
        if row.step_s > plan.estimate.step_s:
            share = (row.step_s - plan.estimate.step_s) / row.step_s
            assert f"{share:.1%} shorter than {row.name}" in summary


@pytest.mark.parametrize("name", NAMES)
def test_layers_and_waits_are_those_of_explain(name: str) -> None:
    found, told = read(name), planned(name).explain(profile=profile_for(name))
    (layers,) = found.tables["layers"]
    assert layers.column("Layer") == [row.name for row in told.layers]
    assert layers.column("How it is cut") == [row.words for row in told.layers]
    assert layers.column("Compute") == [seconds_text(row.compute_s) for row in told.layers]
    assert layers.column("Memory") == [bytes_text(row.memory_bytes) for row in told.layers]
    assert told.waits is not None
    text = found.text("time")
    for link, seconds in told.waits.links:
        assert seconds == 0 or f"{link}: {seconds_text(seconds)}, " in text
    (waits,) = found.tables["time"]
    for row, cells in zip(told.waits.layers, waits.rows, strict=False):
        shown = [seconds_text(s) for s in (row.compute_s, row.communication_s)]
        assert cells == [row.name, *shown, f"{row.seconds / told.waits.step_s:.1%}"]


def drawn(d: str) -> float:
    """Return how much of the width the boxes of a path take, in thousandths."""
    return sum(float(width) for width in re.findall(r"h([\d.]+)v", d))


@pytest.mark.parametrize("name", NAMES)
def test_lanes_are_as_busy_as_the_timeline_of_the_trace(name: str, tmp_path: Path) -> None:
    plan, text = planned(name), text_of(name)
    plan.trace(tmp_path / "trace.json", profile=profile_for(name))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    lanes = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    busy = dict.fromkeys(lanes.values(), 0.0)
    for event in (e for e in events if e["ph"] == "X"):
        busy[lanes[event["tid"]]] += event["dur"] / 1e6
    part = text[text.index('id="timeline"') : text.index('id="sensitivity"')]
    for lane, seconds in busy.items():
        title = lane if lane == "compute" else f"links: {lane}"
        (figure,) = re.findall(rf"<title>{title}</title>(.*?)</svg>\s*</svg>", part, re.DOTALL)
        share = seconds / plan.estimate.step_s
        assert f"busy {share:.1%} of the step" in figure
        paths = re.findall(r' d="([^"]*)"', figure)
        boxes = sum(path.count("M") for path in paths)
        assert sum(map(drawn, paths)) == pytest.approx(1000 * share, abs=0.5 * boxes + 2)


@pytest.mark.parametrize("name", NAMES)
def test_the_errors_of_its_sources_add_up_to_that_of_the_plan(name: str) -> None:
    plan = planned(name)
    (table,) = read(name).tables["calibration"]
    units = {"µs": 1e-6, "ms": 1e-3, "s": 1.0}

    def seconds(cell: str) -> float:
        number, unit = cell.split()
        return float(number) * units[unit]

    total = sum(map(seconds, table.column("Seconds of the step")))
    assert total <= plan.estimate.compute_s + plan.estimate.communication_s + 1e-5
    squares = sum(seconds(cell) ** 2 for cell in table.column("May be off by"))
    assert squares**0.5 <= plan.estimate.uncertainty_s * 1.01 + 1e-5


@pytest.mark.parametrize("name", OTHERS)
def test_other_plans_have_every_section_and_reasons(name: str) -> None:
    plan = OTHERS[name]()
    found = Page(page(plan))
    assert [dict(attrs)["id"] for tag, attrs in found.elements if tag == "section"] == [*SECTIONS]
    assert found.open == [] and found.declared == ["DOCTYPE html"]
    reasons = [a for a in found.attributes("p") if a.get("class") == "missing"]
    wanted = {"stages": 4, "kinds": 4 if plan.pipelined else 0, "halves": 0, "unknown": 4}
    assert len(reasons) == wanted.get(name, 4)
    for part in plan.parts if plan.pipelined else ():
        assert bytes_text(part.memory_bytes) in found.text("memory")
    if name == "stages":
        idle = [f"{share:.1%}" for share in plan.timeline.idle]
        assert found.tables["time"][0].column("Idle") == idle
        lanes = [title for title in found.words["timeline"] if title.strip().startswith("stage ")]
        assert {title.strip() for title in lanes} == {"stage 0", "stage 1"}


@pytest.mark.parametrize("name", ["unknown", "stages"])
def test_it_needs_nothing_from_elsewhere(name: str) -> None:
    text = page(OTHERS[name]())
    found = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "image", "use"} & {
        tag for tag, _ in found.elements
    }
    names = {key for _, attrs in found.elements for key, _ in attrs}
    assert not {"src", "xlink:href", "style"} & names
    assert all((a["href"] or "").startswith("#") for a in found.attributes("a"))
    assert "@import" not in text and set(re.findall(r"url\((.)", text)) == {"#"}
    for tag, attrs in found.elements:
        if tag == "svg" and dict(attrs).get("role") == "img":
            assert dict(attrs).keys() >= {"width", "height"}
    for table in re.findall(r"<table.*?</table>", text, re.DOTALL):
        assert '<th scope="col"' in table and '<th scope="row"' in table


def test_the_same_from_its_file_and_twice(tmp_path: Path) -> None:
    plan = planned("mlp")
    plan.save(tmp_path / "plan.json")
    again = load(tmp_path / "plan.json")
    again.report(tmp_path / "plan.html", profile=cluster())
    assert (tmp_path / "plan.html").read_text() == text_of("mlp")


def test_a_page_may_not_be_written(tmp_path: Path) -> None:
    with pytest.raises(AutoDDLError, match="output file"):
        planned("mlp").report(tmp_path)
    with pytest.raises(AutoDDLError, match="leave out the profile"):
        staged().report(tmp_path / "plan.html", profile="h100")
    with pytest.raises(AutoDDLError, match="profile"):
        planned("mlp").report(tmp_path / "plan.html", profile=str(tmp_path / "missing.json"))
    assert not list(tmp_path.iterdir())


def test_prices_that_have_changed_are_told() -> None:
    slower = cluster(overhead_s=1e-4)
    found = Page(page(planned("mlp"), slower))
    assert "which is not what the plan was made for" in found.text("summary")
    assert "which is not what" not in read("mlp").text("summary")


@pytest.mark.parametrize("name", PROGRAMS)
def test_notebooks_show_the_first_sections(name: str) -> None:
    plan = planned(name)
    found = Page(plan._repr_html_() or "")
    assert {dict(a)["id"] for tag, a in found.elements if tag == "section"} == {
        "summary", "layers", "baselines",
    }  # fmt: skip
    assert seconds_text(plan.estimate.step_s) in found.text("summary")


def test_notebooks_get_no_error() -> None:
    broken = Plan.of(replace(planned("mlp"), parts=()))
    assert broken._repr_html_() is None
    assert "2 stages" in (staged()._repr_html_() or "")
    assert (Plan.of(replace(planned("mlp"), search=None))._repr_html_()) is None  # type: ignore[arg-type]
