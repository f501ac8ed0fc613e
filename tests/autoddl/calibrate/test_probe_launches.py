"""What is done about dead ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoddl.calibrate.probe_launches import Retries
from autoddl.launch.job import LaunchError, LaunchResult

CRASH = LaunchResult(
    returncodes=(-15, -11), failed_rank=1, timed_out=False, interrupted_by=None, wall_s=1.0,
    logs=("", ""), log_dir=None, tail=(), message="rank 1 died", exit_code=139,
)  # fmt: skip


def times(result: LaunchResult, stopped: list[str | None], *, any_done: bool = True) -> Retries:
    retries = Retries()
    for part in stopped:
        retries.account(result, part and f"part {part}", any_done=any_done)
    return retries


def test_a_part_that_crashes_three_times_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    assert times(CRASH, ["a", "a", "b"]).left_out == []
    assert "rank 1 died; trying once more" in caplog.text
    assert times(CRASH, ["a", "b", "a", "a"]).left_out == ["part a"]
    assert "3 times in part a, which is left out" in caplog.text


@pytest.mark.parametrize(
    ("stopped", "any_done"), [([*"aaabbbccc"], True), ([*"aaa"], False), ([None] * 3, True)]
)
def test_what_crashes_again_and_again_is_an_error(
    stopped: list[str | None], any_done: bool
) -> None:
    times(CRASH, stopped[:-1], any_done=any_done)
    with pytest.raises(LaunchError, match="rank 1 died"):
        times(CRASH, stopped, any_done=any_done)


def test_errors_and_time_limits_are_not_repeated() -> None:
    failed = replace(CRASH, exit_code=1)
    for result in (failed, replace(CRASH, exit_code=124, timed_out=True)):
        with pytest.raises(LaunchError):
            times(result, ["a"])
    times(replace(failed, tail=("Timeout (0:01:00)!",)), ["a"])
