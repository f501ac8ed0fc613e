"""The studies of predictions: which plans they have, runs that go on, bars, one plan on real ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import autoddl
from autoddl.perfmodel.profile import Profile
from autoddl.planner.assemble import make_plan
from autoddl.sbp.program import Program
from autoddl.search.rivals.random_sampling import random_assignment
from experiments.fidelity import __main__ as fidelity
from experiments.fidelity import measure, studies
from experiments.fidelity.studies import STUDIES, FidelityStudy, MadePlan
from experiments.fidelity.workload import Bed
from experiments.lib import cli, ranks
from experiments.lib import oneflow_problems as builder
from experiments.lib.frames import Row, RowStore
from tests.support.clusters import cluster
from tests.support.on_ranks import RankGroups
from tests.support.programs import mlp, transformer

TWO = Bed("two", 1, 2, None)
SIZES = {"widths": [16, 32, 8], "batch": 8}


def test_stages_that_are_cut_badly_have_most_layers_in_front() -> None:
    ours, uneven = studies.pipelines(transformer(layers=8), Bed("4x1", 4, 1, "1gbit"), cluster())
    assert uneven.over == ours.name
    for one in (ours, uneven):
        assert (len(one.plan.parts), one.plan.micro_batches) == (4, 8)
    ops = [len(part.layout.signatures) for part in uneven.plan.parts]
    assert ops[0] > sum(ops[1:])


def test_every_study_has_testbeds_and_bars_of_plans_that_it_has() -> None:
    for name, study in STUDIES.items():
        assert study.beds and study.models, name
        assert len({bed.name for bed in study.beds}) == len(study.beds)
        assert {model for model, _ in study.longer} <= set(study.models)
    assert set(studies.DIVISIONS) == {bed.name for bed in STUDIES["mixed"].beds}


def rows(**steps: tuple[float, float, str]) -> list[Row]:
    return [
        {"study": "s", "bed": "a", "model": "m", "plan": plan, "over": over, "predicted_s": said,
         "measured_s": took, "passes_s": [took]}
        for plan, (said, took, over) in steps.items()
    ]  # fmt: skip


def test_bars_of_scores_and_of_plans_that_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    good = rows(ours=(1.0, 1.0, ""), rule=(1.3, 1.3, "ours"))
    bars: dict[str, Any] = {"most": {"mean_error": 0.1}, "longer": {("m", "rule"): 1.25}}
    study = FidelityStudy(studies.mixed, [], {}, **bars)
    (score,), met = fidelity.report(study, good)
    assert met and score["mean_error"] == pytest.approx(0.0) and score["missed"] == ""
    (line,) = [text for text in capsys.readouterr().out.splitlines() if " rule " in text]
    assert line.split()[-4:] == ["ours", "1.300", "1.300", "1.25"]
    fast = rows(ours=(1.0, 1.0, ""), rule=(1.2, 1.2, "ours"))
    assert not fidelity.report(study, fast)[1]
    (score,), met = fidelity.report(study, rows(ours=(1.3, 1.0, ""), rule=(1.4, 1.4, "ours")))
    assert not met and score["missed"] == "mean_error"
    without = FidelityStudy(studies.mixed, [], {})
    assert fidelity.report(without, fast)[1]


def made(program: Program, bed: Bed, profile: Profile) -> Iterator[MadePlan]:
    """Yield random plans."""
    problem = builder.build(program, bed.mesh, profile)
    for seed in (1, 2):
        found = problem.result("random", random_assignment(problem, seed))
        yield MadePlan(f"random {seed}", make_plan(problem, found))


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> FidelityStudy:
    found = FidelityStudy(made, [TWO], {"mlp": SIZES}, passes=2)
    monkeypatch.setitem(STUDIES, "s", found)
    return found


def test_the_quickest_of_all_passes_counts_and_a_run_goes_on(
    tmp_path: Path, study: FidelityStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []

    def run(module: str, arguments: Sequence[str], limit_s: float) -> str:
        *_, result, plan = arguments
        runs.append(Path(plan).stem)
        if runs == ["00", "01", "00"]:
            return "rank 1 was killed"
        RowStore(Path(result)).add({"plan": runs[-1], "step_s": 3.0 - 0.5 * len(runs)})
        return ""

    monkeypatch.setattr(fidelity, "captured", lambda *_, **__: mlp(8, (16, 32, 8)))
    profile = tmp_path / "profile.json"
    cluster().save(profile)
    trials = fidelity.PlanRuns("s", TWO, "mlp", tmp_path, tmp_path / "two")
    for number in (1, 2):
        fidelity.PlanRuns("s", TWO, "mlp", tmp_path, tmp_path / "two").run(run, number, profile)
    trials.run(run, 2, profile)  # nothing is left to run
    assert runs == ["00", "01", "00", "01"]
    measured = [(row["plan"], row["measured_s"]) for row in trials.rows()]
    assert measured == [("random 1", 2.5), ("random 2", 1.0)]


@pytest.mark.oneflow
@pytest.mark.ranks
def test_a_plan_is_timed_on_real_ranks(
    tmp_path: Path, study: FidelityStudy, on_ranks: RankGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "started", on_ranks.started)
    profile = tmp_path / "profile.json"
    cluster().save(profile)
    trials = fidelity.PlanRuns("s", TWO, "mlp", tmp_path, tmp_path / "two")
    trials.make(profile)
    (tmp_path / "two" / "s-mlp" / "plans.json").write_text('[{"plan": "random 1", "over": ""}]')
    assert autoddl.load(tmp_path / "two" / "s-mlp" / "00.json").redistributions
    with measure.running(TWO) as (run, _):
        trials.run(run, 1, profile)
    (row,) = trials.kept.rows
    assert row["changed"] == 0 and not row.get("error")
    (found,) = trials.rows()
    assert found["measured_s"] > 0


def test_a_study_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--studies", "gains", "--folder", str(tmp_path)]
    assert cli.run(fidelity.command, "fidelity", argv) == 2
    assert "'gains' is not one of 'plans', 'halves'" in capsys.readouterr().err
