"""The examples of `--help` run as they stand, on toy sizes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import autoddl
from autoddl.cli.app import main
from autoddl.perfmodel import profile as profiles
from tests.support.graph_scripts import TRAIN
from tests.support.programs import mlp, transformer
from tests.support.rank_scripts import Write

WRITTEN = {
    "capture": ["program.json"],
    "codegen": ["train_parallel.py"],
    "diff": [],
    "fit": [],
    "plan": ["plan.json"],
    "profiles": [],
    "recost": [],
    "report": ["plan.html"],
    "sign": [],
    "trace": ["trace.json"],
    "whatif": [],
}
"""Of each command with an example that needs no ranks, the files that it writes."""
ON_ENGINE = ("capture", "codegen")  # scripts need programs that OneFlow made


def example(command: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the words of the example in a command's help."""
    assert main([command, "--help"]) == 0
    (line,) = re.findall(r"Example:\n +python -m autoddl (.*)", capsys.readouterr().out)
    return shlex.split(line)


@pytest.mark.parametrize(
    "command",
    [pytest.param(c, marks=[pytest.mark.oneflow] if c in ON_ENGINE else []) for c in WRITTEN],
)
def test_the_example_runs(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words = example(command, capsys)
    Path("train.py").write_text(TRAIN)
    transformer(layers=1, batch=32).save("gpt.json")
    profiles.load("h100").save("network.json")
    mlp(8, (16, 8)).save("own.json")
    if command == "codegen":
        assert main(["capture", "train.py:build", "-o", "own.json", "--force"]) == 0
    if command != "plan":
        autoddl.optimize("own.json", mesh="2", budget=0.3).save("plan.json")
    if command == "diff":
        autoddl.optimize("own.json", mesh="2", search="data parallel").save("other.json")
    capsys.readouterr()
    before = set(tmp_path.iterdir())
    assert words[0] == command and main(words) == 0
    assert sorted(path.name for path in set(tmp_path.iterdir()) - before) == WRITTEN[command]
    assert capsys.readouterr().out or command == "codegen"


def test_the_example_of_run(
    write: Write, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    script = Path(write("print(f'rank {os.environ[\"RANK\"]}')", "train.py", "import os\n"))
    monkeypatch.chdir(script.parent)
    words = example("run", capfd)
    assert words[0] == "run" and main(words) == 0
    assert "rank 0\n" in capfd.readouterr().out
