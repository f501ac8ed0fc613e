"""The proof of HiDup's costs and search: it holds, and would see a formula or a rule that is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autoddl.search.rivals.hidup.chain import Chain, ChainAssignment
from experiments.lib import cli
from experiments.proofs import hidup
from tests.support.programs import transformer

FEW = "--chains", "5", "--searched", "2", "--layers", ""


def run(folder: Path, *options: str) -> int:
    return cli.run(hidup.command, "proofs.hidup", [*options, "--folder", str(folder)])


def test_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hidup, "captured", lambda *_, layers: transformer(layers))
    assert run(tmp_path, "--chains", "20", "--searched", "5", "--layers", "1", "--meshes", "2") == 0
    found = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in found[:3]] == [
        f"20 chains, {kind}" for kind in ("all c > 0", "some c = 0", "some c = 0 and p = 0")
    ]
    assert "simulation by +0.0% to +0.0%, in 0;" in found[0].replace("-0.0%", "+0.0%")
    assert [line[-12:] for line in found[3:5]] == ["optimum in 0"] * 2
    assert found[6].startswith("GPT of 1 layers on 2: ")


def test_a_wrong_formula_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hidup, "closed_form_s", lambda c, p: sum(c) + 2 * sum(p))
    assert run(tmp_path, *FEW) == 1


def test_a_search_that_misses_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = hidup.search

    def worse(chain: Chain, rule: str) -> ChainAssignment:
        found = right(chain, rule)
        return replace(found, seconds=found.seconds * 1.001)

    monkeypatch.setattr(hidup, "search", worse)
    assert run(tmp_path, *FEW) == 1
