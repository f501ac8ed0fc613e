"""The benchmark of the algebra: its parts on a small program, ratios by hand, and what is slower."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from autoddl.errors import AutoDDLError
from autoddl.sbp.program import Program
from experiments.bench import algebra, algebra_parts
from experiments.lib import cli
from experiments.lib.ranks import ROOT
from tests.support.programs import mlp


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the program, so that none is captured."""
    mlp(8, (8, 8)).save(tmp_path / f"{algebra.MODEL}.json")
    return tmp_path


def test_parts_are_timed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(algebra_parts, "REPEAT", 1)
    monkeypatch.setattr(algebra_parts, "MESHES", ("2", "2x2"))
    monkeypatch.setattr(algebra_parts, "SHAPES", ((64, 32), (8, 16, 24)))
    algebra_parts.main(str(folder / f"{algebra.MODEL}.json"))
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["states", "signatures", "boxings", "tables", "problem"]
    assert all(seconds > 0 for seconds in found.values())


def test_seconds_are_those_of_the_processor() -> None:
    def part(program: Program) -> None:
        time.sleep(0.2)

    assert algebra_parts.seconds(part, mlp(8, (8, 8))) < 0.1


def test_medians_by_hand() -> None:
    """Where both slow down together from turn to turn the ratio stays; an outlier does not count."""
    now, against = [0.011, 0.022, 0.090], [0.010, 0.020, 0.030]
    assert algebra.row("tables", [now, against]) == {
        "part": "tables", "ms": pytest.approx(22.0), "against ms": pytest.approx(20.0),
        "ratio": pytest.approx(1.1),
    }  # fmt: skip
    assert algebra.row("tables", [now]) == {"part": "tables", "ms": pytest.approx(22.0)}


def test_turns_change_their_order_and_what_is_slower_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other, asked = folder / "other", []
    other.mkdir()
    slower = {"states": 1.02, "tables": 1.05}

    def timed(checkout: Path, program: Path) -> dict[str, float]:
        asked.append(checkout)
        mine = checkout == ROOT
        return {part: slower.get(part, 1.0) if mine else 1.0 for part in algebra_parts.PARTS}

    monkeypatch.setattr(algebra, "timed", timed)
    words = ["--folder", str(folder), "--turns", "3"]
    assert run([*words, "--against", str(other)]) == cli.MISSED
    assert asked == [other, ROOT, ROOT, other, other, ROOT]
    assert capsys.readouterr().out.endswith("slower by more than 3%: tables\n")
    assert run(words) == 0
    assert asked[6:] == [ROOT] * 3
    assert "against" not in capsys.readouterr().out


def test_a_checkout_that_fails_is_named(folder: Path) -> None:
    program = folder / f"{algebra.MODEL}.json"
    with pytest.raises(AutoDDLError, match=rf"^--against {folder}: got a folder without autoddl"):
        algebra.timed(folder, program)
    (folder / "autoddl").mkdir()
    (folder / "autoddl" / "__init__.py").write_text("raise ValueError('of another age')")
    with pytest.raises(AutoDDLError, match=rf"^{folder}: ValueError: of another age$"):
        algebra.timed(folder, program)


def run(words: list[str]) -> int:
    return cli.run(algebra.command, "bench.algebra", words)
