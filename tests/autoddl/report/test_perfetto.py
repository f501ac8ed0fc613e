"""Traces of plans: what is in the file against the plan's own figures, and the errors."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from autoddl.api import optimize
from autoddl.cli.app import main
from autoddl.errors import AutoDDLError
from tests.support.programs import transformer

MICRO_BATCHES = 4


def pipeline() -> Any:
    return optimize(transformer(), mesh="2", pipeline=2, micro_batches=MICRO_BATCHES)


def spans(path: Path) -> list[dict[str, Any]]:
    return [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]


def test_a_pipeline_has_all_passes_in_order(tmp_path: Path) -> None:
    plan, path = pipeline(), tmp_path / "trace.json"
    plan.trace(path)
    found = spans(path)
    end_s = max(e["ts"] + e["dur"] for e in found) / 1e6
    assert end_s == pytest.approx(plan.estimate.step_s)
    for stage in range(2):
        mine = [e for e in found if e["pid"] == stage and e["tid"] == min(
            e["tid"] for e in found if e["pid"] == stage
        )]  # fmt: skip
        for i in range(MICRO_BATCHES):
            ahead = max(e["ts"] + e["dur"] for e in mine if e["name"] == f"F{i}")
            back = min(e["ts"] for e in mine if e["name"] == f"B{i}")
            assert ahead <= back * (1 + 1e-9)
        ends = sorted((e["ts"], e["ts"] + e["dur"]) for e in mine)
        assert all(a[1] <= b[0] * (1 + 1e-9) for a, b in pairwise(ends))
    assert {e["cat"] for e in found} == {"forward", "backward", "transfer", "once"}


def test_a_pipeline_is_not_priced_again(tmp_path: Path) -> None:
    with pytest.raises(
        AutoDDLError, match="a plan with stages has its seconds in it; leave out the"
    ):
        pipeline().trace(tmp_path / "trace.json", profile="cpu-loopback")


def test_one_stage_has_every_op_once(tmp_path: Path) -> None:
    plan, path = optimize(transformer(), mesh="2x2"), tmp_path / "trace.json"
    plan.trace(path)
    found = spans(path)
    end_s = max(e["ts"] + e["dur"] for e in found) / 1e6
    assert end_s == pytest.approx(plan.estimate.step_s)
    ops = {op.name: op.phase for op in plan.program.ops}
    drawn = [e for e in found if e["name"] in ops]
    assert {e["name"]: e["cat"] for e in drawn} == ops
    assert len(drawn) == len(ops)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, out = pipeline(), tmp_path / "trace.json"
    plan.save(tmp_path / "plan.json")
    assert main(["trace", str(tmp_path / "plan.json"), "-o", str(out)]) == 0
    assert str(out) in capsys.readouterr().out
    plan.trace(tmp_path / "same.json")
    assert out.read_text() == (tmp_path / "same.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.json"], ("none.json", "plan again")),
        (["plan.json", "-o", "no/folder/trace.json"], ("no/folder/trace.json", "give another")),
        (["plan.json", "--profile", "none.json"], ("none.json",)),
        (["plan.json", "--what"], ("--what", "--help")),
        ([], ("PLAN", "--help")),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str],
    words: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    optimize(transformer(), mesh="2").save("plan.json")
    assert main(["trace", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("autoddl trace: ") and said.count("\n") == 1
    assert all(word in said for word in words)


def test_profile_that_is_not_bundled(tmp_path: Path) -> None:
    plan = replace(optimize(transformer(), mesh="2"), profile="mine")
    with pytest.raises(AutoDDLError, match=r"'mine'.*--profile"):
        plan.trace(tmp_path / "trace.json")
