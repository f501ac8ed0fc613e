"""The scores of predictions, by hand and against SciPy."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from scipy.stats import spearmanr

from experiments.fidelity import scores
from experiments.lib.frames import Row


def row(plan: str, predicted_s: float, measured_s: float, model: str = "m") -> Row:
    return {
        "bed": "bed", "model": model, "plan": plan, "predicted_s": predicted_s,
        "measured_s": measured_s,
    }  # fmt: skip


def test_scores() -> None:
    rows = [row("a", 1.0, 1.0), row("b", 2.2, 2.0), row("c", 0.9, 1.05), row("d", 3.0, 4.0, "n")]
    found = scores.score(pd.DataFrame(rows))
    assert found["plans"] == 4
    assert found["mean_error"] == pytest.approx((0 + 0.1 + 0.15 / 1.05 + 0.25) / 4)
    assert found["worst_error"] == pytest.approx(0.25)
    assert found["bias"] == pytest.approx((0.0 - 0.15 / 1.05) / 2)
    assert found["regret"] == pytest.approx(0.05)  # c is predicted best, a is best
    assert found["spearman"] == pytest.approx(spearmanr([1, 2.2, 0.9, 3], [1, 2, 1.05, 4])[0])


def test_a_machine_that_is_slower_for_all_plans_of_a_model_scales_them() -> None:
    slow = [row("a", 1.0, 3.0), row("b", 2.0, 6.0), row("c", 1.0, 1.5, "n")]
    found = scores.score(pd.DataFrame(slow))
    assert found["mean_error"] == pytest.approx((2 / 3 + 2 / 3 + 1 / 3) / 3)
    assert found["scaled_error"] == pytest.approx(0.0)
    unlike = [row("a", 1.0, 2.0), row("b", 2.0, 1.0)]  # half and twice as long, 1 in geometric mean
    assert scores.score(pd.DataFrame(unlike))["scaled_error"] == pytest.approx((0.5 + 1.0) / 2)


def test_how_well_passes_repeat() -> None:
    # By hand: of 1, 2, 3 and 2, 1, 3 s ranks differ by 1, 1, 0, so Spearman is 1 - 6 * 2 / (3 * 8).
    found = scores.repeats(
        [[1.0, 2.0], [2.0, 1.0, 9.0], [3.0, 3.0]]
    )  # a third pass of one plan only
    assert found == pytest.approx({"repeat_spearman": 0.5, "repeat_error": 0.5})
    three = scores.repeats([[1.0, 1.0, 1.0], [2.0, 2.0, 1.0], [3.0, 3.0, 0.5]])  # 1, -0.866, -0.866
    assert three["repeat_spearman"] == pytest.approx(
        (1 + 2 * spearmanr([1, 2, 3], [2, 2, 1])[0]) / 3
    )
    assert scores.repeats([[1.0], [2.0]]) == {}


def test_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    scores.draw(pd.DataFrame([row("a", 1.0, 1.0), row("b", 2.0, 2.5, "n")]), tmp_path / "f")
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
