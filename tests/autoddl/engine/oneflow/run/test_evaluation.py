"""Validation between training steps: the same numbers as one process, on the weights as they are."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.on_ranks import Launched, seen_by

pytestmark = [pytest.mark.oneflow, pytest.mark.ranks, pytest.mark.smoke]


@pytest.fixture(scope="module")
def expected(launched: Launched) -> Any:
    """Return what one process saw without autoddl."""
    (seen,) = seen_by(1, launched("evaluations", ranks=1))
    return seen


@pytest.fixture(scope="module")
def seen(launched: Launched) -> Any:
    """Return what gives what each of so many ranks saw."""
    return lambda ranks: seen_by(ranks, launched("evaluations", ranks=ranks))


# By plan: on how many ranks, and held against which training of one process.
PLANS = {"2x2": (4, "coupled"), "ZeRO": (2, "coupled"), "halves": (2, "apart")}


@pytest.mark.parametrize("plan", PLANS)
def test_training_and_validation_are_those_of_one_process(
    plan: str, expected: Any, seen: Any
) -> None:
    ranks, kind = PLANS[plan]
    one = expected[kind]
    assert len({loss for loss in one["losses"]}) == 4
    for rank in seen(ranks):
        assert rank[plan]["losses"] == pytest.approx(one["losses"], abs=1e-5)
        for found, right in zip(rank[plan]["evaluated"], one["evaluated"], strict=True):
            assert found["loss"] == pytest.approx(right["loss"], abs=1e-5)
            for row, wanted in zip(found["out"], right["out"], strict=True):
                assert row == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("plan", PLANS)
def test_a_module_is_called_on_a_batch_of_another_size(plan: str, expected: Any, seen: Any) -> None:
    ranks, kind = PLANS[plan]
    one = expected[kind]
    for rank in seen(ranks):
        for found, right in zip(rank[plan]["module"], one["module"], strict=True):
            assert len(found) == 6
            for row, wanted in zip(found, right, strict=True):
                assert row == pytest.approx(wanted, abs=1e-5)


def test_parameters_on_stages_are_refused(seen: Any) -> None:
    for rank in seen(2):
        assert "on the stages of another plan" in rank["stages"]
        assert "save a checkpoint" in rank["stages"]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("eager", "Model: called with a local tensor"),
        ("trains", "has an optimizer"),
        ("no graph", "got int"),
        ("closed", "apply the plan again"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(what: str, words: str, seen: Any) -> None:
    for rank in seen(2):
        assert words in rank["ZeRO"][what]
        assert "\n" not in rank["ZeRO"][what]
