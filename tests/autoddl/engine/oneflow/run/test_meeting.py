"""Ranks meet at the beginning of what all have to call, and say for whom they wait."""

from __future__ import annotations

import pytest

from tests.support.on_ranks import Launched, seen_by

pytestmark = [pytest.mark.oneflow, pytest.mark.ranks]


def test_a_rank_that_calls_alone_says_so_and_goes_on_when_the_other_comes(
    launched: Launched,
) -> None:
    first, second = seen_by(2, launched("alone", ranks=2))
    before = {
        "optimize": None,  # it depends on what the ranks have run before
        "apply": "optimize",
        "step": "apply",
        "step.save": "step",
    }
    lines = [line for line in first["told"] if line.startswith("autoddl: rank ")]
    assert len(lines) == len(before)
    for line, (call, last) in zip(lines, before.items(), strict=True):
        waits = f"autoddl: rank 0 waits in {call}() for others: every rank has to call it (rank 1: "
        assert line.startswith(waits)
        assert last is None or line == f"{waits}last in {last}())"
    assert first["loss"] == second["loss"]


def test_unlike_calls_at_the_same_place_are_an_error_on_all_ranks(launched: Launched) -> None:
    first, second = seen_by(2, launched("alone", ranks=2))
    found = (
        "ranks differ (1 in step.state_dict(), 1 in step.load()); every rank has to make the same"
    )
    assert first["unlike"].startswith(f"step.load: {found}")
    assert second["unlike"].startswith(f"step.state_dict: {found}")
