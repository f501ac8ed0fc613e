"""The fidelity experiment: its scores by hand and against SciPy, one plan on real ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from autoddl.make_plan import make_plan
from autoddl.search import builder
from autoddl.search.random import random_assignment
from experiments.fidelity import measure, report, workload
from experiments.fidelity.report import Row
from experiments.fidelity.workload import Bed
from tests.clusters import cluster


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


@pytest.mark.oneflow
def test_a_plan_is_timed_on_real_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(workload.MODELS, "mlp", {"widths": [16, 32, 8], "batch": 8})
    bed, file, program = Bed("two", 1, 2, None), tmp_path / "00.json", tmp_path / "mlp.json"
    problem = builder.build(measure.captured(program, "mlp"), bed.mesh, cluster())
    plan = make_plan(problem, problem.result("random", random_assignment(problem, 1)))
    plan.save(file)
    with measure.running(bed) as (run, _):
        (found,) = measure.measure(run, tmp_path, "mlp", program, [file], lambda: None, 1)
    assert plan.redistributions
    assert (found.error, found.changed) == ("", 0)
    assert found.step_s > 0 and found.communication_s > 0
    with measure.running(bed) as (run, _):  # goes on: nothing is left to measure
        assert measure.measure(run, tmp_path, "mlp", program, [file], pytest.fail, 1) == [found]


def test_the_quickest_of_all_passes_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = tmp_path / "m.jsonl"
    runs: list[str] = []

    def run(command: Sequence[str], limit_s: float) -> str:
        plan = Path(command[-1]).stem
        runs.append(plan)
        if runs == ["00", "01", "00"]:
            return "rank 1 was killed"
        line = {"plan": plan, "step_s": 3.0 - 0.5 * len(runs), "communication_s": 0.1 * len(runs)}
        done.open("a").write(json.dumps(line) + "\n")
        return ""

    files = [tmp_path / "00.json", tmp_path / "01.json"]
    monkeypatch.setitem(workload.MODELS, "m", {})
    found = measure.measure(run, tmp_path, "m", tmp_path / "p", files, lambda: None, 2)
    assert runs == ["00", "01", "00", "01"]
    assert [(m.plan, m.step_s, m.communication_s, m.error) for m in found] == [
        ("00", 2.5, 0.1, ""),
        ("01", 1.0, 0.2, ""),
    ]
