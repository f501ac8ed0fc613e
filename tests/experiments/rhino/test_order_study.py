"""The study of orders on a small pipeline; its ranks run in a testbed, as root."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from experiments.lib import cli
from experiments.rhino import order_study as study


@pytest.mark.oneflow
def test_searched_orders_are_printed_beside_1f1b(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(study, "LAYERS", ((1, 3),))
    monkeypatch.setattr(study, "MICRO_BATCHES", (2,))
    monkeypatch.setattr(study, "WIDTH", 8)
    assert cli.run(study.command, "rhino", ["--studies", "uneven", "--folder", str(tmp_path)]) == 0
    assert "1F1B_s" in capsys.readouterr().out
    (row,) = pd.read_csv(tmp_path / "uneven.csv").to_dict("records")
    assert row["layers"] == "1, 3"
    assert row["+2"] >= row["+1"] >= row["+0"] >= 0
    plan = study.planned((1, 3), 2, tmp_path)
    layers = [{op.module.split(".")[1] for op in plan.program.ops if plan.stage_of[op.name] == stage
               and "." in op.module} for stage in range(2)]  # fmt: skip
    assert (len(layers[0] - layers[1]), len(layers[1])) == (2, 5)  # a layer is a Linear and a GELU
