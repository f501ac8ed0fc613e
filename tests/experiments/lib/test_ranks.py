"""Processes and ranks find the modules of this checkout, and their failures are one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autoddl.errors import AutoDDLError
from experiments.lib import ranks
from experiments.lib.programs import capture_facts, captured


def test_modules_are_found_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    assert ranks.environment() == {"PYTHONPATH": f"{ranks.ROOT}{os.pathsep}/elsewhere"}
    assert ranks.in_child("calendar", ["2000", "1"]).strip().startswith("January 2000")
    assert "usage" in ranks.in_child("experiments.figures", ["--help"]).lower()


def test_what_a_process_says_at_last_is_the_error() -> None:
    with pytest.raises(AutoDDLError, match="No such option '--models'"):
        ranks.in_child("experiments.figures", ["--models", "lstm"])
    with pytest.raises(AutoDDLError, match=r"not done after 0\.01 s"):
        ranks.in_child("experiments.figures", ["--help"], 0.01)


@pytest.mark.oneflow
@pytest.mark.ranks
def test_ranks_that_fail_are_named(tmp_path: Path) -> None:
    script = "experiments.lib.programs"  # wants arguments
    said = ranks.started(script, [], 1, 60.0)
    assert "rank" in said and "main() missing 5 required positional arguments" in said
    assert "\n" not in said


@pytest.mark.oneflow
def test_programs_are_traced_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "programs" / "mlp.json"
    first = captured(file, "mlp", "toy", widths=[4, 6, 2])
    assert capture_facts(file)["capture_s"] > 0 and capture_facts(file)["capture_bytes"] > 1e7
    assert captured(file, "mlp", "toy", widths=[4, 6, 2]).fingerprint == first.fingerprint
    assert capsys.readouterr().out.count("tracing mlp, size toy") == 1
    with pytest.raises(AutoDDLError, match="model 'lstm': the zoo has mlp"):
        captured(tmp_path / "lstm.json", "lstm")
    assert not (tmp_path / "lstm.json").exists()
