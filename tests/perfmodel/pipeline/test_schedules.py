"""The orders of pipelines beside published figures."""

from __future__ import annotations

import pytest

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.pipeline.schedules import Pass, order


def names(passes: list[Pass]) -> str:
    return " ".join(f"{p.kind}{p.micro_batch}" for p in passes)


def test_1f1b_and_gpipe() -> None:
    assert names(order("1f1b", 0, 4, 5)) == "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4"
    assert names(order("1f1b", 2, 4, 5)) == "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4"
    assert names(order("1f1b", 3, 4, 3)) == "F0 B0 F1 B1 F2 B2"
    assert names(order("1f1b", 0, 4, 2)) == "F0 F1 B0 B1"
    assert names(order("gpipe", 1, 2, 3)) == "F0 F1 F2 B2 B1 B0"
    with pytest.raises(AutoDDLError, match="'credits' has no fixed order"):
        order("credits", 0, 2, 2)
