"""What is kept of an interrupted measurement, and what is made of damaged files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoddl.engine.cases import Case, Row
from autoddl.engine.partial import Partial
from autoddl.errors import AutoDDLError

SETTINGS = {"ranks": 2, "sizes": (16, 64)}


def line(size: int) -> str:
    case = Case("graph", "all_reduce", "gpu", 2, size)
    return json.dumps({"row": Row(case, size, 5, 1e-3, 1e-4, 1e-3, 1e-2).to_json()})


def sizes(partial: Partial) -> list[int]:
    return [case.size_bytes for case in partial.rows]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "network.json.partial"
    partial = Partial(path, SETTINGS, fresh=False)
    assert not partial.resumed
    partial.add(line(16))
    partial.add(line(64))
    partial.add(json.dumps({"device": {"matmul": {"steps": 4}}}))
    return path


def test_it_goes_on(path: Path) -> None:
    again = Partial(path, dict(SETTINGS), fresh=False)
    assert again.resumed
    assert sizes(again) == [16, 64]
    assert again.device == {"matmul": {"steps": 4}}
    again.remove()
    assert not path.exists()


def test_fresh_forgets(path: Path) -> None:
    assert not Partial(path, SETTINGS, fresh=True).resumed
    assert not Partial(path, SETTINGS, fresh=False).resumed


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_truncated_line_is_left_out(
    path: Path, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text(path.read_text()[:-cut])
    again = Partial(path, SETTINGS, fresh=False)
    assert sizes(again) == [16, 64][: 1 if cut == 60 else 2]
    assert ("truncated" in caplog.text) == (cut > 1)
    again.add(line(256))
    assert sizes(Partial(path, SETTINGS, fresh=False))[-1] == 256


def test_a_damaged_line_in_the_middle(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = path.read_text().splitlines()
    lines[1] = '{"row": {"case": 3}}'
    path.write_text("\n".join(lines) + "\n")
    assert sizes(Partial(path, SETTINGS, fresh=False)) == [64]
    assert "line 2 is truncated or damaged" in caplog.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}\n", "not a file of partial results; --fresh starts anew"),
        ("not JSON", "not a file of partial results; --fresh starts anew"),
        ("[1, 2]\n", "not a file of partial results; --fresh starts anew"),
    ],
)
def test_other_files(path: Path, text: str, message: str) -> None:
    path.write_text(text)
    with pytest.raises(AutoDDLError, match=message):
        Partial(path, SETTINGS, fresh=False)
    assert path.read_text() == text


def test_other_settings(path: Path) -> None:
    before = path.read_text()
    with pytest.raises(AutoDDLError, match=r"other settings: ranks 2 instead of 4; give the same"):
        Partial(path, {**SETTINGS, "ranks": 4}, fresh=False)
    assert path.read_text() == before


def test_an_empty_file_is_none(tmp_path: Path) -> None:
    path = tmp_path / "x.partial"
    path.touch()
    assert not Partial(path, SETTINGS, fresh=False).resumed
    assert json.loads(path.read_text())["settings"] == {"ranks": 2, "sizes": [16, 64]}


def test_a_full_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AutoDDLError, match=r"partial results /dev/full: No space left on device"):
        Partial(Path("/dev/full"), SETTINGS, fresh=True)
    partial = Partial(path, SETTINGS, fresh=False)
    partial.path = Path("/dev/full")
    with pytest.raises(AutoDDLError, match=r"No space left on device; make room"):
        partial.add(line(256))
    assert 256 in sizes(partial)  # in memory it is


def test_without_a_path() -> None:
    partial = Partial(None, {}, fresh=False)
    partial.add(line(16))
    partial.remove()
    assert sizes(partial) == [16]
