"""The proof of the steps' bound: it holds on small networks, and would see a bound that is too high."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.lib import cli
from experiments.proofs import step
from tests.support.programs import mlp


def run(folder: Path, *options: str) -> int:
    return cli.run(step.command, "proofs.step", [*options, "--folder", str(folder)])


def test_bounds_hold_and_with_too_much_weight_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(step, "captured", lambda *_: mlp(32, (64, 64)))
    assert run(tmp_path, "--models", "mlp", "--random", "30", "--tiny", "2") == 0
    found = capsys.readouterr().out.splitlines()
    assert found[0].startswith("30 random assignments: 0 steps below a bound")
    assert found[1] == "2 tiny problems: the least step found in 2, 0 bounds above it"
    assert run(tmp_path, "--models", "mlp", "--random", "30", "--tiny", "2", "--excess", "6") == 1
    found = capsys.readouterr().out.splitlines()
    assert "30 random assignments: 0 steps" not in found[0]
    assert found[1] == "2 tiny problems: the least step found in 2, 2 bounds above it"
