"""Files go on after an interruption, and are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoddl import store
from autoddl.errors import AutoDDLError


def test_lines_go_on_after_a_cut_off_one(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    store.append(path, {"row": 1})
    with path.open("a") as file:
        file.write('{"row": 2')
    assert store.read(path) == ({1: {"row": 1}}, [2])
    store.append(path, [3])
    assert store.read(path) == ({1: {"row": 1}, 3: [3]}, [2])
    assert path.read_text() == '{"row": 1}\n{"row": 2\n[3]\n'


def test_bytes_that_are_no_text_damage_one_line(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"1\n\xff\xfe\n2\n")
    assert store.read(path) == ({1: 1, 3: 2}, [2])


def test_writing_keeps_the_permissions(tmp_path: Path) -> None:
    path = tmp_path / "file"
    store.write(path, b"old")
    path.chmod(0o640)
    store.write(path, b"new")
    assert path.read_bytes() == b"new" and path.stat().st_mode & 0o777 == 0o640
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "full"
    path.symlink_to("/dev/full")
    with pytest.raises(AutoDDLError, match="full: No space left on device; make room"):
        store.write(path, b"x" * 100)
    assert path.is_symlink()


def test_what_can_be_written_is_known_before(tmp_path: Path) -> None:
    store.check_writable(None)
    store.check_writable(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
    for path in (tmp_path, tmp_path / "missing" / "file"):
        with pytest.raises(AutoDDLError, match=r"output file .*; give another with -o"):
            store.check_writable(path)
