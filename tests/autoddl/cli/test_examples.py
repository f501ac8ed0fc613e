"""The examples of `--help` run as they stand, on toy sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import autoddl
from autoddl.checkpoint import sharded_files
from autoddl.checkpoint.sharded_files import Facts, Index, Shard
from autoddl.cli.app import COMMANDS, main
from autoddl.perfmodel import profile as profiles
from tests.support.graph_scripts import TRAIN
from tests.support.help_examples import example
from tests.support.programs import mlp, transformer
from tests.support.rank_scripts import Write

WRITTEN = {
    "capture": ["program.json"],
    "codegen": ["train_parallel.py"],
    "diff": [],
    "fit": [],
    "explain": [],
    "merge": ["state.of"],
    "plan": ["plan.json"],
    "profiles": [],
    "recost": [],
    "report": ["plan.html"],
    "schedule": ["schedule.json"],
    "sign": [],
    "trace": ["trace.json"],
    "whatif": [],
}
"""Of each command with an example that needs no ranks, the files that it writes."""
ON_ENGINE = ("capture", "codegen", "merge")  # scripts need programs that OneFlow made
ELSEWHERE = {
    "run": "below",
    "try": "tests/autoddl/trials/test_trial_ranks.py, on ranks",
    "fit-network": "tests/autoddl/cli/measure/test_fit_network_command.py, with made-up times",
    "fit-device": "tests/autoddl/cli/measure/test_fit_device_command.py, with made-up times",
}


def test_every_command_has_an_example_that_runs() -> None:
    assert sorted(COMMANDS) == sorted([*WRITTEN, *ELSEWHERE])
    for command in COMMANDS:
        example(command)


def checkpoint() -> None:
    """Write one of a weight that two ranks own a half each of."""
    whole = np.arange(32.0, dtype=np.float32).reshape(8, 4)
    halves = [slice(0, 4), slice(4, 8)]
    shards = [{"model.w": Shard(whole.shape, (half, slice(0, 4)), whole[half])} for half in halves]
    folder = Path("checkpoint")
    folder.mkdir()
    written = [sharded_files.write_shards(folder, f"1.rank{i}", s) for i, s in enumerate(shards)]
    sharded_files.publish(folder, Index(sharded_files.joined(written), Facts(steps=3)))


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
    words = example(command)
    Path("train.py").write_text(TRAIN)
    transformer(layers=1, batch=32).save("gpt.json")
    profiles.load("h100").save("network.json")
    mlp(8, (16, 8)).save("own.json")
    if command == "codegen":
        assert main(["capture", "train.py:build", "-o", "own.json", "--force"]) == 0
    checkpoint()
    if command == "explain":
        autoddl.optimize("gpt.json", mesh="2", budget=0.3).save("plan.json")
    elif command != "plan":
        autoddl.optimize("own.json", mesh="2", budget=0.3).save("plan.json")
    if command == "schedule":
        staged = autoddl.optimize("own.json", mesh="1", pipeline=2, micro_batches=2, budget=0.3)
        staged.save("staged.json")
    if command == "diff":
        autoddl.optimize("own.json", mesh="2", search="data parallel").save("other.json")
    capsys.readouterr()
    before = set(tmp_path.iterdir())
    assert main(words) == 0
    assert sorted(path.name for path in set(tmp_path.iterdir()) - before) == WRITTEN[command]
    assert capsys.readouterr().out or command == "codegen"


def test_the_example_of_run(
    write: Write, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    script = Path(write("print(f'rank {os.environ[\"RANK\"]}')", "train.py", "import os\n"))
    monkeypatch.chdir(script.parent)
    assert main(example("run")) == 0
    assert "rank 0\n" in capfd.readouterr().out
