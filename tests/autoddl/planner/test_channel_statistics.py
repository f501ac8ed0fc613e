"""BatchNorms in training over one value per channel are refused, in one line, whatever makes them."""

from __future__ import annotations

from typing import Any

import pytest

import autoddl
from autoddl.errors import AutoDDLError
from autoddl.sbp.program import Program
from tests.sbp.rewrites.test_sync_batchnorm import program
from tests.support.clusters import cluster

ONE = "one value per channel, whose variance is no number; allowed are two and more; give "


def refusal(whole: Program, **options: Any) -> str:
    with pytest.raises(AutoDDLError) as caught:
        autoddl.optimize(whole, mesh="2", profile=cluster(), budget=0.5, **options)
    return str(caught.value)


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 1, 1)])
def test_a_batch_of_one_value(shape: tuple[int, ...]) -> None:
    said = refusal(program(shape))
    assert said == (
        f"op layers.0-normalization-0: got shape {shape} for a BatchNorm in training, {ONE}a larger "
        "batch, or a model that is in evaluation (.eval())"
    )


@pytest.mark.parametrize("options", [{"pipeline": 2}, {"pipeline": 1}])
def test_micro_batches_of_one_value(options: dict[str, Any]) -> None:
    said = refusal(program((4, 2)), micro_batches=4, **options)
    assert "got shape (1, 2) in each of 4 micro-batches" in said
    assert f"{ONE}fewer micro-batches, a larger batch" in said


def test_several_values_are_planned() -> None:
    for shape, options in (
        ((2, 4), {}), ((1, 4, 2), {}), ((4, 4), {"micro_batches": 2, "pipeline": 1})
    ):  # fmt: skip
        plan = autoddl.optimize(program(shape), mesh="2", profile=cluster(), budget=0.5, **options)
        assert "normalization" in {op.type for op in plan.program.ops}


def test_other_numbers_of_micro_batches_are_tried() -> None:
    options = {"mesh": "2", "profile": cluster(), "pipeline": "auto", "budget": 0.5}
    plan = autoddl.optimize(program((4, 2)), **options)
    told = {one.micro_batches: one.note for one in plan.search.outcomes}
    assert plan.micro_batches < 4 and "in each of 4 micro-batches" in told[4]


def test_evaluation_is_planned() -> None:
    whole = program((1, 4), training=False)
    plan = autoddl.optimize(whole, mesh="2", profile=cluster(), budget=0.5)
    assert plan.program.ops
