"""Trials of a real script: one plan dies and is passed over, the others are timed, and kept."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from autoddl.cli.app import main
from autoddl.engine import engines
from autoddl.plan import codec
from autoddl.trials.trial_runs import TrialRecord, fastest
from autoddl.trials.trial_settings import Trials
from tests.support.help_examples import example
from tests.support.on_ranks import environment

pytestmark = [pytest.mark.oneflow, pytest.mark.ranks]

SCRIPT = """
import os, sys
from pathlib import Path
import oneflow as flow
import autoddl

rank, count = os.environ.get("RANK"), Path("count")
if rank == "1":
    count.write_text(str(int(count.read_text()) + 1) if count.exists() else "1")
    if int(count.read_text()) == DIES:
        sys.exit("rank 1 gives up")
model = flow.nn.Linear(16, 32)

class Train(flow.nn.Graph):
    def __init__(self):
        super().__init__()
        self.model = model
        self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.1))
    def build(self, x, y):
        loss = flow.nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        return loss

x, y = flow.randn(8, 16), flow.randn(8, 32)
FIRST
plan = autoddl.optimize(Train(), x, y=y, mesh="2", TRIALS)
print("measured", [trial.measured_s for trial in plan.search.trials])
"""


def script(path: Path, dies: int, trials: str = "", first: str = "") -> Path:
    text = SCRIPT.replace("DIES", str(dies)).replace("TRIALS", trials).replace("FIRST", first)
    (path / "train.py").write_text(text)
    return path / "train.py"


def test_try_on_two_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    script(tmp_path, dies=2)
    *options, name = example("try")
    words = [name, "an argument"]
    assert main([*options, *words]) == 0
    shown = capsys.readouterr()
    assert "rank 1 gives up" in shown.out and "measured" in shown.out
    assert shown.err.count("autoddl try: mesh 2") == 2
    dead, alive = codec.load("trials/best.json", engines.model).search.trials
    assert dead.measured_s is None
    assert dead.note.startswith("rank 1 of 2 failed with exit code 1; ")
    assert dead.note.endswith(": rank 1 gives up")
    assert alive.note == "" and alive.measured_s is not None and 0 < alive.measured_s < 5
    assert codec.load("trials/best.json", engines.model).states == alive.states

    starts = Path("count").read_text()  # again: nothing is run
    head = json.loads(Path("trials/trials.jsonl").read_text().splitlines()[0])
    program = head["settings"]["program"]
    plans = [codec.load(f"trials/{trial.states}.json", engines.model) for trial in (dead, alive)]
    assert len(TrialRecord(Path("trials"), program).found) == 2
    assert fastest(plans, program, words, Trials()).search.trials == (dead, alive)
    assert Path("count").read_text() == starts == "3"


def test_optimize_of_one_process(tmp_path: Path) -> None:
    """The trial is of the call that asks for it, not of another one before."""
    trials = "trials=autoddl.Trials(1, steps=2)"
    first = 'autoddl.optimize(Train(), x[:4], y=y[:4], mesh="2")'
    command = [sys.executable, str(script(tmp_path, -1, trials, first))]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("measured [0.")
    assert (tmp_path / "count").read_text() == "1"
