"""Rows that grow and go on after an interruption, tables, and what is written beside a CSV."""

from __future__ import annotations

import json
from math import nan
from pathlib import Path

import pandas as pd
import pytest

from experiments.lib import frames
from experiments.lib.frames import RowStore


def test_rows_are_there_again(tmp_path: Path) -> None:
    file = tmp_path / "new" / "rows.jsonl"
    rows = RowStore(file)
    assert rows.rows == [] and not file.exists()
    assert rows.add({"model": "gpt", "mesh": (2, 2), "cost_s": 0.1 + 0.2}) == {
        "model": "gpt",
        "mesh": [2, 2],  # as it is read
        "cost_s": 0.1 + 0.2,
    }
    rows.add({"model": "mlp", "cost_s": 1})
    assert RowStore(file).rows == rows.rows
    assert RowStore(file).having(model="mlp") == [{"model": "mlp", "cost_s": 1}]
    assert RowStore(file).having(model="mlp", cost_s=2) == []


def test_a_line_that_was_cut_off_is_no_row_and_the_next_one_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    RowStore(file).add({"n": 1})
    with file.open("a") as out:
        out.write('{"n": 2')
    rows = RowStore(file)
    assert rows.rows == [{"n": 1}]
    rows.add({"n": 3})
    assert RowStore(file).rows == [{"n": 1}, {"n": 3}]


def test_a_row_is_made_once(tmp_path: Path) -> None:
    made = []

    def make() -> dict[str, int]:
        made.append(1)
        return {"cost": len(made)}

    for _ in range(2):
        assert RowStore(tmp_path / "r.jsonl").once({"n": 1}, make) == {"n": 1, "cost": 1}
    assert RowStore(tmp_path / "r.jsonl").once({"n": 2}, make) == {"n": 2, "cost": 2}


def test_tables_are_written_as_asked() -> None:
    frame = pd.DataFrame({"name": ["a", "long"], "share": [0.125, nan], "left out": [1, 2]})
    lines = frames.text(frame, {"name": str.upper, "share": "{:.1%}"}).splitlines()
    assert [line.split() for line in lines[2:]] == [["A", "12.5%"], ["LONG"]]
    assert lines[0].split() == ["name", "share"]
    assert lines[2].startswith("A ") and lines[2].endswith("12.5%")  # numbers stand right


def test_what_is_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = pd.DataFrame({"n": [1, 2], "cost_s": [0.1 + 0.2, nan]})
    frames.save(frame, tmp_path, "found", seed=3)
    assert (tmp_path / "found.csv").read_text().splitlines()[0] == "n,cost_s"
    data = json.loads((tmp_path / "found.json").read_text())
    assert data["seed"] == 3 and set(data["versions"]) == {"autoddl", "numpy"}
    assert data["rows"][0] == {"n": 1, "cost_s": pytest.approx(0.3, rel=1e-14)}
    assert data["rows"][1]["cost_s"] is None
    assert capsys.readouterr().out == f"wrote {tmp_path}/found.csv, found.json\n"
