"""The frozen suite: what counts as the same, that rows are kept, and that a worse plan is found out."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.bench.frozen import __main__ as frozen
from experiments.bench.frozen.compare import (
    BETTER,
    OTHER,
    SAME,
    WORSE,
    compared,
    read,
    verdict,
    write,
)
from experiments.bench.frozen.suite import cases
from experiments.lib import cli

PLAN = "zoo/mlp 4"


@pytest.mark.parametrize(
    ("figure", "kept", "now", "expected"),
    [
        ("cost_s", 2.0, 2.0 * (1 + 5e-10), SAME),
        ("cost_s", 2.0, 2.0 * (1 + 1e-8), WORSE),
        ("cost_s", 2.0, 1.9, BETTER),
        ("ZeRO 2: step_s", 2.0, 2.1, WORSE),
        ("lower_bound_s", 2.0, 1.9, WORSE),
        ("lower_bound_s", 2.0, 2.1, BETTER),
        ("gap", 0.0, 1e-12, SAME),
        ("gap", 0.0, 1e-3, WORSE),
        ("gap", 1e-3, 0.0, BETTER),
        ("worst_error", 0.02, 0.024, SAME),
        ("worst_error", 0.02, 0.03, WORSE),
        ("fingerprint", "a", "b", WORSE),
        ("states", "a", "b", OTHER),
        ("seconds", 1.0, 9.0, SAME),
    ],
)
def test_verdicts(figure: str, kept: object, now: object, expected: str) -> None:
    assert verdict(figure, kept, now) == expected


def test_what_time_ended_may_be_off_by_its_gap() -> None:
    assert verdict("cost_s", 2.0, 2.001, loose=1e-3) == OTHER
    assert verdict("cost_s", 2.0, 2.003, loose=1e-3) == WORSE


def test_what_is_missing_differs() -> None:
    kept, now = {"cost_s": 1.0, "SUMMA: step_s": 2.0}, {"cost_s": 1.0, "seconds": 1.0}
    assert [row[0] for row in compared(kept, now) if row[3] != SAME] == ["SUMMA: step_s"]
    assert [row[3] for row in compared(kept, {"error": "no plan"})] == [WORSE]


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = {
        "zoo/mlp 2": {
            "cost_s": 0.1 + 0.2,
            "mesh": "2",
            "memory_bytes": 7,
            "states": "00",
            "gap": 0.0,
        },
        "pipelines/x": {"step_s": 1e-9, "solver": "exact, then SUMMA for its overlap"},
    }
    write(tmp_path / "r.csv", record)
    assert read(tmp_path / "r.csv") == record


def test_every_case_is_in_the_record() -> None:
    keys = [case.key for case in cases()]
    assert len(set(keys)) == len(keys)
    assert sum(case.section == "search" for case in cases()) == 24
    assert sum(case.section == "zoo" for case in cases()) == 96
    assert list(read(frozen.RECORD)) == keys


def test_all_that_was_searched_was_proven() -> None:
    record = read(frozen.RECORD)
    assert all(record[c.key]["gap"] < 1e-9 for c in cases() if c.section == "search")


@pytest.mark.oneflow
def test_rows_are_kept_and_a_worse_plan_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--only", PLAN, "--folder", str(tmp_path)]
    assert cli.run(frozen.command, "bench.frozen", argv) == 0
    record = read(frozen.RECORD)
    record[PLAN]["step_s"] *= 0.99
    monkeypatch.setattr(frozen, "RECORD", tmp_path / "record.csv")
    write(frozen.RECORD, record)
    monkeypatch.setattr(frozen.Side, "run", pytest.fail)  # nothing is done twice
    capsys.readouterr()
    assert cli.run(frozen.command, "bench.frozen", argv) == 1
    assert f"{WORSE}  {PLAN}: step_s" in capsys.readouterr().out


def test_a_section_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(frozen.command, "bench.frozen", ["--only", "serch"]) == 2
    assert capsys.readouterr().err.startswith(
        "bench.frozen: --only: got 'serch'; sections are search"
    )
