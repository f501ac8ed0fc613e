"""What is launched, what is kept of it, and what happens when a launch fails."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoddl.calibrate import campaign
from autoddl.calibrate.campaign import ClusterNode
from autoddl.calibrate.network import link_timing
from autoddl.calibrate.network.link_cases import CollectiveCase, Timing
from autoddl.calibrate.network.link_settings import QUICK_SIZES, LinkSettings
from autoddl.calibrate.network.link_timing import FinishedLinks, time_links
from autoddl.engine import engines
from autoddl.errors import AutoDDLError
from autoddl.launch.launcher import LaunchError, LaunchResult
from autoddl.perfmodel import collectives

Job = dict[str, Any]
ONEFLOW = engines.load("oneflow")


def result(**fields: Any) -> LaunchResult:
    """Return a result whose other fields say that all went well."""
    good = {
        "returncodes": (0, 0), "failed_rank": None, "timed_out": False, "interrupted_by": None,
        "wall_s": 1.0, "logs": ("", ""), "log_dir": None, "tail": (), "message": "", "exit_code": 0,
    }  # fmt: skip
    return LaunchResult(**{**good, **fields})


OK = result()
CRASH = result(failed_rank=1, message="rank 1 was killed by SIGSEGV", exit_code=139)
RAISED = result(failed_rank=1, message="rank 1 failed", exit_code=1)
HUNG = replace(RAISED, tail=("Timeout (0:01:00)!", "Thread 0x1"))
LATE = result(timed_out=True, message="time limit", exit_code=124)
SMALL = LinkSettings(2, sizes=(1 << 12, 1 << 20), collectives=("all_reduce", "all_gather"))


def line_of(case: CollectiveCase) -> str:
    taken = collectives.seconds(
        case.collective, case.group_size, case.size_bytes, alpha_s=1e-4, beta_s_per_byte=1e-9
    )
    return json.dumps(
        {"row": Timing(case, case.size_bytes, 5, taken, taken, taken, taken).to_json()}
    )


class Ranks:
    """Stand in for `launch`: carry out `done` of the cases, then end as told."""

    def __init__(self, *outcomes: tuple[LaunchResult, int | None]) -> None:
        self.outcomes = list(outcomes)
        self.tasks: list[dict[str, Any]] = []
        self.jobs: list[Job] = []

    def __call__(self, command: list[str], **job: Any) -> LaunchResult:
        folder = Path(command[-1])
        outcome, done = self.outcomes.pop(0) if self.outcomes else (OK, None)
        self.jobs.append(job)
        if job["node_rank"] > 0:
            (folder / "outcome.json").write_text(json.dumps({"more": bool(self.outcomes)}))
            return outcome
        task = json.loads((folder / "task.json").read_text())
        self.tasks.append(task)
        with (folder / "results.jsonl").open("a") as file:
            for values in task["cases"][:done]:
                file.write(line_of(CollectiveCase(**values)) + "\n")
            if task["device"] and done is None:
                file.write(json.dumps({"device": {"matmul": {}}}) + "\n")
            if done is not None:
                file.write('{"row": {"ca')  # what a killed rank may leave
        return outcome


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ranks]:
    """Put made-up ranks in the place of real ones."""

    def put(*outcomes: tuple[LaunchResult, int | None]) -> Ranks:
        ranks = Ranks(*outcomes)
        monkeypatch.setattr(campaign, "launch", ranks)
        return ranks

    monkeypatch.setattr(type(ONEFLOW), "installed", lambda engine: True)
    return put


def memory_only() -> FinishedLinks:
    return FinishedLinks(None, SMALL)


def test_one_launch_measures_all(start: Callable[..., Ranks]) -> None:
    ranks, partial, seen = start(), memory_only(), []
    assert time_links(
        ONEFLOW, SMALL, partial, progress=lambda text, done: seen.append((text, done))
    )
    assert list(partial.timings) == SMALL.cases()
    assert partial.device is not None
    (task,) = ranks.tasks
    assert (task["iterations"], task["warm_up"], task["more"]) == (1000, 2, False)
    assert seen[0] == ("starting the ranks", 0.0)
    assert seen[-1] == ("device", 1.0)
    assert [done for _, done in seen] == sorted(done for _, done in seen)


def test_one_rank_has_no_cases(start: Callable[..., Ranks]) -> None:
    ranks = start()
    time_links(ONEFLOW, LinkSettings(1), memory_only())
    assert [(task["cases"], task["device"]) for task in ranks.tasks] == [([], True)]


def test_little_memory_makes_several_launches(
    start: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_timing, "memory", lambda key: 1 << 26)
    ranks, partial = start(), memory_only()
    time_links(ONEFLOW, SMALL, partial)
    assert set(partial.timings) == set(SMALL.cases())
    assert len(ranks.tasks) > 1
    assert [(task["device"], task["more"]) for task in ranks.tasks] == [
        *[(False, True)] * (len(ranks.tasks) - 1), (True, False)
    ]  # fmt: skip


@pytest.mark.parametrize("outcome", [CRASH, HUNG])
def test_after_a_crash_or_a_hang_the_next_launch_goes_on(
    outcome: LaunchResult, start: Callable[..., Ranks], caplog: pytest.LogCaptureFixture
) -> None:
    ranks, partial = start((outcome, 1)), memory_only()
    time_links(ONEFLOW, SMALL, partial)
    assert set(partial.timings) == set(SMALL.cases())
    assert [len(task["cases"]) for task in ranks.tasks] == [4, 3]
    assert f"{outcome.message}; trying once more" in caplog.text


def test_what_partial_results_have_is_not_measured_again(start: Callable[..., Ranks]) -> None:
    partial = memory_only()
    partial.file.add(json.loads(line_of(SMALL.cases()[0])))
    ranks = start()
    time_links(ONEFLOW, SMALL, partial)
    assert [len(task["cases"]) for task in ranks.tasks] == [3]
    time_links(ONEFLOW, SMALL, partial)
    assert len(ranks.tasks) == 1


def test_a_case_that_always_crashes_is_left_out(
    start: Callable[..., Ranks], caplog: pytest.LogCaptureFixture
) -> None:
    start((CRASH, 1), (CRASH, 0), (CRASH, 0))
    partial = memory_only()
    time_links(ONEFLOW, SMALL, partial)
    bad = SMALL.cases()[1]
    assert set(SMALL.cases()) - set(partial.timings) == {bad}
    assert f"3 times in {bad.label} of {bad.size_bytes} bytes, which is left out" in caplog.text


@pytest.mark.parametrize(
    ("outcomes", "launches"),
    [
        ([(RAISED, 1)], 1),
        ([(LATE, 1)], 1),
        ([(CRASH, 0)] * 3, 3),  # nothing works
        ([(CRASH, 1), *[(CRASH, 0)] * 20], 9),  # nothing works any more
    ],
)
def test_other_failures_are_errors(
    outcomes: list[tuple[LaunchResult, int]], launches: int, start: Callable[..., Ranks]
) -> None:
    ranks, partial = start(*outcomes), memory_only()
    with pytest.raises(LaunchError, match=outcomes[-1][0].message):
        time_links(ONEFLOW, SMALL, partial)
    assert len(ranks.tasks) == launches
    assert len(partial.timings) == outcomes[0][1]


def test_time_limit_and_ports(start: Callable[..., Ranks]) -> None:
    ranks = start((CRASH, 1), (CRASH, 1))
    node = ClusterNode(0, "10.0.0.1", 5000)
    time_links(ONEFLOW, replace(SMALL, nnodes=2), memory_only(), node=node, timeout_s=100.0)
    assert [job["master_port"] for job in ranks.jobs] == [5000, 5001, 5002]
    assert {job["master_addr"] for job in ranks.jobs} == {"10.0.0.1"}
    assert {job["nnodes"] for job in ranks.jobs} == {2}
    assert 99 < ranks.jobs[-1]["timeout_s"] <= 100


def test_other_nodes_follow(start: Callable[..., Ranks]) -> None:
    ranks, partial = start((OK, None), (CRASH, None), (OK, None)), memory_only()
    assert not time_links(
        ONEFLOW, replace(SMALL, nnodes=2), partial, node=ClusterNode(1, "10.0.0.1", 5000)
    )
    assert [job["master_port"] for job in ranks.jobs] == [5000, 5001, 5002]
    assert not partial.timings
    ranks = start(*[(CRASH, None)] * 20)
    with pytest.raises(LaunchError, match="SIGSEGV"):
        time_links(
            ONEFLOW, replace(SMALL, nnodes=2), partial, node=ClusterNode(1, "10.0.0.1", 5000)
        )
    assert len(ranks.jobs) == 9


def test_a_disk_that_fills_up_ends_the_ranks(
    start: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Slow(Ranks):
        def __call__(self, command: list[str], **job: Any) -> LaunchResult:
            ended = super().__call__(command, **job)
            time.sleep(30)  # until the interrupt comes
            return ended

    monkeypatch.setattr(campaign, "launch", Slow((OK, 2)))
    partial = FinishedLinks(tmp_path / "x.partial", SMALL)
    partial.file.path = Path("/dev/full")
    with pytest.raises(AutoDDLError, match="/dev/full: No space left on device"):
        time_links(ONEFLOW, SMALL, partial)


def test_ctrl_c_keeps_what_is_done(
    start: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(Ranks):
        def __call__(self, command: list[str], **job: Any) -> LaunchResult:
            super().__call__(command, **job)
            raise KeyboardInterrupt

    monkeypatch.setattr(campaign, "launch", Interrupted((OK, 3)))
    partial = memory_only()
    with pytest.raises(KeyboardInterrupt):
        time_links(ONEFLOW, SMALL, partial)
    assert len(partial.timings) == 3


def test_without_oneflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(ONEFLOW), "installed", lambda engine: False)
    with pytest.raises(AutoDDLError, match=r"pip install 'autoddl\[oneflow\]'"):
        time_links(ONEFLOW, SMALL, memory_only())


def test_bad_time_limit(start: Callable[..., Ranks]) -> None:
    with pytest.raises(AutoDDLError, match=r"timeout: got 0\.0; allowed are more than 0 seconds"):
        time_links(ONEFLOW, SMALL, memory_only(), timeout_s=0.0)


def test_quick_measures_less() -> None:
    quick, full = LinkSettings(4, quick=True, sizes=QUICK_SIZES), LinkSettings(4)
    assert len(quick.cases()) < len(full.cases()) / 2
    assert {case.groups for case in quick.cases() if case.group_size == 2} == {2}
    assert len(LinkSettings(4, mode="both").cases()) == 2 * len(full.cases())


def test_budget_and_repetitions_are_free_to_change_when_going_on() -> None:
    settings = LinkSettings(4)
    changed = replace(settings, budget_s=7.0, iterations=3, warm_up=0, device=False)
    assert settings.fingerprint() == changed.fingerprint()
    assert settings.fingerprint() != replace(settings, mode="eager").fingerprint()
    assert settings.fingerprint() != replace(settings, sizes=(4, 8)).fingerprint()
