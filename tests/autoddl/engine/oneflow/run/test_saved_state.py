"""Checkpoints on real ranks: training goes on as if it had not stopped, under any plan or none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoddl import store
from autoddl.checkpoint import sharded_files
from autoddl.cli import app
from tests.support.on_ranks import LIMIT_S, RankGroups, environment

pytestmark = [pytest.mark.oneflow, pytest.mark.ranks]

SCRIPT = Path(__file__).parent / "rank_scripts" / "checkpoints.py"
CASES = ("scaled", "momentum")
# By mode on how many ranks training goes on, with which options of a plan, and of which cases.
RESUMED: dict[str, tuple[int, dict[str, Any], tuple[str, ...]]] = {
    "same plan": (4, {}, ("scaled",)),
    "ZeRO": (2, {"mesh": "2", "search": "ZeRO 2"}, ("scaled",)),
    "two stages": (2, {"mesh": "1", "pipeline": 2, "micro_batches": 2}, ("scaled",)),
    "halves": (2, {"mesh": "2", "duplex": True}, ("momentum",)),
    "taken": (2, {"mesh": "2"}, ("scaled",)),
    "two ranks": (2, {}, ("momentum",)),
    "alone": (1, {}, CASES),
}
Results = Callable[[str, str], Any]


@pytest.fixture(scope="module")
def folder(on_ranks: RankGroups, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what four ranks have saved, and the merged files."""
    found = tmp_path_factory.mktemp("checkpoints")
    on_ranks(SCRIPT, found, "save", ",".join(CASES), ranks=4)
    for case in CASES:
        assert app.main(["merge", str(found / case), "-o", str(found / f"{case}.of")]) == 0
    return found


@pytest.fixture(scope="module")
def results(folder: Path, on_ranks: RankGroups) -> Results:
    """Return what gives the losses and weights of a mode and a case; each mode runs once."""
    run: set[str] = set()

    def of(mode: str, case: str) -> Any:
        if mode not in run:
            run.add(mode)
            ranks, options, cases = RESUMED.get(mode, (1, {}, CASES))
            on_ranks(SCRIPT, folder, mode, ",".join(cases), json.dumps(options), ranks=ranks)
        return np.load(folder / f"{mode}-{case}.npz")

    return of


@pytest.mark.parametrize(
    ("mode", "case"), [(mode, case) for mode, (*_, cases) in RESUMED.items() for case in cases]
)
def test_training_goes_on_as_if_it_had_not_stopped(mode: str, case: str, results: Results) -> None:
    whole, found = (results(name, case) for name in ("whole", mode))
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
    assert app.main(["merge", str(folder / "scaled"), "-o", str(folder / "scaled.of")]) == 2
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
    folder: Path,
    results: Results,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two ranks train until one is killed; one goes on from what was saved, and ends where one does."""
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    options = ["--nproc-per-node", "1:2", "--max-restarts", "1", "--timeout", str(LIMIT_S)]
    assert app.main(["run", *options, str(SCRIPT), str(folder), "elastic", "scaled"]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "autoddl run:" in line]
    assert len(told) == 1 and "SIGKILL" in told[0]
    assert told[0].endswith("starting again with 1 ranks (1 of 1)")
    rows = list(store.read(folder / "elastic.jsonl")[0].values())
    found = [(number, ranks) for number, _, ranks in rows]
    if (5, 2) in found:  # it may have told of the step in which the other one was killed
        found.remove((5, 2))
    assert found == [
        *((number, 2) for number in range(5)), *((number, 1) for number in range(5, 10))
    ]  # fmt: skip
    whole = results("whole", "scaled")["losses"]
    np.testing.assert_allclose(
        [loss for _, loss, _ in rows], whole[[number for number, *_ in rows]], rtol=0, atol=1e-5
    )
