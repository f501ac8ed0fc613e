"""The third proof: random plans of the zoo on real ranks, and what happens when it is cut off."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from autoddl.errors import AutoDDLError
from autoddl.sbp.mesh import Mesh
from experiments import models
from experiments.lib.frames import Row
from experiments.models import LAYERED, ZOO, build
from experiments.proofs import execution
from experiments.proofs.execution import TOLERANCE, ExecutionReport, plan_row, reference_of, rows_of
from tests.experiments.proofs.small_zoo import SMALL_ZOO
from tests.support.on_ranks import RankError, RankGroups

SEED = 1000  # not among those of the full proof
SMALL = Path(__file__).parent / "small_execution.py"
# The full proof takes whole toys, all on four ranks.
RUNS = (
    ("mlp", "2x2"), ("resnet50", "2"), ("unet", "2"), ("llama", "2"), ("dlrm", "2"), ("bert_moe", "2"),
    ("mobilenet", "2"),
)  # fmt: skip
IN_PARTS = ("resnet50", "mobilenet")  # what every other plan has
ELSEWHERE = ["bert_dropout", "vit_drop_path"]  # random plans in test_training_step.py
# Those of RUNS as they are in the zoo, and those made of layers that others have, too.
ALIKE = (
    "mlp", "llama", "alexnet", "vgg13", "vgg19", "wide_resnet", "bert", "dnabert", "vit", "unet_norm",
    "gpt_dropout",
)  # fmt: skip


@pytest.fixture
def in_living_ranks(on_ranks: RankGroups, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run small toys in the ranks of other tests instead of starting some for each."""

    def started(module: str, arguments: list[str], ranks: int, limit_s: float) -> str:
        try:
            on_ranks(SMALL, *arguments, ranks=ranks)
        except RankError as error:
            return str(error)
        return ""

    monkeypatch.setattr(execution, "started", started)


@pytest.mark.oneflow
@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.parametrize(("model", "mesh"), RUNS)
def test_random_plans_are_in_parity(
    model: str, mesh: str, tmp_path: Path, in_living_ranks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "RANKS", Mesh.parse(mesh).size)
    plans = 2 if model in IN_PARTS else 1
    report = execution.run(tmp_path, seed=SEED, plans=plans, models=[model], meshes=[mesh])
    assert report.faults == ()
    assert [result["more"] > 0 for result in report.runs] == [False, True][:plans]
    for result in report.runs:
        assert result["redistributions"] > 0
        assert result["moved"] > 10 * TOLERANCE  # else parity would say little


@pytest.mark.oneflow
def test_their_models_have_all_ops_of_the_zoo(monkeypatch: pytest.MonkeyPatch) -> None:
    import autoddl

    def types(models: Iterable[str]) -> set[str]:
        found: set[str] = set()
        for model in models:
            graph, inputs = build(model)
            found |= {op.type for op in autoddl.capture(graph, *inputs).ops}
        return found

    assert [*(model for model, _ in RUNS), *ELSEWHERE] == list(SMALL_ZOO)
    others = types(model for model in ZOO | LAYERED if model not in ALIKE)
    for name in ("ZOO", "LAYERED"):
        monkeypatch.setattr(models, name, SMALL_ZOO)
    assert types(SMALL_ZOO) >= others


def plan_run(seed: int, **changes: Any) -> Row:
    good = {"loss": 1e-7, "weights": 1e-8, "moved": 0.1, "redistributions": 9}
    return plan_row("mlp", "4", seed, **{**good, **changes})


class Ranks:
    """Stand in for the launcher: note what is started, and write the lines that are to be written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, crashes_at: int | None = None) -> None:
        self.started: list[list[str]] = []
        self.crashes_at = crashes_at
        monkeypatch.setattr(execution, "started", self.start)

    def start(self, module: str, arguments: list[str], ranks: int, limit_s: float) -> str:
        self.started.append(arguments)
        folder = Path(arguments[1])
        if arguments[0] == "reference":
            for model in arguments[2:]:
                reference_of(folder, model).touch()
            return ""
        for model, seed in (job.split(":") for job in arguments[3:]):
            if int(seed) == self.crashes_at:
                return "rank 2 failed: Check failed"
            rows_of(folder, model, arguments[2]).add({**plan_run(int(seed)), "model": model})
        return ""


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
    assert [r["seed"] for r in report.runs] == [0, 1, 2, 3]
    assert [command[3:] for command in ranks.started] == [["mlp:2", "mlp:3"]]
    ranks.started.clear()
    assert run(tmp_path) == report
    assert ranks.started == []


def test_a_plan_that_crashes_is_a_fault_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = Ranks(monkeypatch, crashes_at=1)
    report = run(tmp_path)
    assert sorted(r["seed"] for r in report.runs) == [0, 1, 2, 3]
    assert report.faults == ("mlp on [4], seed 1: rank 2 failed: Check failed",)
    assert [command[3:] for command in ranks.started[1:]] == [
        ["mlp:0", "mlp:1", "mlp:2", "mlp:3"], ["mlp:2", "mlp:3"]
    ]  # fmt: skip
    assert "3 in parity" in report.summary()


def test_plans_of_several_models_share_launches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "PLANS_AT_ONCE", 3)
    ranks = Ranks(monkeypatch)
    report = execution.run(tmp_path, plans=2, models=["mlp", "gpt"], meshes=["4", "2x2"])
    assert len(report.runs) == 8
    assert [command[0] for command in ranks.started] == ["reference", *["plans"] * 4]
    assert [command[2:] for command in ranks.started[1:3]] == [
        ["4", "mlp:0", "mlp:1", "gpt:0"], ["4", "gpt:1"]
    ]  # fmt: skip


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
    report = ExecutionReport([plan_run(0), plan_run(1, **change)])
    (fault,) = report.faults
    assert "seed 1" in fault and words in fault
    (row,) = report.rows()
    assert row[:4] == ("mlp", "4", "2", "1")
    assert len(json.loads(json.dumps(report.to_json()))["runs"]) == 2


def test_unknown_models_are_named(tmp_path: Path) -> None:
    with pytest.raises(AutoDDLError, match="model 'lstm': the zoo has mlp, alexnet"):
        execution.run(tmp_path, models=["lstm"])
