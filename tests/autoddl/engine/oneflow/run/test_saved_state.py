"""Checkpoints on real ranks: training goes on as if it had not stopped, under any plan or none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from autoddl import store
from autoddl.checkpoint import sharded_files
from autoddl.cli import app
from autoddl.launch.launcher import launch
from tests.support.on_ranks import LIMIT_S, environment, in_one_launch, on_ranks

pytestmark = [pytest.mark.oneflow, pytest.mark.ranks]

SCRIPT = Path(__file__).parent / "rank_scripts" / "checkpoints.py"
CASES = ("adam", "scaled", "momentum")
ON_4 = {
    "same plan": {},
    "ZeRO": {"mesh": "4", "search": "ZeRO 2"},
    "stages": {"mesh": "2", "pipeline": 2, "micro_batches": 2},
    "halves": {"mesh": "2x2", "duplex": True},
    "taken": {"mesh": "4"},
}
ON_2 = {"two ranks": {}, "two stages": {"mesh": "1", "pipeline": 2, "micro_batches": 2}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where all modes have written: saved on four ranks, all killed, resumed on four, two, one."""
    found = tmp_path_factory.mktemp("checkpoints")
    words = [str(SCRIPT), str(found), "save"]
    killed = launch(words, nproc_per_node=4, timeout_s=LIMIT_S, env=environment())
    assert "was killed by SIGKILL" in killed.message, "\n".join([killed.message, *killed.tail])
    for case in CASES:
        assert app.main(["merge", str(found / case), "-o", str(found / f"{case}.of")]) == 0
    for ranks, modes in ((4, ON_4), (2, ON_2)):
        runs = [(SCRIPT, found, mode, json.dumps(options)) for mode, options in modes.items()]
        in_one_launch(*runs, ranks=ranks)
    for mode in ("whole", "alone"):  # apart, so that graphs have the names that they had
        on_ranks(SCRIPT, found, mode, ranks=1)
    return found


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mode", [*ON_4, *ON_2, "alone"])
def test_training_goes_on_as_if_it_had_not_stopped(mode: str, case: str, folder: Path) -> None:
    whole, found = (np.load(folder / f"{name}-{case}.npz") for name in ("whole", mode))
    assert len(found["losses"]) == 5 and len(set(whole["losses"].tolist())) == 10
    np.testing.assert_allclose(found["losses"], whole["losses"][5:], rtol=0, atol=1e-5)
    assert sorted(found.files) == sorted(whole.files)
    for name in whole.files:
        if name != "losses":
            np.testing.assert_allclose(found[name], whole[name], rtol=0, atol=1e-5, err_msg=name)


def test_what_is_there_is_not_written_over(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(path.name for path in folder.iterdir())
    assert app.main(["merge", str(folder / "adam"), "-o", str(folder / "adam.of")]) == 2
    assert capsys.readouterr().err.endswith("exists already; remove it or name another (-o)\n")
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.parametrize("case", CASES)
def test_what_is_saved_is_written_once(case: str, folder: Path) -> None:
    index = sharded_files.read_index(folder / case)
    files = {path.name: path.stat().st_size for path in (folder / case).glob("*.rank*")}
    assert set(files) == index.files  # those of the checkpoint before are gone
    sizes = [np.prod(e.shape) * np.dtype(e.dtype).itemsize for e in index.tensors.values()]
    assert sum(files.values()) == sum(sizes)
    assert index.facts.steps == 5 and index.facts.blocks == ("model",)


def test_a_killed_rank_costs_a_step(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four ranks train until one is killed; two go on from what was saved, and end where one does."""
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    options = ["--nproc-per-node", "2:4", "--max-restarts", "1", "--timeout", "200"]
    assert app.main(["run", *options, str(SCRIPT), str(folder), "elastic"]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "autoddl run:" in line]
    assert len(told) == 1 and "SIGKILL" in told[0]
    assert told[0].endswith("starting again with 2 ranks (1 of 1)")
    rows = list(store.read(folder / "elastic.jsonl")[0].values())
    found = [(number, ranks) for number, _, ranks in rows]
    if (5, 4) in found:  # it may have told of the step in which another one was killed
        found.remove((5, 4))
    assert found == [
        *((number, 4) for number in range(5)), *((number, 2) for number in range(5, 10))
    ]  # fmt: skip
    whole = np.load(folder / "whole-adam.npz")["losses"]
    np.testing.assert_allclose(
        [loss for _, loss, _ in rows], whole[[number for number, *_ in rows]], rtol=0, atol=1e-5
    )
