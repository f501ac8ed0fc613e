"""One forward, one backward: the order of the literature, and its closed form of what is in flight."""

from __future__ import annotations

import pytest

from autoddl.perfmodel.pipeline.one_f_one_b import one_f_one_b
from autoddl.perfmodel.pipeline.schedules import strict_in_flight


def test_the_order_of_the_literature() -> None:
    texts = [" ".join(f"{kind}{n}" for kind, n in one_f_one_b(stage, 4, 6)) for stage in range(4)]
    assert texts == [
        "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5",
        "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5",
        "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5",
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5",
    ]


@pytest.mark.parametrize("stage", range(5))
@pytest.mark.parametrize("micro_batches", [1, 2, 4, 9])
def test_at_most_stages_minus_stage_are_in_flight(stage: int, micro_batches: int) -> None:
    flying, most = 0, 0
    for kind, _ in one_f_one_b(stage, 5, micro_batches):
        flying += 1 if kind == "F" else -1
        most = max(most, flying)
    assert flying == 0
    assert most == strict_in_flight(5, micro_batches)[stage]
