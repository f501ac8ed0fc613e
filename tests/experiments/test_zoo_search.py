"""The comparison of searches on the zoo: rows are kept, bars are checked, bad input is one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autoddl.sbp.mesh import Mesh
from experiments import zoo_search
from experiments.models import ZOO
from tests.clusters import cluster
from tests.programs import mlp

PROFILE = cluster()


def test_a_row_is_planned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, mesh = mlp(64, (32, 64, 16)), Mesh.parse("2x2", PROFILE.levels)
    first = zoo_search.row(tmp_path, "mlp", program, mesh, PROFILE, 5.0)
    assert first.gap == 0.0
    assert first.lower_bound_s <= first.coordinate_cost_s
    assert first.step_s <= first.baseline_step_s
    file = tmp_path / "rows.jsonl"
    file.write_text(file.read_text() + '{"model": "cut o')
    monkeypatch.setattr(zoo_search, "planned", None)
    assert zoo_search.row(tmp_path, "mlp", program, mesh, PROFILE, 5.0) == first


def test_bars(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program, mesh = mlp(64, (32, 64, 16)), Mesh.parse("2", PROFILE.levels)
    good = zoo_search.planned("mlp", program, mesh, PROFILE, 5.0)
    dear = replace(good, coordinate_cost_s=1.02 * good.cost_s)
    worse = replace(good, baseline_step_s=0.9 * good.step_s)
    assert (good.met, dear.met, worse.met) == (True, False, False)
    zoo_search.report([good, dear, worse], tmp_path)
    text = capsys.readouterr().out
    assert text.count("MISSED") == 2
    assert "coordinate descent: +2.00% at most" in text
    assert len((tmp_path / "zoo_search.csv").read_text().splitlines()) == 4


def test_every_model_of_the_zoo_has_a_size() -> None:
    assert set(zoo_search.SIZES) == set(ZOO)


def test_a_model_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert zoo_search.main(["--models", "lstm", "--folder", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("zoo_search: --models: got 'lstm'; there are mlp")
