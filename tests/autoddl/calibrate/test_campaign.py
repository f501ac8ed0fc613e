"""What is kept of an interrupted measurement, and what is made of damaged files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autoddl.calibrate.campaign import Campaign
from autoddl.calibrate.device.op_timing import OpSource
from autoddl.errors import AutoDDLError

SETTINGS = {"ranks": 2, "sizes": (16, 64)}


class Sizes(Campaign[OpSource]):
    """A measurement whose parts are sizes."""

    kind = "test"

    def __init__(self, path: Path | None, settings: dict[str, Any], *, fresh: bool = False) -> None:
        super().__init__([], settings, path, fresh=fresh)

    def read(self, line: Any) -> tuple[OpSource, int]:
        size = int(line["size"])
        return OpSource("size", (size,), "sgd"), size

    def task(self, batch: Any, left: Any) -> Any:
        raise NotImplementedError  # these tests launch nothing

    @property
    def sizes(self) -> list[int]:
        return list(self.found.values())


def sizes(path: Path) -> list[int]:
    return Sizes(path, dict(SETTINGS)).sizes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "network.json.partial"
    parts = Sizes(path, SETTINGS)
    assert not parts.found
    for size in (16, 64, 128):
        parts.add({"size": size})
    return path


def test_it_goes_on(path: Path) -> None:
    again = Sizes(path, dict(SETTINGS))
    assert again.sizes == [16, 64, 128]
    again.forget()
    assert not path.exists()


def test_fresh_forgets(path: Path) -> None:
    assert not Sizes(path, SETTINGS, fresh=True).found
    assert sizes(path) == []


@pytest.mark.parametrize(("cut", "left"), [(1, 3), (5, 2), (15, 2), (17, 1)])
def test_a_truncated_line_is_left_out(
    path: Path, cut: int, left: int, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text(path.read_text()[:-cut])
    again = Sizes(path, SETTINGS)
    assert again.sizes == [16, 64, 128][:left]
    assert ("truncated" in caplog.text) == (cut not in (1, 15))
    again.add({"size": 256})
    assert sizes(path) == [*[16, 64, 128][:left], 256]


def test_a_damaged_line_in_the_middle(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = path.read_text().splitlines()
    for spoilt in ('{"size": [3]}', '{"length": 3}', "[]", '{"si'):
        path.write_text("\n".join([lines[0], spoilt, *lines[2:]]) + "\n")
        assert sizes(path) == [64, 128]
        assert "line 2 is truncated or damaged" in caplog.text
        caplog.clear()


@pytest.mark.parametrize("text", ["{}\n", "not JSON", "[1, 2]\n"])
def test_other_files(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(AutoDDLError, match="not a file of partial results; --fresh starts anew"):
        Sizes(path, SETTINGS)
    assert path.read_text() == text


def test_other_settings(path: Path) -> None:
    before = path.read_text()
    with pytest.raises(AutoDDLError, match=r"other settings: ranks 2 instead of 4; give the same"):
        Sizes(path, {**SETTINGS, "ranks": 4})
    assert path.read_text() == before


def test_an_empty_file_is_none(tmp_path: Path) -> None:
    path = tmp_path / "x.partial"
    path.touch()
    assert not Sizes(path, SETTINGS).found
    assert json.loads(path.read_text())["settings"] == {"ranks": 2, "sizes": [16, 64]}


def test_a_full_disk(path: Path) -> None:
    with pytest.raises(AutoDDLError, match=r"partial results /dev/full: No space left on device"):
        Sizes(Path("/dev/full"), SETTINGS, fresh=True)
    parts = Sizes(path, SETTINGS)
    parts.partial = Path("/dev/full")
    with pytest.raises(AutoDDLError, match=r"No space left on device; make room"):
        parts.add({"size": 256})
    assert 256 in parts.sizes  # in memory it is


def test_without_a_path() -> None:
    parts = Sizes(None, {})
    parts.add({"size": 16})
    parts.forget()
    assert parts.sizes == [16]
