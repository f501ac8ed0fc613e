"""Every experiment can be started without options: its defaults are values that it accepts."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import click
import pytest

from tests.support.on_ranks import ROOT

EXPERIMENTS = ROOT / "experiments"
MODULES = sorted(
    ".".join(file.relative_to(ROOT).with_suffix("").parts)
    for file in EXPERIMENTS.rglob("*.py")
    if "\ndef command(" in file.read_text()
)


def test_all_are_found() -> None:
    assert len(MODULES) >= 12
    assert "experiments.fidelity.memory.__main__" in MODULES


@pytest.mark.parametrize("module", MODULES)
def test_defaults(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("oneflow")
    monkeypatch.chdir(tmp_path)  # where folders are made
    command = import_module(module).command
    assert isinstance(command, click.Command)
    try:
        command.make_context(module, [])
    except click.MissingParameter as missing:  # what has no default has to be given
        assert missing.param is not None
        assert missing.param.required
