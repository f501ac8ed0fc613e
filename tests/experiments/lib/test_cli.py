"""Command lines of experiments: one line for bad input, exit codes, names with commas."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from autoddl.errors import AutoDDLError
from autoddl.launch.launcher import LaunchError
from experiments.lib import cli

SEE = "see `python -m experiments.lib.example --help`\n"
FAILED: Any = SimpleNamespace(
    message="rank 1 failed", tail=("a", "b"), log_dir="logs", exit_code=139
)


@click.command()
@cli.listed("--names", ("a", "b", "c"), ("a", "b"), help="of things")
@click.option("--number", default=1)
@cli.folder("out/never")
def command(names: tuple[str, ...], number: int, folder: Path) -> int | None:
    if number == 7:
        raise AutoDDLError("seven is too many")
    if number == 8:
        raise KeyboardInterrupt
    if number == 9:
        raise LaunchError(FAILED)
    print(*names, folder.exists())
    return None if number < 2 else number


def run(tmp_path: Path, *argv: str) -> int:
    return cli.run(command, "lib.example", [*argv, "--folder", str(tmp_path / "new" / "folder")])


def test_values_and_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path) == 0
    assert run(tmp_path, "--names", "c,a", "--number", "3") == 3
    assert capsys.readouterr().out == "a b True\nc a True\n"


@pytest.mark.parametrize(
    ("argv", "code", "text"),
    [
        (["--names", "a,d"], 2, f"'--names': 'd' is not one of 'a', 'b', 'c'; {SEE}"),
        (["--number", "x"], 2, f"'--number': 'x' is not a valid integer; {SEE}"),
        (["--other"], 2, f"(Did you mean one of: '--folder', '--help'?); {SEE}"),
        (["--number", "7"], 2, "lib.example: seven is too many\n"),
        (["--number", "8"], 130, "lib.example: interrupted; what is done is kept\n"),
        (["--number", "9"], 139, "rank 1 failed\na\nb\nlib.example: logs of all ranks: logs\n"),
    ],
)
def test_what_goes_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str], code: int, text: str
) -> None:
    assert run(tmp_path, *argv) == code
    out, err = capsys.readouterr()
    assert out == "" and err.lstrip().startswith("lib.example: ") and err.endswith(text)


def test_help_names_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(command, "lib.example", ["--help"]) == 0
    said: Any = capsys.readouterr().out
    assert said.startswith("Usage: python -m experiments.lib.example") and "of things" in said
