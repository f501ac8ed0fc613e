"""The third proof: random plans of the zoo on real ranks, and what happens when it is cut off."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autoddl.errors import AutoDDLError
from experiments.models import ZOO
from experiments.proofs import execution
from experiments.proofs.execution import TOLERANCE, ExecutionReport, PlanRun

SEED = 1000  # not among those of the full proof
RUNS = tuple((model, execution.MESHES[i % 2]) for i, model in enumerate(ZOO))


@pytest.mark.oneflow
@pytest.mark.slow
@pytest.mark.parametrize(("model", "mesh"), RUNS)
def test_a_random_plan_of_every_model_is_in_parity(model: str, mesh: str, tmp_path: Path) -> None:
    report = execution.run(tmp_path, seed=SEED, plans=1, models=[model], meshes=[mesh])
    assert report.faults == ()
    (result,) = report.runs
    assert result.redistributions > 0
    assert result.moved > 10 * TOLERANCE  # else parity would say little


def plan_run(seed: int, **changes: Any) -> PlanRun:
    good = {"loss": 1e-7, "weights": 1e-8, "moved": 0.1, "redistributions": 9}
    return PlanRun("mlp", "4", seed, **{**good, **changes})


class Ranks:
    """Stand in for the launcher: note what is started, and write the lines that are to be written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, crashes_at: int | None = None) -> None:
        self.started: list[list[str]] = []
        self.crashes_at = crashes_at
        monkeypatch.setattr(execution, "launch", self.launch)

    def launch(self, command: list[str], **options: Any) -> Any:
        self.started.append(command)
        if command[2] == "reference":
            Path(command[4]).touch()
            return SimpleNamespace(ok=True)
        for seed in map(int, command[-1].split(",")):
            if seed == self.crashes_at:
                return SimpleNamespace(ok=False, message="rank 2 failed", tail=["Check failed"])
            execution.append(Path(command[-2]), plan_run(seed))
        return SimpleNamespace(ok=True)


def run(folder: Path, plans: int = 4) -> ExecutionReport:
    return execution.run(folder, plans=plans, models=["mlp"], meshes=["4"])


def test_a_run_goes_on_where_it_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = Ranks(monkeypatch)
    run(tmp_path, plans=2)
    file = tmp_path / "mlp-4.jsonl"
    file.write_text(file.read_text() + '{"model": "mlp", "me')  # cut off while it wrote
    ranks.started.clear()
    report = run(tmp_path)
    assert [r.seed for r in report.runs] == [0, 1, 2, 3]
    assert [command[-1] for command in ranks.started] == ["2,3"]
    ranks.started.clear()
    assert run(tmp_path) == report
    assert ranks.started == []


def test_a_plan_that_crashes_is_a_fault_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = Ranks(monkeypatch, crashes_at=1)
    report = run(tmp_path)
    assert sorted(r.seed for r in report.runs) == [0, 1, 2, 3]
    assert report.faults == ("mlp on [4], seed 1: rank 2 failed: Check failed",)
    assert [command[-1] for command in ranks.started[1:]] == ["0,1,2,3", "2,3"]
    assert "3 in parity" in report.summary()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"loss": 2e-4}, "|Δloss| 2.00e-04"),
        ({"weights": 2e-4}, "|Δvariable| 2.00e-04"),
        ({"loss": float("nan")}, "nan"),
        ({"changed": 3}, "3 signatures changed by the engine"),
    ],
)
def test_what_is_not_parity(change: dict[str, Any], words: str) -> None:
    report = ExecutionReport((plan_run(0), plan_run(1, **change)))
    (fault,) = report.faults
    assert "seed 1" in fault and words in fault
    (row,) = report.rows()
    assert row[:4] == ("mlp", "4", "2", "1")
    assert len(json.loads(json.dumps(report.to_json()))["runs"]) == 2


def test_unknown_models_are_named(tmp_path: Path) -> None:
    with pytest.raises(AutoDDLError, match="model 'lstm': the zoo has mlp, alexnet"):
        execution.run(tmp_path, models=["lstm"])
