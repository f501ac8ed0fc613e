"""The proof of boxings over shares: nothing is wrong, and pieces that are dealt wrongly would be seen."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from autoddl.sbp import boxing as boxing_module
from autoddl.sbp.numpy_oracle import simulated_boxings, simulated_tensors
from autoddl.sbp.shards import pieces
from autoddl.sbp.shares import Shares
from experiments.proofs import boxings

FEW = ("3:2/1/1", "2:3/1x2")


def test_all_boxings_and_paths_are_right() -> None:
    told: list[tuple[int, int]] = []
    report = boxings.run(seed=1, progress=lambda *n: told.append(n))
    assert report.faults == ()
    assert told == [(n, 10) for n in range(1, 11)]
    first, *_, last = report.results
    # B, P, S0, S1: every pair is a boxing, and the path from one to the other
    assert (first.states, first.boxings, first.paths, first.longest) == (4, 12, 12, 1)
    # B, P, S0, S1, S2 on each axis, and the three cuts of one dim by both in the other order, too
    assert (last.states, last.paths) == (25 + 3, 28 * 27)
    assert last.boxings < last.paths and last.longest > 2
    rows = list(report.rows())
    assert rows[0] == ("2:3/1", "4x8", "4", "12", "12", "1", "0")
    assert all(len(row) == len(report.columns) for row in rows)
    assert report.summary().endswith("paths run on simulated ranks, 0 wrong")
    assert json.loads(json.dumps(report.to_json()))["seed"] == 1


def off_by_one(array: Any, cut: Any, size: Any, axis: int) -> list[Any]:
    """Cut one element before the ends of shares."""
    if not isinstance(size, Shares):
        return pieces(array, cut, size, axis)
    ends = [array.shape[axis] // size.total * start - 1 for start in size.starts[1:]]
    return list(np.split(array, ends, axis=axis))


@pytest.mark.parametrize("module", [simulated_tensors, simulated_boxings])
def test_cut_points_that_are_off_by_one_are_found(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the shards that there are, or of those that boxings deal."""
    monkeypatch.setattr(module, "pieces", off_by_one)
    report = boxings.run(seed=1, meshes=FEW)
    for result in report.results:
        assert len(result.wrong) > result.boxings / 4
    steps = {line.split(" of shape ")[0].count(" to ") for line in report.faults}
    assert min(steps) == 1 and max(steps) > 2


def test_cuts_over_shares_that_are_merged_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """(B, B) to (S0, S0) in one collective of four deals even parts."""
    monkeypatch.setattr(boxing_module, "_mergeable", without_shares(boxing_module._mergeable))
    found = {str(r.mesh): [line.split(" of shape ")[0] for line in r.wrong]
             for r in boxings.run(seed=1, meshes=FEW).results}  # fmt: skip
    assert found["3:2/1/1"] == []
    assert "(B, B) to (S0, S0)" in found["2:3/1x2"]


def without_shares(mergeable: Callable[..., bool]) -> Callable[..., bool]:
    return lambda src, dst, axes, mesh: mergeable(src, dst, axes, (2,) * len(mesh))
