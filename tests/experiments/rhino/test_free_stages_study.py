"""Rhino's stages: two towers by hand, what is printed, and what misses."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from experiments.lib import cli
from experiments.rhino import free_stages_study as study


def test_two_towers_by_hand() -> None:
    """25 nodes of 1 s, 13 in the longer stage, 8 micro-batches; a tensor of 1 s goes both ways."""
    row = study.tower_row(2, 1.0)
    assert row["cut_s"] == 7 * 13 + 25 + 2 * 2 * 1.0
    assert row["orders_s"] == row["free_s"] == 7 * 13 + 25 + 2 * 1.0
    assert row["gain"] == pytest.approx(120 / 118 - 1)


def test_proofs_are_printed_and_misses_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(study, "OPTIMA", 3)
    monkeypatch.setattr(study, "BOUNDS", 5)
    assert cli.run(study.command, "rhino", ["--studies", "proofs", "--folder", str(tmp_path)]) == 0
    assert "repaired" in capsys.readouterr().out
    (row,) = pd.read_csv(tmp_path / "free_stages_proofs.csv").to_dict("records")
    assert (row["graphs"], row["missed"], row["bounded"], row["derived"]) == (3, 0, 5, 0)
    for name in ("missed", "dearer", "derived"):
        assert study.misses("proofs", pd.DataFrame([{**row, name: 1}]))
