"""The demo end to end, with few steps."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.on_ranks import LIMIT_S, ROOT


@pytest.mark.oneflow
@pytest.mark.ranks
@pytest.mark.slow
def test_demo_plans_trains_and_ends_in_parity(tmp_path: Path) -> None:
    """With a bundled profile: calibration has tests of its own."""
    options = ["--profile", "cpu-loopback", "--layers", "1", "--steps", "4"]
    command = [sys.executable, "-m", "experiments.demo", *options, "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, timeout=LIMIT_S, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    last = done.stdout.strip().splitlines()[-1]
    found = re.fullmatch(r"parity: max \|Δloss\| = (\S+) over 4 steps", last)
    assert found is not None, last
    assert float(found[1]) <= 1e-4
    losses = json.loads((tmp_path / "losses.json").read_text())
    assert [len(values) for values in losses.values()] == [4, 4]
    assert losses["one process"][0] > losses["one process"][-1]  # it learns
    assert (tmp_path / "losses.png").read_bytes().startswith(b"\x89PNG")
    for name in ("plan", "data parallel", "Megatron"):
        row = next(line for line in reversed(done.stdout.splitlines()) if f"│ {name} " in line)
        assert len(re.findall(r"\d+\.\d+ (?:s|ms)", row)) >= 4  # predicted and measured
    from autoddl.api import load
    from autoddl.perfmodel import profile

    used = profile.load(tmp_path / "network.json")
    assert load(tmp_path / "plan.json").profile == used.name


def test_the_text_of_the_demo_is_long_enough_for_its_windows() -> None:
    text = (ROOT / "experiments" / "demo" / "declaration.txt").read_bytes()
    assert len(text) > 4000
    assert len(set(text)) > 40
