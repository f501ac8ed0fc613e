"""Trials with ranks that are made up, or know nothing of OneFlow: what is noted, passed over, skipped."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoddl.engine import engines
from autoddl.errors import AutoDDLError
from autoddl.launch.job import LaunchError, LaunchJob, LaunchResult
from autoddl.plan import codec
from autoddl.plan.value import PlanValue
from autoddl.planner import choose
from autoddl.trials import trial_runs
from autoddl.trials.trial_runs import fastest, plans_of
from autoddl.trials.trial_settings import Trials, own_script
from experiments.lib.oneflow_problems import read
from tests.support.clusters import cluster
from tests.support.programs import mlp
from tests.support.rank_scripts import Write

pytestmark = pytest.mark.oneflow  # launches ask whether it is there

WELL = LaunchResult(
    returncodes=(0, 0), failed_rank=None, timed_out=False, interrupted_by=None, wall_s=1.0,
    logs=("", ""), log_dir=None, tail=(), message="", exit_code=0,
)  # fmt: skip
DEAD = replace(WELL, failed_rank=1, message="rank 1 of 2 failed with exit code 3", exit_code=3)
HUNG = replace(WELL, timed_out=True, message="time limit of 9 s reached", exit_code=124)
CRASH = replace(WELL, failed_rank=1, message="rank 1 of 2 was killed by SIGSEGV", exit_code=139)
KILLED = replace(WELL, failed_rank=0, message="rank 0 of 2 was killed by SIGKILL", exit_code=137)
FULL = replace(DEAD, tail=("RuntimeError: Out", "terminate called: std::bad_alloc"))
Seconds = list[float]


class Ranks:
    """What launches come to, one after the other: seconds of steps, or how they end without."""

    def __init__(self, *outcomes: Seconds | LaunchResult) -> None:
        self.outcomes = list(outcomes)
        self.plans: list[str] = []
        self.jobs: list[LaunchJob] = []

    def __call__(self, job: LaunchJob, task: Any, tell: Callable[[Any], None]) -> LaunchResult:
        self.plans.append(Path(task.plan).stem)
        self.jobs.append(job)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, LaunchResult):
            return outcome
        tell({"seconds": outcome})
        return WELL


@pytest.fixture(scope="module")
def plans() -> Sequence[PlanValue]:
    return choose.best(read(mlp(64, (32, 64, 32)), mesh="2", profile=cluster()), 3)


@pytest.fixture
def tried(plans: Sequence[PlanValue], tmp_path: Path, write: Write) -> Callable[..., PlanValue]:
    def run(launch: Any, program: str = "abc", count: int = 3) -> PlanValue:
        settings = Trials(folder=tmp_path / "trials", timeout_s=9.0)
        return fastest(plans[:count], program, [write("")], settings, launch=launch)

    return run


def notes(plan: PlanValue) -> list[str]:
    return [trial.note for trial in plan.search.trials]


def test_the_fastest_measured_is_chosen(
    tried: Callable[..., PlanValue], plans: Sequence[PlanValue], tmp_path: Path
) -> None:
    ranks = Ranks([3.0, 5.0, 4.0], [2.0, 9.0, 1.0], [7.0])
    chosen = tried(ranks)
    assert chosen.states == plans[1].states
    assert [trial.measured_s for trial in chosen.search.trials] == [4.0, 2.0, 7.0]
    assert [t.predicted_s for t in chosen.search.trials] == [p.estimate.step_s for p in plans]
    assert ranks.plans == [plan.states for plan in plans]
    assert {job.timeout_s for job in ranks.jobs} == {9.0}
    kept = codec.load(tmp_path / "trials" / "best.json", engines.model)
    assert kept.states == chosen.states and kept.search.trials == chosen.search.trials


@pytest.mark.parametrize(
    ("ends", "note"),
    [
        ([DEAD], "rank 1 of 2 failed with exit code 3"),
        ([HUNG], "time limit of 9 s reached"),
        ([CRASH, CRASH], "rank 1 of 2 was killed by SIGSEGV"),
        ([KILLED], "over memory: rank 0 of 2 was killed by SIGKILL"),
        (
            [FULL],
            "over memory: rank 1 of 2 failed with exit code 3: terminate called: std::bad_alloc",
        ),
        ([WELL], "script.py ended without a call of autoddl.optimize for this graph"),
    ],
)
def test_what_fails_is_noted_and_passed_over(
    tried: Callable[..., PlanValue], ends: list[LaunchResult], note: str
) -> None:
    ranks = Ranks(*ends, [2.0], [3.0])
    chosen = tried(ranks)
    assert notes(chosen)[0].endswith(note) and notes(chosen)[1:] == ["", ""]
    assert chosen.search.trials[0].measured_s is None
    assert chosen.states == ranks.plans[-2]
    again = Ranks()  # what failed is not tried again, either
    assert tried(again).search.trials == chosen.search.trials and again.plans == []


def test_a_race_of_the_engine_gets_another_chance(tried: Callable[..., PlanValue]) -> None:
    assert notes(tried(Ranks(CRASH, [1.0], [2.0], [3.0]))) == ["", "", ""]


def test_an_interrupted_call_goes_on(
    tried: Callable[..., PlanValue], plans: Sequence[PlanValue]
) -> None:
    with pytest.raises(IndexError):
        tried(Ranks([1.0], [2.0]))
    ranks = Ranks([3.0])
    assert [t.measured_s for t in tried(ranks).search.trials] == [1.0, 2.0, 3.0]
    assert ranks.plans == [plans[2].states]


def test_what_the_machine_has_no_memory_for_is_not_started(
    tried: Callable[..., PlanValue], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_runs, "memory", lambda key: 100 << 20)
    ranks = Ranks()
    said = r"none of 1 plans could be run; mesh 2: over memory: 2 ranks need 600.* has 100.0 MiB"
    with pytest.raises(AutoDDLError, match=said):
        tried(ranks, count=1)
    assert ranks.plans == []


def test_a_folder_of_another_program_is_refused(
    tried: Callable[..., PlanValue], tmp_path: Path
) -> None:
    tried(Ranks([1.0]), count=1)
    said = f"program 'abc' instead of 'xyz'.* delete {tmp_path / 'trials'} to begin anew"
    with pytest.raises(AutoDDLError, match=said):
        tried(Ranks([1.0]), program="xyz", count=1)


def test_ranks_that_hang(plans: Sequence[PlanValue], tmp_path: Path, write: Write) -> None:
    """A real launch, of a script without OneFlow."""
    settings = Trials(folder=tmp_path / "trials", timeout_s=2.0)
    with pytest.raises(
        AutoDDLError, match="none of 1 plans could be run; mesh 2: time limit of 2 s"
    ):
        fastest(plans[:1], "abc", [write("time.sleep(60)")], settings)
    (_, line) = (tmp_path / "trials" / "trials.jsonl").read_text().splitlines()
    assert json.loads(line)["note"].startswith("time limit of 2 s reached")


def test_a_script_that_fails_before_it_plans(tmp_path: Path, write: Write) -> None:
    script = write("raise SystemExit('no data')")
    with pytest.raises(LaunchError) as caught:
        plans_of([script], 2, Trials(folder=tmp_path / "trials"))
    assert caught.value.tail == ("no data",)
    with pytest.raises(AutoDDLError, match=r"script.py ended without a call of autoddl.optimize"):
        plans_of([write("")], 1, Trials(folder=tmp_path / "trials"))


def test_a_script_that_plans_for_other_devices(
    plans: Sequence[PlanValue], tmp_path: Path, write: Write
) -> None:
    def launch(job: LaunchJob, task: Any, tell: Callable[[Any], None]) -> LaunchResult:
        codec.save(plans[0], Path(task.folder, f"{plans[0].states}.json"))
        tell({"program": "abc", "plans": [plans[0].states]})
        return WELL

    settings = Trials(folder=tmp_path / "trials")
    assert plans_of([write("")], 2, settings, launch)[0] == "abc"
    with pytest.raises(AutoDDLError, match="plans mesh 2, 2 devices, on 4 ranks; give --nproc"):
        plans_of([write("")], 4, settings, launch)


def test_where_there_is_nothing_to_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    with pytest.raises(AutoDDLError, match="runs no script"):
        own_script()


def test_a_program_has_no_model_to_run() -> None:
    import autoddl

    with pytest.raises(AutoDDLError, match="trials: got 2 for a program, which has no model"):
        autoddl.optimize(mlp(64, (32, 64, 32)), mesh="2", profile=cluster(), trials=2)
