"""What is scheduled, how it is packed into launches, and what happens when a launch fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoddl.engine import measure as module
from autoddl.engine.launch import LaunchError, LaunchResult
from autoddl.engine.measure import Case, measure, pack, schedule
from autoddl.errors import AutoDDLError
from autoddl.perfmodel import collectives
from autoddl.sbp.boxing import COLLECTIVES

OK = LaunchResult((0, 0), None, False, None, 1.0, ("", ""), None, (), "", 0)
ALPHA, BETA = 1e-4, 1e-9


def timed(seconds: float, **fields: Any) -> dict[str, Any]:
    return {"chain_s": [1e-3 + seconds] * 3, "twin_s": [1e-3] * 3, "steps": 1, **fields}


def fake_launch(outcomes: list[LaunchResult], tasks: list[Any]) -> Callable[..., LaunchResult]:
    """Return a launch that ends as told and, where all goes well, writes what ranks would."""

    def launch(command: list[str], *, nproc_per_node: int, **_: Any) -> LaunchResult:
        folder = Path(command[-1])
        task = json.loads((folder / "task.json").read_text())
        tasks.append(task)
        outcome = outcomes.pop(0) if outcomes else OK
        if outcome.ok:
            links = []
            for case in task["cases"]:
                key = (case["collective"], case["group_size"], case["size_bytes"])
                taken = collectives.seconds(*key, alpha_s=ALPHA, beta_s_per_byte=BETA)
                links.append({**case, **timed(taken), "size_bytes": case["size_bytes"]})
            device = {
                name: timed(2e-3, flops=1e6, moved_bytes=1e6)
                for name in ("overhead", "bandwidth", "matmul", "conv")
            }
            device["overhead"] = timed(1e-5, flops=1.0, moved_bytes=1.0)
            for rank in range(nproc_per_node):
                text = json.dumps({"links": links, "device": device if task["device"] else {}})
                (folder / f"rank{rank}.json").write_text(text)
        return outcome

    return launch


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    seen: list[Any] = []
    monkeypatch.setattr(module, "find_spec", lambda name: object())
    monkeypatch.setattr(module, "launch", fake_launch([], seen))
    return seen


@pytest.mark.parametrize(
    ("ranks", "groups"), [(1, []), (2, [2]), (4, [4, 2]), (6, [6, 3, 2]), (7, [7])]
)
def test_every_divisor_is_a_group_size(ranks: int, groups: list[int]) -> None:
    cases = schedule(ranks, (1 << 14, 1 << 20))
    assert sorted({case.group_size for case in cases}, reverse=True) == groups
    assert len(cases) == len(groups) * len(COLLECTIVES) * 2


@pytest.mark.parametrize("size", [1, 1 << 14, 1 << 20, 5 << 19, 1 << 24, 1 << 30])
def test_chains_have_an_even_number_of_steps(size: int) -> None:
    steps = Case("all_to_all", 2, size).steps
    assert steps >= 2
    assert steps % 2 == 0


def test_launches_keep_within_memory() -> None:
    cases = schedule(4, module.SIZES)
    limit = 1 << 28
    batches = pack(cases, memory_bytes=limit)
    assert [case for batch in batches for case in batch] == cases
    assert len(batches) > 1
    for batch in batches:
        assert len(batch) == 1 or sum(case.memory_bytes for case in batch) <= limit


def test_without_cases_there_is_one_launch_for_the_device() -> None:
    assert pack([], memory_bytes=1) == [[]]


def test_measure(tasks: list[Any]) -> None:
    seen: list[float] = []
    profile = measure(2, quick=True, progress=lambda text, done: seen.append(done), name="x")
    assert profile.name == "x"
    assert profile.source.startswith(
        "measured with python -m autoddl.fit_network --quick --mode eager on 2"
    )
    for collective in COLLECTIVES:
        link = profile.link(collective, "gpu", 2)
        assert (link.alpha_s, link.beta_s_per_byte) == pytest.approx((ALPHA, BETA))
    assert all(0 <= done <= 1 for done in seen)


def test_one_rank_has_no_links(tasks: list[Any]) -> None:
    profile = measure(1)
    assert profile.links == ()
    assert [task["device"] for task in tasks] == [True]


def test_little_memory_makes_several_launches(
    tasks: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_memory", lambda key: 1 << 29)
    profile = measure(2)
    assert len(tasks) > 1
    assert [task["device"] for task in tasks] == [False] * (len(tasks) - 1) + [True]
    assert len(profile.links) == len(COLLECTIVES)


CRASH = replace(
    OK, returncodes=(-15, -11), failed_rank=1, message="rank 1 was killed", exit_code=139
)
RAISED = replace(OK, returncodes=(-15, 1), failed_rank=1, message="rank 1 failed", exit_code=1)
LATE = replace(OK, returncodes=(-15, -15), timed_out=True, message="time limit", exit_code=124)


@pytest.mark.parametrize("outcome", [CRASH, LATE])
def test_a_crash_or_a_hang_is_tried_once_more(
    outcome: LaunchResult,
    tasks: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "launch", fake_launch([outcome], tasks))
    assert len(measure(2, quick=True).links) == len(COLLECTIVES)
    assert len(tasks) == 2
    assert f"{outcome.message}; trying once more" in caplog.text


@pytest.mark.parametrize(
    ("outcomes", "launches"), [([CRASH, CRASH], 2), ([RAISED], 1), ([LATE, LATE], 2)]
)
def test_other_failures_are_errors(
    outcomes: list[LaunchResult],
    launches: int,
    tasks: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "launch", fake_launch(list(outcomes), tasks))
    with pytest.raises(LaunchError, match=outcomes[-1].message):
        measure(2, quick=True)
    assert len(tasks) == launches


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nproc_per_node": 0}, "nproc_per_node: got 0; allowed are 1 rank and more"),
        ({"nproc_per_node": 2, "mode": "lazy"}, "mode: got 'lazy'; allowed are graph, eager"),
        ({"nproc_per_node": 2, "timeout_s": 0.0}, "timeout: got 0.0; allowed are more than 0"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str, tasks: list[Any]) -> None:
    with pytest.raises(AutoDDLError, match=message):
        measure(**arguments)
    assert not tasks


def test_without_oneflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(AutoDDLError, match=r"pip install 'autoddl\[oneflow\]'"):
        measure(2)
