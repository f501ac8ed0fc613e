"""The demo end to end, with few steps."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from experiments.demo import __main__ as demo
from experiments.lib import cli
from tests.support.on_ranks import ROOT, RankGroups


@pytest.mark.oneflow
@pytest.mark.ranks
@pytest.mark.slow
def test_demo_plans_trains_and_ends_in_parity(
    tmp_path: Path, on_ranks: RankGroups, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """On two ranks, beside one baseline, with a bundled profile: calibration has tests of its own."""

    def launched(command: list[str], nproc_per_node: int, **_: Any) -> None:
        on_ranks(*command, ranks=nproc_per_node)

    monkeypatch.setattr(demo, "launch", launched)
    monkeypatch.setattr(demo, "RANKS", 2)
    monkeypatch.setattr(demo, "BASELINES", {"Megatron": "megatron.json"})
    options = ["--profile", "cpu-loopback", "--layers", "1", "--steps", "3"]
    code = cli.run(demo.command, "demo", [*options, "--out", str(tmp_path)])
    out, err = capsys.readouterr()
    assert code == 0, out[-3000:] + err[-3000:]
    last = out.strip().splitlines()[-1]
    found = re.fullmatch(r"parity: max \|Δloss\| = (\S+) over 3 steps", last)
    assert found is not None, last
    assert float(found[1]) <= 1e-4
    losses = json.loads((tmp_path / "losses.json").read_text())
    assert [len(values) for values in losses.values()] == [3, 3]
    assert losses["one process"][0] > losses["one process"][-1]  # it learns
    assert (tmp_path / "losses.png").read_bytes().startswith(b"\x89PNG")
    for name in ("plan", "Megatron"):
        row = next(line for line in reversed(out.splitlines()) if f"│ {name} " in line)
        assert len(re.findall(r"\d+\.\d+ (?:s|ms)", row)) >= 4  # predicted and measured
    from autoddl.api import load
    from autoddl.perfmodel import profile

    used = profile.load(tmp_path / "network.json")
    assert load(tmp_path / "plan.json").profile == used.name


def test_the_text_of_the_demo_is_long_enough_for_its_windows() -> None:
    text = (ROOT / "experiments" / "demo" / "declaration.txt").read_bytes()
    assert len(text) > 4000
    assert len(set(text)) > 40
