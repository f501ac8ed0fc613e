"""0-d tensors and the ops of vision models train as on one device, under random plans."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.on_ranks import Launched

pytestmark = [pytest.mark.oneflow, pytest.mark.ranks]


@pytest.fixture(params=["scalars", "vision"])
def both(request: pytest.FixtureRequest, launched: Launched) -> Any:
    """Return the name of a model, what its steps returned on one device, and what plans gave."""
    one, two = (
        json.loads((launched("small_models", ranks=ranks) / f"{request.param}.json").read_text())
        for ranks in (1, 2)
    )
    return request.param, one["one"]["steps"], two


def test_every_plan_has_the_numbers_of_one_device(both: Any) -> None:
    name, right, plans = both
    assert len(right[0]) == {"scalars": 1 + 12, "vision": 1 + 1}[name]
    assert len({step[0][0] for step in right}) == len(right)
    assert len(plans) == {"scalars": 1, "vision": 2}[name]
    for plan, found in plans.items():
        assert isinstance(found["steps"], list), (plan, found["steps"])
        for step, wanted in zip(found["steps"], right, strict=True):
            for value, number in zip(step, wanted, strict=True):
                assert value == pytest.approx(number, abs=1e-5), plan


def test_random_plans_cut_what_may_be_cut(both: Any) -> None:
    name, _, plans = both
    states: dict[str, set[str]] = {}
    for found in plans.values():
        for op_type, texts in found["states"].items():
            states.setdefault(op_type, set()).update(texts)
    if name == "scalars":
        assert "(P) (P)" in states["expand_dims"] and "(B) (B)" in states["reshape"]
        return
    for op_type in (
        "roll",
        "slice_update",
        "unfold",
        "fold",
        "unfold_tensor",
        "unfold_tensor_grad",
    ):
        assert any("(S0)" in text for text in states[op_type]), op_type
    for op_type in ("sqrt_square_sum", "bernoulli", "uniform", "normal"):
        assert {state for text in states[op_type] for state in text.split()} == {"(B)"}, op_type
