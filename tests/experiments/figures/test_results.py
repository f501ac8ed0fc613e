"""The page of all results: what has been run, with its tables and pictures, and what has not."""

from __future__ import annotations

import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pandas as pd
import pytest

from experiments.figures import __main__ as figures
from experiments.figures import results
from experiments.lib import cli, frames


def test_what_was_not_run_is_told(tmp_path: Path) -> None:
    page = results.page(tmp_path, tmp_path / "results")
    for part in results.PARTS:
        assert f"## {part.title}\n\nNot run: `python -m {part.module}`.\n" in page
    assert not (tmp_path / "results").exists()


def test_a_part_has_its_table_and_its_picture(tmp_path: Path) -> None:
    folder = tmp_path / "fidelity"
    folder.mkdir()
    frame = pd.DataFrame([{"group": "2x2-500mbit", "spearman": 0.99}])
    formats: frames.Formats = {"group": "{}", "spearman": "{:.3f}"}
    frames.save(frame, folder, "fidelity", [("Scores:", frame, formats)])
    (folder / "fidelity.svg").write_text("<svg/>")
    page = results.page(tmp_path, tmp_path / "results")
    assert "| 2x2-500mbit |" in page and "0.990" in page and "Scores:\n\n|" in page
    assert "](results/fidelity.svg)" in page
    assert (tmp_path / "results" / "fidelity.svg").read_text() == "<svg/>"


def test_a_script_that_fails_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[tuple[str, bool]] = []

    def done(part: results.ResultPart, quick: bool, _: Path) -> bool:
        tried.append((part.module, quick))
        return part.name != "clock"

    monkeypatch.setattr(figures, "_done", done)
    words = ["--quick", "--folder", str(tmp_path), "--document", str(tmp_path / "page.md")]
    assert cli.run(figures.command, "figures", words) == cli.MISSED
    assert tried == [(part.module, True) for part in results.PARTS if part.quick is not None]
    assert 0 < len(tried) < len(results.PARTS)
    assert "missed a bar or failed: python -m experiments.figures.clock" in capsys.readouterr().out
    assert (tmp_path / "page.md").read_text().startswith("<!-- Written by")


def test_devices_are_measured_once_for_all_that_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[list[str]] = []

    def run(line: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        lines.append(line)
        return subprocess.CompletedProcess(line, 0)

    monkeypatch.setattr(subprocess, "run", run)
    for part in results.PARTS:
        assert figures._done(part, True, tmp_path)
    shared = ["--devices", str(tmp_path)]
    given = [line[2] for line in lines if line[-2:] == shared]
    assert given == ["experiments.fidelity", "experiments.figures.clock"]


def test_every_part_has_options_that_its_script_knows() -> None:
    for part in results.PARTS:
        script = import_module(part.module)
        if not hasattr(script, "command"):  # a package
            script = import_module(f"{part.module}.__main__")
        known = {
            o for p in script.command.get_params(click.Context(script.command)) for o in p.opts
        }
        assert {word for word in part.quick or () if word.startswith("--")} <= known
