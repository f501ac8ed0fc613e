"""Table III: the part that needs no engine, on a tiny Transformer; a run that goes on; bad input."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoddl.perfmodel import profile as profiles
from experiments.figures import table3
from experiments.figures.table3 import MEGATRON, OURS
from experiments.lib import cli
from experiments.lib.frames import Row, RowStore
from tests.support.programs import transformer

PROFILE = profiles.load("p100-aries", device_type="cuda")


def rows(file: Path, stages: int, counts: tuple[int, ...], limit: int | None = None) -> list[Row]:
    setting = table3.setting_of("tiny", 4, stages, PROFILE, limit)
    return table3.rows(RowStore(file), setting, transformer(batch=8), PROFILE, counts)


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_ours_is_no_slower(tmp_path: Path, stages: int) -> None:
    found = rows(tmp_path / "rows.jsonl", stages, (2,))
    meshes = {1: 2, 2: 1, 4: 1}[stages]  # [4] and [2, 2]; [2]; [1]
    assert len(found) == 2 * meshes
    (best,) = table3.summary(found).to_dict("records")
    assert 0 < best[f"{OURS} s"] <= best[f"{MEGATRON} s"] * (1 + 1e-9)
    assert best["change"] == pytest.approx(best[f"{OURS} s"] / best[f"{MEGATRON} s"] - 1)


def test_what_is_done_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rows.jsonl"
    first = rows(file, 2, (2,))
    with file.open("a") as out:
        out.write('{"cut off')
    monkeypatch.setattr(table3, "results", None)  # would fail if anything were done again
    assert rows(file, 2, (2,)) == first


def test_a_mesh_that_divides_no_input_is_left_out(tmp_path: Path) -> None:
    found = rows(tmp_path / "rows.jsonl", 1, (8,))  # one sequence is for no mesh of four devices
    assert {row["step_s"] for row in found} == {None}
    assert table3.summary(found)[[f"{MEGATRON} s", f"{OURS} s", "change"]].isna().all(axis=None)


def test_memory_is_kept(tmp_path: Path) -> None:
    (free,) = table3.summary(rows(tmp_path / "free.jsonl", 2, (2,))).to_dict("records")
    limit = int(0.9 * 2**30 * free[f"{OURS} GiB"])
    found = rows(tmp_path / "rows.jsonl", 2, (2,), limit)
    assert all(row["step_s"] is None or row["memory_bytes"] <= limit for row in found)
    (tight,) = table3.summary(found).to_dict("records")
    assert 0 < tight[f"{OURS} GiB"] < free[f"{OURS} GiB"]


def test_report(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = rows(tmp_path / "rows.jsonl", 2, (2,))
    table3.report(found, [], tmp_path)
    assert (tmp_path / "table3.png").read_bytes().startswith(b"\x89PNG")


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["--models", "tall"], ["--devices", "63"]):
        argv += ["--folder", str(tmp_path)]
        assert cli.run(table3.command, "figures.table3", argv) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and "'wide', 'deep'" in said[0] and "63" in said[1]
