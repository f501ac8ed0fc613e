"""Table III's assumptions, on a tiny Transformer: each changes what it says, and only that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autoddl.perfmodel import profile as profiles
from experiments.figures import table3, table3_changes
from experiments.figures.table3_changes import ASSUMPTIONS, rows
from experiments.lib.frames import Row, RowStore
from tests.support.programs import transformer


@pytest.fixture
def by_assumption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Row]]:
    """The rows of a model of one stage on four devices."""
    monkeypatch.setattr(table3_changes, "NODES", 4)
    monkeypatch.setattr(table3, "BATCH", {4: 8})
    few = [replace(one, sequences=(4,)) for one in ASSUMPTIONS]
    monkeypatch.setattr(table3_changes, "ASSUMPTIONS", few)
    monkeypatch.setattr(table3_changes, "captured", lambda *_, **sizes: transformer(batch=8))
    known = profiles.load("p100-aries", device_type="cuda")
    found = rows("wide", known, RowStore(tmp_path / "rows.jsonl"), tmp_path)
    named: dict[str, list[Row]] = {}
    for row in found:
        named.setdefault(row["assumed"], []).append(row)
    return named


def test_rows(by_assumption: dict[str, list[Row]]) -> None:
    (printed,), (base,) = by_assumption["printed"], by_assumption["as table3 predicts"]
    assert printed["change"] == pytest.approx(-0.371, abs=1e-3)
    assert by_assumption.keys() >= {one.name for one in ASSUMPTIONS}
    grids = by_assumption["that grid, so many micro-batches"]
    best = min(grids, key=lambda row: float(row["Megatron s"]))
    assert best["Megatron s"] == base["Megatron s"]
    assert best["Megatron mesh"] == base["Megatron mesh"]
    assert {row["ours s"] for row in grids} == {base["ours s"]}


def test_what_takes_longer(by_assumption: dict[str, list[Row]]) -> None:
    def seconds(name: str) -> float:
        (row,) = by_assumption[name]
        return float(row["Megatron s"])

    base = seconds("as table3 predicts")
    links = [seconds(f"links take {n} times as long") for n in (2, 4, 8)]
    assert base < links[0] < links[1] < links[2] <= 8 * base
    ops = [seconds(f"ops take {n} times as long") for n in ("0.5", 2)]
    assert ops[0] < base < ops[1] <= 2 * base
