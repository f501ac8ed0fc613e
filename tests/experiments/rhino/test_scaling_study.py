"""Rhino's scaling: rows of a small program beside other solvers and sums by hand, and what misses."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from autoddl.perfmodel import profile as profiles
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.search.budget import Budget
from autoddl.search.solvers import ilp
from experiments.lib import cli
from experiments.lib import oneflow_problems as problems
from experiments.rhino import scaling_study as study
from tests.support.programs import mlp

SHORT = Budget(evaluations=5000)
SAMPLES, FEATURES = 1024, (512, 1024, 512, 256)  # for which sums and steps have unlike plans


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Program:
    program = mlp(SAMPLES, FEATURES, act="relu", bias=False, device="cuda")
    monkeypatch.setattr(study, "traced", lambda *_: program)
    return program


def test_strong_rows_are_optimal_printed_and_kept(
    tiny: Program,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(study, "STRONG", ((1, 4), (4, 4)))
    asked = ["--studies", "strong", "--budget", "0.5", "--folder", str(tmp_path)]
    assert cli.run(study.command, "rhino", asked) == 0
    rows = pd.read_csv(tmp_path / "scaling_strong.csv").set_index(["platform", "devices"])
    for platform, level in study.LEVELS.items():
        network = problems.build(
            tiny, Mesh.parse(f"[{level} 4]"), profiles.load(study.PROFILE, device_type="cuda")
        )
        row = rows.loc[platform, 4]
        assert row.sum_s == pytest.approx(ilp.search(network).cost_s)
        assert row.sum_s <= row.data_sum_s and row.any_s <= row.step_s
        assert row.speedup == pytest.approx(rows.loc[platform, 1].any_s / row.any_s)
    assert "one variable of layer 0" in capsys.readouterr().out


def test_what_is_cut_is_told_by_layer(tiny: Program) -> None:
    plans = [study.planned(tiny, SHORT, mesh="4", search=name) for name in ("ZeRO 2", study.DATA)]
    assert [plan and study.cut_text(plan) for plan in plans] == ["fc1 1/1, fc2 1/1, fc3 1/1", ""]
    assert (
        study.layer("model.blocks.3.fc1.bias") == "fc1"
        and study.layer("model.position") == "position"
    )


def test_products_by_hand_and_the_part_of_the_peak(tiny: Program, tmp_path: Path) -> None:
    """The first layer has two, since nobody wants the gradient of its input, others three."""
    flops = 2 * SAMPLES * (2 * 512 * 1024 + 3 * 1024 * 512 + 3 * 512 * 256)
    assert study.product_flops(tiny) == flops
    row = study.mfu_row("gpt", "one stage", 2, SHORT, tmp_path)
    assert row["mfu"] == pytest.approx(flops / (2 * 15.6e12 * row["step_s"]))


def test_what_does_not_fit_has_no_step(
    tiny: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    row = study.weak_row("UNet", 2, SHORT, tmp_path)
    assert row["parameters"] == 512 * 1024 + 1024 * 512 + 512 * 256
    assert row["best_s"] <= row["data_s"] and row["best_bytes"] > 4 * 4 * row["parameters"] / 2
    assert study.planned(tiny, SHORT, mesh="2", memory="1KiB") is None


def test_throughput_is_that_of_the_fewest_devices_that_hold_a_model() -> None:
    frame = pd.DataFrame({
        "model": ["VGG19, SGD"] * 4 + ["UNet"] * 3, "devices": [1, 2, 4, 8, 1, 2, 4],
        "best_s": [None, 2.0, 2.0, 2.5, 1.0, 1.0, 1.0],
        "data_s": [None, None, None, None, 1.0, 1.005, 1.02],
    })  # fmt: skip
    found = study.told("weak", frame)
    assert found.throughput[1:].tolist() == [1.0, 1.0, 0.8, 1.0, 1.0, 1.0]
    assert found.loss[4:].tolist() == pytest.approx([0.0, 0.005, 0.02])
    assert study.misses("weak", found).tolist() == [False] * 6 + [True]
    found.loc[0, "best_s"], found.loc[3, "best_s"] = 1.0, None
    assert study.misses("weak", found).tolist() == [True, False, False, True, False, False, True]


def test_plans_other_than_the_papers_miss() -> None:
    frame = pd.DataFrame({
        "devices": [2, 2, 4, 8, 8, 8], "batch": [4, 4, 4, 4, 4, 8], "layers_cut": [0, 3, 3, 48, 24, 0],
        "cut": ["token 1/1", "fc1 3/48", "fc1 3/48", "qkv 48/48, head 1/1", "qkv 24/48", ""],
    })  # fmt: skip
    assert study.misses("strong", frame).tolist() == [False, True, False, False, True, False]
