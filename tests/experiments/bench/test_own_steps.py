"""Searches without baselines: a row against the search with them, and the bars."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import autoddl
from experiments.bench import own_steps
from tests.support.clusters import cluster
from tests.support.programs import mlp

PROFILE = cluster()


def test_a_row_is_found_without_baselines() -> None:
    program = mlp(64, (64, 32, 64))
    found = own_steps.searched(program, "2x2", PROFILE, 0.5)
    budget = autoddl.Budget(evaluations=1000)
    plan = autoddl.optimize(program, mesh="2x2", profile=PROFILE, budget=budget, memory="1TB")
    best = min(plan.baselines, key=lambda estimate: estimate.step_s)
    assert found["baseline_ms"] == pytest.approx(1e3 * best.step_s)
    assert found["step_ms"] * (1 - found["gap"]) <= 1e3 * plan.estimate.step_s * (1 + 1e-9)


def test_bars(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = {
        "profile": "p",
        "model": "mlp",
        "mesh": "2",
        **own_steps.searched(mlp(64, (32, 16)), "2", PROFILE, 5.0),
    }
    slow = {**good, "baseline_ms": 0.9 * good["step_ms"]}
    far = {**good, "gap": 0.04}
    monkeypatch.setattr(own_steps, "BARS", {0.02: 1, 0.05: 2})
    assert own_steps.report(pd.DataFrame([good, {**far, "step_ms": 0.0}]), tmp_path) == 0
    assert "MISSED" not in capsys.readouterr().out
    assert own_steps.report(pd.DataFrame([good, slow]), tmp_path) == 1
    assert own_steps.report(pd.DataFrame([far, far]), tmp_path) == 1
    assert "steps within 2% of their bounds: 0 of 2 (at least 1: MISSED)" in capsys.readouterr().out
    assert (tmp_path / "own_steps.csv").exists()
