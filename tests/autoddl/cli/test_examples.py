"""The examples of `--help` run as they stand, on toy sizes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from autoddl.cli.app import main
from tests.support.graph_scripts import TRAIN
from tests.support.programs import transformer

WRITTEN = {"profiles": (), "plan": ("plan.json",), "capture": ("program.json",)}
"""Of each command with an example that needs no ranks, the files that it writes."""


@pytest.mark.parametrize(
    "command", [pytest.param("capture", marks=pytest.mark.oneflow), "plan", "profiles"]
)
def test_the_example_runs(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([command, "--help"]) == 0
    (line,) = re.findall(r"Example:\n +python -m autoddl (.*)", capsys.readouterr().out)
    Path("train.py").write_text(TRAIN)
    transformer(layers=1, batch=32).save("gpt.json")
    before = set(tmp_path.iterdir())
    assert main(shlex.split(line)) == 0
    assert {path.name for path in set(tmp_path.iterdir()) - before} == set(WRITTEN[command])
    assert capsys.readouterr().out
