"""What is launched, what is kept of it, and what happens when a launch fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from autoddl.calibrate import campaign, probe_launches
from autoddl.calibrate.campaign import OnProgress
from autoddl.calibrate.network.link_campaign import DEVICE, LinkCampaign
from autoddl.calibrate.network.link_cases import (
    QUICK_SIZES,
    CollectiveCase,
    LinkSettings,
    LinkTask,
    OverlapTiming,
    Timing,
)
from autoddl.calibrate.probe_launches import probe_job
from autoddl.engine import engines
from autoddl.errors import AutoDDLError
from autoddl.launch.job import LaunchArgumentError, LaunchError, LaunchJob, LaunchResult
from autoddl.perfmodel import collectives

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
    row = Timing(case, case.size_bytes, 5, taken, taken, taken, taken)
    return msgspec.json.encode({"row": row}).decode()


class Ranks:
    """Stand in for `launcher.run`: carry out `done` of the cases, then end as told."""

    def __init__(self, *outcomes: tuple[LaunchResult, int | None]) -> None:
        self.outcomes = list(outcomes)
        self.tasks: list[LinkTask] = []
        self.jobs: list[LaunchJob] = []

    def __call__(self, job: LaunchJob, on_turn: Callable[[], None] = lambda: None) -> LaunchResult:
        folder = Path(job.command[-1])
        outcome, done = self.outcomes.pop(0) if self.outcomes else (OK, None)
        self.jobs.append(job)
        if job.node_rank > 0:
            (folder / "outcome.json").write_text(json.dumps({"more": bool(self.outcomes)}))
            return outcome
        task = msgspec.json.decode((folder / "task.json").read_bytes(), type=LinkTask)
        self.tasks.append(task)
        with (folder / "results.jsonl").open("a") as file:
            for case in task.cases[:done]:
                file.write(line_of(case) + "\n")
            if task.device and done is None:
                file.write(json.dumps({"device": {"matmul": {}}}) + "\n")
            for overlap in task.overlaps if done is None else ():
                timing = OverlapTiming(overlap, 5, 1e-2, 2e-2, 2.2e-2, 5e-3, 1e-2)
                file.write(msgspec.json.encode({"overlap": timing}).decode() + "\n")
            if done is not None:
                file.write('{"row": {"ca')  # what a killed rank may leave
        return outcome


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ranks]:
    """Put made-up ranks in the place of real ones."""

    def put(*outcomes: tuple[LaunchResult, int | None]) -> Ranks:
        ranks = Ranks(*outcomes)
        monkeypatch.setattr(probe_launches, "run", ranks)
        return ranks

    monkeypatch.setattr(type(ONEFLOW), "installed", lambda engine: True)
    return put


def measure(
    links: LinkCampaign, progress: OnProgress = lambda text, done: None, **options: Any
) -> None:
    settings = links.settings
    fields = {"nproc_per_node": settings.nproc_per_node, "nnodes": settings.nnodes, **options}
    links.run(probe_job(ONEFLOW, ONEFLOW.probes.links, **fields), progress)


def measured(links: LinkCampaign) -> set[CollectiveCase]:
    return {timing.case for timing in links.timings}


def test_one_launch_measures_all(start: Callable[..., Ranks]) -> None:
    ranks, links = start(), LinkCampaign(SMALL)
    seen: list[tuple[str, float]] = []
    measure(links, lambda text, done: seen.append((text, done)))
    assert tuple(timing.case for timing in links.timings) == SMALL.cases()
    assert links.found[DEVICE] == {"matmul": {}}
    (task,) = ranks.tasks
    assert (task.settings, task.more) == (SMALL, False)
    assert seen[0] == ("starting the ranks", 0.0)
    assert seen[-1] == ("ops beside all-gather over 2 ranks", 1.0)
    assert [t.case for t in links.overlaps] == list(SMALL.overlap_cases())
    assert [done for _, done in seen] == sorted(done for _, done in seen)


def test_one_rank_has_no_cases(start: Callable[..., Ranks]) -> None:
    ranks = start()
    measure(LinkCampaign(LinkSettings(1)))
    assert [(task.cases, task.device) for task in ranks.tasks] == [((), True)]
    measure(LinkCampaign(LinkSettings(1, device=False)))
    assert len(ranks.tasks) == 1


def test_little_memory_makes_several_launches(
    start: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 1 << 27
    monkeypatch.setattr(campaign, "memory", lambda key: 4 * free)
    settings = LinkSettings(2, sizes=tuple(1 << k for k in range(14, 26, 2)))
    ranks, links = start(), LinkCampaign(settings)
    measure(links)
    assert tuple(case for task in ranks.tasks for case in task.cases) == settings.cases()
    assert tuple(c for task in ranks.tasks for c in task.overlaps) == settings.overlap_cases()
    for task in ranks.tasks:
        parts = (*task.cases, *task.overlaps)
        assert len(parts) <= 1 or sum(c.memory_bytes for c in parts) <= free
    assert len(ranks.tasks) > 1
    assert [task.more for task in ranks.tasks] == [True] * (len(ranks.tasks) - 1) + [False]
    assert sum(task.device for task in ranks.tasks) == 1


@pytest.mark.parametrize("outcome", [CRASH, HUNG])
def test_after_a_crash_or_a_hang_the_next_launch_goes_on(
    outcome: LaunchResult, start: Callable[..., Ranks], caplog: pytest.LogCaptureFixture
) -> None:
    ranks, links = start((outcome, 1)), LinkCampaign(SMALL)
    measure(links)
    assert measured(links) == set(SMALL.cases())
    assert [len(task.cases) for task in ranks.tasks] == [4, 3]
    assert f"{outcome.message}; trying once more" in caplog.text


def test_what_partial_results_have_is_not_measured_again(start: Callable[..., Ranks]) -> None:
    links = LinkCampaign(SMALL)
    links.add(json.loads(line_of(SMALL.cases()[0])))
    ranks = start()
    measure(links)
    assert [len(task.cases) for task in ranks.tasks] == [3]
    measure(links)
    assert len(ranks.tasks) == 1


def test_a_case_that_always_crashes_is_left_out(
    start: Callable[..., Ranks], caplog: pytest.LogCaptureFixture
) -> None:
    start((CRASH, 1), (CRASH, 0), (CRASH, 0))
    links = LinkCampaign(SMALL)
    measure(links)
    bad = SMALL.cases()[1]
    assert set(SMALL.cases()) - measured(links) == {bad}
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
    ranks, links = start(*outcomes), LinkCampaign(SMALL)
    with pytest.raises(LaunchError, match=outcomes[-1][0].message):
        measure(links)
    assert len(ranks.tasks) == launches
    assert len(links.timings) == outcomes[0][1]


def test_the_device_is_not_left_out(start: Callable[..., Ranks]) -> None:
    ranks, links = start(*[(CRASH, 4)] * 20), LinkCampaign(SMALL)
    with pytest.raises(LaunchError):
        measure(links)
    assert len(ranks.tasks) == 3 and DEVICE not in links.found


def test_time_limit_and_ports(start: Callable[..., Ranks]) -> None:
    ranks = start((CRASH, 1), (CRASH, 1))
    links = LinkCampaign(replace(SMALL, nnodes=2))
    measure(links, master_addr="10.0.0.1", master_port=5000, timeout_s=100.0)
    assert [job.master_port for job in ranks.jobs] == [5000, 5001, 5002]
    assert {(job.nnodes, job.master_addr) for job in ranks.jobs} == {(2, "10.0.0.1")}
    last_s = ranks.jobs[-1].timeout_s
    assert last_s is not None and 99 < last_s <= 100


def test_other_nodes_follow(start: Callable[..., Ranks]) -> None:
    ranks, links = (
        start((OK, None), (CRASH, None), (OK, None)),
        LinkCampaign(replace(SMALL, nnodes=2)),
    )
    measure(links, node_rank=1, master_port=5000)
    assert [job.master_port for job in ranks.jobs] == [5000, 5001, 5002]
    assert not links.timings
    ranks = start(*[(CRASH, None)] * 20)
    with pytest.raises(LaunchError, match="SIGSEGV"):
        measure(links, node_rank=1, master_port=5000)
    assert len(ranks.jobs) == 9


def test_a_disk_that_fills_up_ends_the_ranks(
    start: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Slow(Ranks):
        def __call__(
            self, job: LaunchJob, on_turn: Callable[[], None] = lambda: None
        ) -> LaunchResult:
            super().__call__(job)
            on_turn()
            raise AssertionError("not reached")

    monkeypatch.setattr(probe_launches, "run", Slow((OK, 2)))
    links = LinkCampaign(SMALL, tmp_path / "x.partial")
    links.partial = Path("/dev/full")
    with pytest.raises(AutoDDLError, match="/dev/full: No space left on device"):
        measure(links)


def test_ctrl_c_keeps_what_is_done(
    start: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(Ranks):
        def __call__(
            self, job: LaunchJob, on_turn: Callable[[], None] = lambda: None
        ) -> LaunchResult:
            super().__call__(job)
            raise KeyboardInterrupt

    monkeypatch.setattr(probe_launches, "run", Interrupted((OK, 3)))
    links = LinkCampaign(SMALL)
    with pytest.raises(KeyboardInterrupt):
        measure(links)
    assert len(links.timings) == 3


def test_jobs_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LaunchArgumentError, match="nproc_per_node: got 0"):
        measure(LinkCampaign(LinkSettings(0)))
    monkeypatch.setattr(type(ONEFLOW), "installed", lambda engine: False)
    with pytest.raises(AutoDDLError, match=r"pip install 'autoddl\[oneflow\]'"):
        measure(LinkCampaign(SMALL))


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
