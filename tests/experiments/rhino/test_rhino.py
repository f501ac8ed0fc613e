"""Rhino's studies: rows of a small program, what rivals lose, and what misses."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from autoddl.perfmodel import profile as profiles
from autoddl.search.solvers import ilp
from experiments.lib import cli
from experiments.rhino import search_rows as rows
from experiments.rhino.__main__ import command, misses, told, unended
from experiments.rhino.search_rows import Sized
from tests.support.programs import mlp

TINY = Sized("mlp", "toy")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    program = mlp(64, (64, 256, 16), optimizer="adam", act="relu", bias=False)
    program.save(tmp_path / "mlp-toy.json")
    return tmp_path


def test_toys_are_printed_and_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("experiments.rhino.__main__.ZOO", {"mlp": ()})
    monkeypatch.setattr("experiments.rhino.__main__.MESHES", ("4",))
    assert cli.run(command, "rhino", ["--studies", "toys", "--folder", str(folder)]) == 0
    row = pd.read_csv(folder / "toys.csv").iloc[0]
    problem = TINY.problem("4", folder, rows.sizes_alone(profiles.load(rows.BASE)))
    best = ilp.search(problem)
    assert row["exact cost_s"] == pytest.approx(best.cost_s)
    assert abs(row["O3"]) < 1e-6 and row["O2"] > -1e-9 and row["by root"] > -1e-9
    assert row["replicated_s"] == pytest.approx(problem.cost_s([0] * len(problem)))
    assert row["replicated_s"] > 1.1 * best.cost_s  # else there is nothing to find
    text = capsys.readouterr().out
    assert "O3 did not end in 60 s on: none" in text
    printed = next(line for line in text.splitlines() if line.startswith("mlp"))
    assert f"{1e3 * best.cost_s:.3f}" in printed.split()


def test_within_memory_exact_search_is_not_dearer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "LIMITED", {"tiny": TINY})
    found = [rows.memory_row("tiny", percent, 10.0, folder) for percent in (1000, 60, 5)]
    assert found[0]["k"] == 0 < found[1]["k"] <= found[1]["parameters"] == 2
    assert found[2]["exact_s"] is None and found[2]["k"] is None  # nothing fits
    frame = told("memory", pd.DataFrame(found))
    assert not misses("memory", frame).any()
    assert frame["ZeRO 2"].notna().any()


def test_what_misses() -> None:
    memory = pd.DataFrame({"exact_s": [2.0] * 3, "largest_s": [2.0, 1.9, None], "zero_s": 2.1})
    assert misses("memory", told("memory", memory)).tolist() == [False, True, False]
    costs = pd.DataFrame(
        {"exact cost_s": 2.0, "O3 cost_s": [2.0, 2.1, 2.1], "O3 gap": [0.0, 0.0, 0.1]}
    )
    assert misses("depths", told("depths", costs)).tolist() == [False, True, False]


def test_what_did_not_end_is_told() -> None:
    frame = pd.DataFrame(
        {"model": ["mlp", "gpt", "vit"], "mesh": ["4", "4", "2x2"], "O3 cost_s": [None, 1.0, None]}
    )
    assert unended(frame) == "mlp 4, vit 2x2" and unended(frame[1:2]) == ""
