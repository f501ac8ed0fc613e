"""The demo end to end, on a toy's sizes."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autoddl import api
from autoddl.perfmodel import profile
from experiments.demo import __main__ as demo
from experiments.demo import speed_act
from experiments.fidelity import measure
from experiments.fidelity.workload import Bed
from experiments.lib import cli, programs, ranks
from experiments.testbed import network
from experiments.testbed.spec import TestbedError
from tests.support.on_ranks import ROOT, RankGroups

TOY = {"layers": 1, "width": 16, "sequence": 8, "vocabulary": 64}


@pytest.mark.oneflow
@pytest.mark.ranks
@pytest.mark.slow
def test_demo_plays_both_acts(
    tmp_path: Path, on_ranks: RankGroups, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """On two ranks, with a bundled profile: calibration has tests of its own."""

    def launched(command: list[str], nproc_per_node: int, **_: Any) -> SimpleNamespace:
        on_ranks(*command, ranks=nproc_per_node)
        return SimpleNamespace(ok=True)

    def traced(module: str, words: list[str], **_: Any) -> None:
        on_ranks("-m", module, *words, ranks=1)

    monkeypatch.setattr(ranks, "launch", launched)
    monkeypatch.setattr(programs, "in_child", traced)
    monkeypatch.setattr(measure, "_alone", nullcontext)
    monkeypatch.setattr(demo, "LOOPBACK", Bed("loopback", 1, 2, None))
    monkeypatch.setattr(speed_act, "ROUNDS", 3)
    for name, size in TOY.items():
        monkeypatch.setitem(speed_act.SIZES, name, size)
    options = ["--profile", "cpu-loopback", "--layers", "1", "--steps", "3"]
    code = cli.run(demo.command, "demo", [*options, "--out", str(tmp_path)])
    out, err = capsys.readouterr()
    assert code == 0, out[-3000:] + err[-3000:]
    _check_lines(out.splitlines()[-3:], tmp_path)
    _check_losses(tmp_path)
    _check_steps(tmp_path)
    used = profile.load(tmp_path / "network.json")
    assert api.load(tmp_path / "plan.json").profile == used.name


def _check_lines(lines: list[str], folder: Path) -> None:
    parity, speed, pictures = lines
    found = re.fullmatch(
        r"parity: max \|Δloss\| = (\S+) over 3 steps, (\S+) between plans of act two", parity
    )
    assert found is not None, parity
    assert float(found[1]) <= 1e-4
    assert float(found[2]) <= 1e-4
    # three turns say nothing
    one = "(as fast as|the same plan as)"
    assert re.fullmatch(f"speed: ours is {one} data parallel, {one} ZeRO 2, {one} Megatron", speed)
    assert pictures == f"pictures: {folder / 'losses.png'}, {folder / 'steps.png'}"


def _check_losses(folder: Path) -> None:
    losses = json.loads((folder / "losses.json").read_text())
    assert [len(values) for values in losses.values()] == [3, 3]
    assert losses["one process"][0] > losses["one process"][-1]  # it learns
    assert (folder / "losses.png").read_bytes().startswith(b"\x89PNG")


def _check_steps(folder: Path) -> None:
    """Of all four plans there are predicted seconds, those of its file, and measured ones."""
    steps = json.loads((folder / "steps.json").read_text())
    assert list(steps["plans"]) == ["ours", "data parallel", "ZeRO 2", "Megatron"]
    for name, row in steps["plans"].items():
        plan = api.load(folder / f"words_{name.replace(' ', '_')}.json")
        assert row["predicted_s"] == plan.estimate.step_s > 0
        assert len(row["samples_s"]) == 3
        assert row["measured_s"] == sorted(row["samples_s"])[1] > 0
        assert len(row["losses"]) == 3
    assert (folder / "steps.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "steps.svg").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--mesh", "3"], "--mesh: got '3', 3 devices; allowed are meshes of 4"),
        (["--mesh", "x"], "mesh"),
        (["--steps", "0"], "--steps"),
        (["--layers", "-1"], "--layers"),
        (["--profile", "nowhere"], "nowhere"),
        (["--testbed"], "needs root"),
        (["--testbed", "1gbit"], "1gbit"),
        (["--out", __file__], "test_demo.py"),
    ],
)
def test_wrong_words_are_told_in_a_line_before_anything_runs(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused() -> None:
        raise TestbedError("needs root")

    def run(*_: Any, **__: Any) -> None:
        pytest.fail("something ran")

    monkeypatch.setattr(network, "require", refused)
    monkeypatch.setattr(measure, "device", run)
    assert cli.run(demo.command, "demo", words) == 2
    out, err = capsys.readouterr()
    assert not out
    assert len(err.splitlines()) == 1
    assert said in err


def test_the_text_of_the_demo_is_long_enough_for_its_windows() -> None:
    text = (ROOT / "experiments" / "demo" / "declaration.txt").read_bytes()
    assert len(text) > 4000
    assert len(set(text)) > 40
