"""The scripts of examples/: the commands of their docstrings run, on toy sizes."""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

import autoddl
from autoddl.checkpoint import sharded_files
from autoddl.sbp.rules import registry
from tests.support.doc_pages import README, ROOT
from tests.support.on_ranks import RankGroups
from tests.support.programs import mlp

FOLDER = ROOT / "examples"
IN_FOLDER = """
import os, runpy, sys
os.chdir(sys.argv[1])
runpy.run_path(sys.argv[2], run_name="__main__")
"""
RUN = re.compile(r"python -m autoddl run --nproc-per-node (\d+) (examples/\w+\.py)")
SOONER = "budget=20", "budget=1"  # seconds that searches may take
ELSEWHERE = {"own_model", "gpt"}  # with the commands of the README: tests/test_readme.py


def saved(folder: Path, told: str) -> None:
    assert sharded_files.read_index(folder / "checkpoint").facts.steps == 40  # 20 on 4, 20 on 2


def staged(folder: Path, told: str) -> None:
    assert len((folder / "trace.json").read_text()) > 1000


def on_three_sizes(folder: Path, told: str) -> None:
    assert [line.partition(":")[0] for line in told.splitlines()] == ["1x8", "2x8", "4x8"]
    assert autoddl.load(folder / "plan-4x8.json").devices == 32


def on_both_kinds(folder: Path, told: str) -> None:
    kinds = {kind for part in autoddl.load(folder / "mixed_plan.json").parts for kind in part.kinds}
    assert kinds == {"a100", "h100"} and "data parallel" in told


def with_a_rule(folder: Path, told: str) -> None:
    refused, _, plan = told.partition("\n")
    assert refused.startswith("op types without a rule: mish (1), mish_grad (1)")
    assert re.search(r"mish: \(S\d", plan)


SHOWN: dict[str, Callable[[Path, str], None]] = {
    "checkpoint": saved,
    "pipeline": staged,
    "laptop": on_three_sizes,
    "mixed_cluster": on_both_kinds,
    "own_rule": with_a_rule,
}
"""Of each example what checks the files that it leaves, and what it prints where no ranks run."""
MARKS = {
    "checkpoint": (pytest.mark.oneflow, pytest.mark.ranks),
    "pipeline": (pytest.mark.oneflow, pytest.mark.ranks),
    "own_rule": (pytest.mark.oneflow,),
}


def commands(name: str) -> list[str]:
    """Return the commands that the docstring of an example names."""
    told = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text()))
    assert told is not None
    return [line for line in told.splitlines() if line.startswith("python ")]


def test_all_examples_are_run_and_named_in_the_readme() -> None:
    names = {path.stem for path in FOLDER.glob("*.py")}
    assert names == SHOWN.keys() | ELSEWHERE
    for name in names:
        assert commands(name) and f"examples/{name}.py" in README.read_text()


@pytest.mark.parametrize("name", [pytest.param(n, marks=MARKS.get(n, ())) for n in SHOWN])
def test_the_example_runs(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    mlp(64, (512,) * 3).save("gpt.json")
    for line in commands(name):
        if ranks := RUN.fullmatch(line):
            on_ranks: RankGroups = request.getfixturevalue("on_ranks")
            (tmp_path / "in_folder.py").write_text(IN_FOLDER)
            on_ranks(tmp_path / "in_folder.py", tmp_path, ROOT / ranks[2], ranks=int(ranks[1]))
        else:
            python, script, *words = line.split()
            assert (python, script) == ("python", f"examples/{name}.py")
            monkeypatch.setattr("sys.argv", [script, *words])
            Path(f"{name}.py").write_text((ROOT / script).read_text().replace(*SOONER))
            runpy.run_path(f"{name}.py", run_name="__main__")
    SHOWN[name](tmp_path, capfd.readouterr().out)
