"""Tests of the states that OneFlow makes, for scripts that are checked."""

from __future__ import annotations

from typing import Any

UNPLANNED: list[Any] = []


def expect(tensor, sbp, op):
    """Note where OneFlow has chosen another state than the plan."""
    if tuple(tensor.sbp) != tuple(sbp):
        UNPLANNED.append((op, str(tensor.sbp), str(sbp)))
