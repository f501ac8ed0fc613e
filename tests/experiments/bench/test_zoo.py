"""The comparison of searches on the zoo: rows are kept, bars are checked, bad input is one line."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from autoddl.sbp.mesh import Mesh
from experiments.bench import zoo
from experiments.lib import cli
from experiments.lib.frames import RowStore
from experiments.models import ZOO
from tests.support.clusters import cluster
from tests.support.programs import mlp

PROFILE = cluster()


def test_a_row_is_planned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, mesh = mlp(64, (32, 64, 16)), Mesh.parse("2x2", PROFILE.levels)
    file = tmp_path / "rows.jsonl"
    first = zoo.row(RowStore(file), "mlp", program, mesh, PROFILE, 5.0)
    assert first["lower_bound_s"] == pytest.approx(first["cost_s"], rel=1e-12)
    assert first["lower_bound_s"] <= first["coordinate_cost_s"]
    assert first["step_s"] <= first["baseline_step_s"]
    file.write_text(file.read_text() + '{"model": "cut o')
    monkeypatch.setattr(zoo, "planned", None)
    assert zoo.row(RowStore(file), "mlp", program, mesh, PROFILE, 5.0) == first


def test_bars(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program, mesh = mlp(64, (32, 64, 16)), Mesh.parse("2", PROFILE.levels)
    good = zoo.row(RowStore(tmp_path / "rows.jsonl"), "mlp", program, mesh, PROFILE, 5.0)
    dear = {**good, "coordinate_cost_s": 1.02 * good["cost_s"]}
    worse = {**good, "baseline_step_s": 0.9 * good["step_s"]}
    assert zoo.report(pd.DataFrame([good]), tmp_path) == 0
    assert "MISSED" not in capsys.readouterr().out
    assert [zoo.report(pd.DataFrame([good, bad]), tmp_path) for bad in (dear, worse)] == [0, 1]
    text = capsys.readouterr().out
    assert text.count("MISSED") == 1
    assert "coordinate descent: +2.00% at most" in text
    assert len((tmp_path / "zoo.csv").read_text().splitlines()) == 3


def test_every_model_of_the_zoo_has_a_size() -> None:
    assert set(zoo.SIZES) == set(ZOO)


def test_a_model_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--models", "lstm", "--folder", str(tmp_path)]
    assert cli.run(zoo.command, "bench.zoo", argv) == 2
    err = capsys.readouterr().err
    assert err.startswith("bench.zoo: ") and "'--models': 'lstm' is not one of 'mlp'" in err
