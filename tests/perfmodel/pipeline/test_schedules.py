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
    with pytest.raises(AutoDDLError, match="'oneflow' has no fixed order"):
        order("credits", 0, 2, 2)


def test_interleaved_is_the_figure_of_megatron() -> None:
    """Narayanan et al. 2021, figure 4: four devices with two chunks, eight micro-batches."""
    first = order("interleaved", 0, 4, 8, 2)
    forward = [(p.stage, p.micro_batch) for p in first if p.kind == "F"]
    assert forward == [(s, i) for group in (0, 4) for s in (0, 4) for i in range(group, group + 4)]
    backward = [(p.stage, p.micro_batch) for p in first if p.kind == "B"]
    assert backward == [(s, i) for group in (0, 4) for s in (4, 0) for i in range(group, group + 4)]
    warm = [next(i for i, p in enumerate(order("interleaved", r, 4, 8, 2)) if p.kind == "B")
            for r in range(4)]  # fmt: skip
    assert warm == [11, 9, 7, 5]  # one more than (4 − rank − 1) · 2 + 4, as 1F1B begins with F
    assert "".join(p.kind for p in first[10:22]) == "FBFBFBFBFBFB"
