"""Printed plans: what they look like, and that their rows add up to the estimate."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import autoddl
from autoddl.api import Plan
from autoddl.plan.search_report import PlanTrial
from tests.support.clusters import cluster
from tests.support.pipelines import once_s, pass_s
from tests.support.programs import transformer

HERE = Path(__file__).parent
CASES: dict[str, dict[str, Any]] = {
    "one_stage": {"mesh": "2x2", "search": "Megatron"},
    "stages": {"mesh": "2", "pipeline": 2, "micro_batches": 4},
    "recomputed": {"mesh": "1", "pipeline": 4, "micro_batches": 8, "memory": 200_000},
    "accumulated": {"mesh": "2", "pipeline": 1, "micro_batches": 4},
    "compute_stream": {
        "mesh": "2x2",
        "search": "Megatron",
        "compute_stream": True,
        "device": "cuda",
    },
}


@cache
def planned(name: str) -> Plan:
    options = dict(CASES[name])
    program = replace(transformer(layers=2), device=options.pop("device", "cpu"))
    return autoddl.optimize(program, profile=cluster(), budget=60.0, **options)


@pytest.mark.parametrize("name", CASES)
def test_text(name: str) -> None:
    """After a change that is meant: write the files again with `python -m tests.autoddl.report…`."""
    text = re.sub(r"in \d+\.\d s;", "in SECONDS;", str(planned(name)))
    assert text == (HERE / f"{name}.txt").read_text().rstrip("\n")


@pytest.mark.parametrize("name", CASES)
def test_rows_add_up_to_the_estimate(name: str) -> None:
    """Of the busiest stage, which the estimate tells of; on streams of their own boxings overlap."""
    plan = planned(name)
    sums = [
        (sum(r.compute_s for r in part.rows), sum(r.communication_s for r in part.rows))
        for part in plan.parts
    ]
    row = plan.estimate
    assert max(sums, key=sum) == pytest.approx((row.compute_s, row.communication_s))
    for part, (compute_s, communication_s) in zip(plan.parts, sums, strict=True):
        assert 0 < sum(r.memory_bytes for r in part.rows) <= part.memory_bytes
        if plan.pipelined:  # what the simulation of the step is made of
            assert part.work is not None
            step_s = plan.micro_batches * pass_s(part.work) + once_s(part.work)
            assert compute_s + communication_s == pytest.approx(step_s)


def test_stages_have_the_rows_of_their_own_modules() -> None:
    plan = planned("stages")
    for stage, part in enumerate(plan.parts):
        ops = [op for op in plan.program.ops if plan.stage_of[op.name] == stage]
        modules = {op.module for op in ops if op.phase == "forward"}
        assert modules <= {row.module.replace("(graph)", "") for row in part.rows}
        assert all(row.compute_s > 0 or row.memory_bytes > 0 for row in part.rows)


def test_what_is_run_again_is_told() -> None:
    plan = planned("recomputed")
    assert any(part.recomputed for part in plan.parts)
    assert str(plan).count("(forward again)") == sum(part.recomputed for part in plan.parts)


if __name__ == "__main__":
    for case in CASES:
        found = re.sub(r"in \d+\.\d s;", "in SECONDS;", str(planned(case)))
        (HERE / f"{case}.txt").write_text(found + "\n")


def test_trials_are_told() -> None:
    plan = planned("one_stage")
    good, dead = (
        PlanTrial("a1", "mesh 2", 0.002, 0.003),
        PlanTrial("b2", "mesh 4", 0.001, note="it died"),
    )
    tried = replace(plan, search=replace(plan.search, trials=(good, dead)))
    rows = [re.findall(r"[^│]+", line) for line in str(tried).splitlines() if "│ mesh" in line]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["mesh 2", "2.00 ms", "3.00 ms", "1.50", ""],
        ["mesh 4", "1.00 ms", "-", "-", "it died"],
    ]


def test_what_there_was_no_time_for_is_told() -> None:
    plan = planned("one_stage")
    assert "no time was left" not in str(plan)
    late = replace(plan, search=replace(plan.search, untried=3))
    assert "no time was left for 3 more" in str(late)


def test_brackets_in_names_of_a_file_are_no_markup() -> None:
    plan = replace(planned("one_stage"), profile="[/mine]", baselines=())
    plan = replace(plan, estimate=replace(plan.estimate, name="[red]plan"))
    assert "profile [/mine]" in str(plan) and "[red]plan" in str(plan)


@pytest.mark.parametrize(
    "name", ["\x1b[31mred", "two\nlines", "\u202eturned", "[red]x[/red]", "\x00"]
)
def test_names_reach_the_terminal_as_text(name: str) -> None:
    """A captured model's modules may have any names; files with such are refused."""
    program = transformer(layers=1)
    ops = tuple(replace(op, module=op.module.replace("fc1", name)) for op in program.ops)
    plan = autoddl.optimize(replace(program, ops=ops), mesh="2", search="data parallel")
    text = str(plan)
    assert text.replace("\n", "").isprintable()
    assert name.encode("unicode_escape").decode() in text
