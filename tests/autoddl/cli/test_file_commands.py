"""`python -m autoddl sign`: what was edited on purpose is checked, and then read again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoddl.checkpoint import sharded_files
from autoddl.cli import app
from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles

GOLDEN = Path(__file__).parents[2] / "perfmodel" / "golden_profile.json"


def edited(path: Path, **changes: object) -> Path:
    path.write_text(json.dumps(json.loads(GOLDEN.read_text()) | changes))
    return path


def test_an_edited_file_is_signed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = edited(tmp_path / "network.json", name="mine")
    with pytest.raises(AutoDDLError, match=r"was changed after it was written; .*autoddl sign"):
        profiles.load(path)
    assert app.main(["sign", str(path)]) == 0
    assert capsys.readouterr().out == f"signed profile {path}\n"
    assert profiles.load(path).name == "mine"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"links": 3}, "$.links: expected"),
        ({"format": "autoddl.else"}, "none of plan, program, profile, checkpoint"),
        ({"version": 99}, "version 99, this autoddl reads"),
    ],
)
def test_a_wrong_file_is_refused_and_stays(
    changes: dict[str, object], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = edited(tmp_path / "network.json", **changes)
    before = path.read_bytes()
    assert app.main(["sign", str(path)]) == 2
    error = capsys.readouterr().err
    assert expected in error and error.count("\n") == 1
    assert path.read_bytes() == before


def test_the_index_of_a_checkpoint_is_signed(tmp_path: Path) -> None:
    data = json.loads((Path(__file__).parents[1] / "checkpoint" / "index.json").read_text())
    data["facts"]["steps"] = 7
    (tmp_path / "index.json").write_text(json.dumps(data))
    with pytest.raises(AutoDDLError, match="was changed after it was written"):
        sharded_files.read_index(tmp_path)
    assert app.main(["sign", str(tmp_path / "index.json")]) == 0
    assert sharded_files.read_index(tmp_path).facts.steps == 7


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"steps": "\x1b[31m"}, "$.facts.steps: expected `int`"),
        ({"steps": -1}, "$.facts.steps: expected `int` >= 0"),
        ({"blocks": 3}, "$.facts.blocks: expected `array`"),
        ({"graph": "\x1b[31m"}, r"name '\x1b[31m'; allowed is text"),
    ],
)
def test_facts_of_a_checkpoint_are_checked(
    facts: dict[str, object], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads((Path(__file__).parents[1] / "checkpoint" / "index.json").read_text())
    (tmp_path / "index.json").write_text(json.dumps(data | {"facts": facts}))
    for words_of_command in (["sign", str(tmp_path / "index.json")], ["merge", str(tmp_path)]):
        assert app.main(words_of_command) == 2
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1 and error[:-1].isprintable()


def test_what_is_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (tmp_path, tmp_path / "missing"):
        assert app.main(["sign", str(name)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
