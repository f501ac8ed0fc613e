"""Devices of unlike memory: each place of a mesh with shares, and each stage, is held to its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import autoddl
from autoddl.engine.model import counted
from autoddl.report.plan_text import comparison
from autoddl.sbp.shares import Portion
from autoddl.search.budget import Budget
from tests.support.clusters import cluster, of_two_kinds
from tests.support.programs import mlp

PROFILE = of_two_kinds(cluster(), 3.0)
ROWS = mlp(4096, (256, 512, 256))
ASKED: dict[str, Any] = {
    "cluster": "1*fast + 1*slow", "profile": PROFILE, "engine": None,
    "budget": Budget(evaluations=2_000), "pipeline": 1,
}  # fmt: skip


def fast_share(plan: autoddl.Plan) -> float:
    return plan.mesh.axes[0].shares[0] / sum(plan.mesh.axes[0].shares)


@pytest.mark.parametrize(("fast", "slow"), [(36, 18), (34, 14), (60, 60)])
def test_a_place_counts_by_the_memory_of_its_devices(fast: int, slow: int) -> None:
    """Each rank's own memory over what it has; the largest is what counts."""
    limits = {"fast": fast * 10**6, "slow": slow * 10**6}
    plan = autoddl.optimize(ROWS, **ASKED, memory=limits)
    assert plan.mesh.cuts != plan.mesh.shape
    held = {}
    for rank, kind in enumerate(limits):
        cuts = plan.mesh.portion(rank)
        assert all(isinstance(cut, Portion) for cut in cuts)
        memory = plan.engine.memory(plan.program, cuts)
        held[kind] = memory.estimate(plan.layout, compute_stream=plan.compute_stream).total
    assert all(size <= limits[kind] for kind, size in held.items())
    tightest = max(held, key=lambda kind: held[kind] / limits[kind])
    assert plan.estimate.memory_bytes == held[tightest]
    assert plan.estimate.room == limits[tightest] / limits["slow"]
    assert plan.estimate.counted_bytes == counted(held[tightest], plan.estimate.room)


def test_a_large_fast_device_gets_more_than_a_small_one_could_hold(tmp_path: Path) -> None:
    plan = autoddl.optimize(ROWS, **ASKED, memory={"fast": "36MB", "slow": "18MB"})
    assert plan.memory_limit_bytes == 18_000_000 < plan.estimate.memory_bytes
    (row, *_) = comparison(plan).columns[-1].cells
    assert "does not fit" not in str(row)
    plan.save(tmp_path / "plan.json")
    assert autoddl.load(tmp_path / "plan.json") == plan


def test_shares_are_less_unlike_where_the_best_ones_do_not_fit() -> None:
    """3/1 needs 33.6 MB of the fast device, even cuts 24.1 MB."""
    even = autoddl.optimize(ROWS, **ASKED, memory="28MB", shares=False)
    roomy, plan = (autoddl.optimize(ROWS, **ASKED, memory=size) for size in ("64MB", "28MB"))
    assert plan.estimate.memory_bytes <= 28_000_000 < roomy.estimate.memory_bytes
    assert 0.5 < fast_share(plan) < fast_share(roomy)
    assert roomy.estimate.step_s < plan.estimate.step_s < even.estimate.step_s


def test_a_stage_on_large_devices_fits_into_them() -> None:
    asked = {**ASKED, "pipeline": 2, "micro_batches": 4, "shares": False, "engine": "oneflow"}
    plan = autoddl.optimize(ROWS, **asked, memory={"fast": "1GB", "slow": "10MB"})
    (row, *_) = comparison(plan).columns[-1].cells
    assert max(part.memory_bytes for part in plan.parts) > 10_000_000
    assert "does not fit" not in str(row)
