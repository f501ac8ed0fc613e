"""Table III: the part that needs no engine, on a tiny Transformer; a run that goes on; bad input."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoddl.perfmodel import profile as profiles
from experiments import table3_pipeline as table3
from experiments.table3_pipeline import MEGATRON, OURS, Row, Setting
from tests.programs import transformer

PROFILE = profiles.load("p100-aries", device_type="cuda")


def rows(file: Path, stages: int, counts: tuple[int, ...]) -> list[Row]:
    setting = Setting("tiny", 4, stages, PROFILE.name)
    return table3.candidates(file, setting, transformer(batch=8), PROFILE, counts)


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_ours_is_no_slower(tmp_path: Path, stages: int) -> None:
    found = rows(tmp_path / "rows.jsonl", stages, (2,))
    meshes = {1: 2, 2: 1, 4: 1}[stages]  # [4] and [2, 2]; [2]; [1]
    assert len(found) == 2 * meshes
    manual, ours = (table3.best(found, method) for method in (MEGATRON, OURS))
    assert manual is not None and ours is not None
    assert manual.step_s and ours.step_s and ours.step_s <= manual.step_s * (1 + 1e-9)


def test_what_is_done_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rows.jsonl"
    first = rows(file, 2, (2,))
    with file.open("a") as out:
        out.write('{"cut off')
    assert table3.read(file) == first
    monkeypatch.setattr(table3, "results", None)  # would fail if anything were done again
    assert rows(file, 2, (2,)) == first


def test_a_mesh_that_divides_no_input_is_left_out(tmp_path: Path) -> None:
    found = rows(tmp_path / "rows.jsonl", 1, (8,))  # one sequence is for no mesh of four devices
    assert {row.step_s for row in found} == {None}
    assert table3.summary(found)[0][1:] == (None, None)


def test_memory_is_kept(tmp_path: Path) -> None:
    free = table3.best(rows(tmp_path / "free.jsonl", 2, (2,)), OURS)
    assert free is not None
    limit = int(0.9 * free.memory_bytes)
    setting = Setting("tiny", 4, 2, PROFILE.name, limit)
    found = table3.candidates(tmp_path / "rows.jsonl", setting, transformer(), PROFILE, (2,))
    assert all(row.step_s is None or row.memory_bytes <= limit for row in found)
    ours = table3.best(found, OURS)
    assert ours is not None and ours.memory_bytes < free.memory_bytes


def test_report(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = rows(tmp_path / "rows.jsonl", 2, (2,))
    table3._report(found, [], tmp_path)
    assert (tmp_path / "table3.png").read_bytes().startswith(b"\x89PNG")


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert table3.main(["--models", "tall", "--folder", str(tmp_path)]) == 2
    assert table3.main(["--devices", "63", "--folder", str(tmp_path)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and "wide, deep" in said[0] and "63" in said[1]
