"""`python -m autoddl explain`: its example works, and whatever is wrong is one printable line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import autoddl
from autoddl import json_files
from autoddl.cli.app import main
from autoddl.report.explanation_text import Explained
from autoddl.sbp.program import Program
from tests.autoddl.explain.plans import planned
from tests.support.budgets import LITTLE
from tests.support.clusters import cluster
from tests.support.programs import transformer


def error_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line that a wrong call writes."""
    assert main(["explain", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err[:-1].isprintable()
    return err


@pytest.fixture
def file(tmp_path: Path) -> Path:
    planned("transformer").save(tmp_path / "plan.json")
    cluster().save(tmp_path / "network.json")
    return tmp_path / "plan.json"


def test_without_the_profile_what_needs_none_is_told(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(file)]) == 0
    out = capsys.readouterr().out
    assert "model.blocks.0 … 1.fc1 (2" in out
    assert "profile made-up is not bundled; give its file" in out and "critical path" not in out
    assert main(["explain", str(file), "--profile", str(file.parent / "network.json")]) == 0
    assert "critical path" in capsys.readouterr().out


def test_a_plan_of_another_version(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(file.read_text()) | {"version": 1}
    json_files.write(file, json.dumps(data).encode())
    assert "version 1, this autoddl reads" in error_of([str(file)], capsys)


def test_a_plan_with_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned("transformer", mesh="2", pipeline=2, micro_batches=4).save(tmp_path / "plan.json")
    file = str(tmp_path / "plan.json")
    assert "2 stages and 4 micro-batches" in error_of([file, "--why", "model.head"], capsys)
    assert main(["explain", file]) == 0
    assert "what the step waits for: its stages" in capsys.readouterr().out


def test_names_put_nothing_into_the_terminal(tmp_path: Path) -> None:
    """Markup is no markup; control characters, which files can't have, are shown as what they are."""
    data = json.loads(json.dumps(transformer(layers=1).to_json()).replace("fc1", "[red]f[/]"))
    plan = autoddl.optimize(Program.from_json(data), mesh="2", profile=cluster(), budget=LITTLE)
    told = plan.explain(profile=cluster())
    assert "model.blocks.0.[red]f[/]" in str(told)
    rows = [replace(row, modules=("a\x1b[31m\u202eb\n",), words="\x07") for row in told.layers]
    certain = replace(told.certain, tied=(("\x1b]0;x\x07", 1.0),)) if told.certain else None
    text = str(Explained.of(replace(told, layers=tuple(rows), certain=certain, devices="\x1b[1m")))
    assert "a\\x1b[31m\\u202eb\\n" in text
    assert text.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--why model.fc", "'model.fc' is no module, op or tensor of the program; nearest are "),
        ("--why-not S0", "of what? give a module or tensor with why"),
        ("--why model.head --why-not T", "state 'T'"),
        ("--why model.head --budget -1", "Invalid value for '--budget'"),
        ("--why model.head --budget nan", "Invalid value for '--budget'"),
        ("--why model.head --profile missing.json", "no such file and no bundled profile"),
    ],
)
def test_what_is_wrong_is_one_line(
    words: str, expected: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = [] if "--profile" in words else ["--profile", str(file.parent / "network.json")]
    assert expected in error_of([str(file), *network, *words.split()], capsys)


def test_seconds_need_the_profile(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = error_of([str(file), "--why", "model.head"], capsys)
    assert "the plan was made with profile 'made-up', which is not bundled; give its file" in error


def test_another_profile_is_told(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow, own = file.parent / "slow.json", file.parent / "network.json"
    cluster(overhead_s=1e-4).save(slow)
    for why in ([], ["--why", "model.head", "--budget", "0"]):
        for profile, told in ((own, False), (slow, True)):
            assert main(["explain", str(file), "--profile", str(profile), *why]) == 0
            assert (
                "which is not what the plan" in capsys.readouterr().out.replace("\n", " ")
            ) == told
