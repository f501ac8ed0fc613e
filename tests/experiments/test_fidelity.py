"""The scores of the fidelity experiment, by hand and against SciPy; no plan is run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from experiments.fidelity import report
from experiments.fidelity.report import Row


def row(plan: str, predicted_s: float, measured_s: float, model: str = "m") -> Row:
    sent_s = 0.5 * measured_s if plan != "a" else 0.0  # a has no communication
    return Row("bed", model, plan, plan, 0.2, 0.4, 0.1, predicted_s, measured_s, sent_s)


def test_scores() -> None:
    rows = [row("a", 1.0, 1.0), row("b", 2.2, 2.0), row("c", 0.9, 1.05), row("d", 3.0, 4.0, "n")]
    (found,) = report.scores(rows)
    assert found.plans == 4
    assert found.mean_error == pytest.approx((0 + 0.1 + 0.15 / 1.05 + 0.25) / 4)
    assert found.communication_error == pytest.approx((0.6 + 0.125 / 0.525 + 0.8) / 3)
    assert found.worst_error == pytest.approx(0.25)
    assert found.regret == pytest.approx(0.05)  # c is predicted best, a is best
    assert found.covered == 0.25  # only a is within ±0.1 s
    assert found.spearman == pytest.approx(spearmanr([1, 2.2, 0.9, 3], [1, 2, 1.05, 4])[0])


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=9))
def test_rank_correlation_with_ties(pairs: list[tuple[int, int]]) -> None:
    a, b = zip(*pairs, strict=True)
    if len(set(a)) > 1 and len(set(b)) > 1:
        assert report.spearman(a, b) == pytest.approx(spearmanr(a, b)[0])


def test_files(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [row("a", 1.0, 1.0), row("b", 2.0, 2.5, "n")]
    report.write_csv(rows, tmp_path / "f.csv")
    lines = (tmp_path / "f.csv").read_text().splitlines()
    assert lines[0].startswith("bed,model,plan") and len(lines) == 3
    report.draw(rows, tmp_path / "f.png")
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
