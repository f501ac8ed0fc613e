"""HAP's linear program: closed forms, and a search over a grid that becomes finer."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from autoddl.search.rivals.hap.shares_lp import SharedStage, best_shares, stages_s


def of_speeds(*speeds: float, constant_s: float = 0.0, padded_s: float = 0.0) -> list[SharedStage]:
    """One stage: 1 s of compute on the fastest device, and `constant_s` that all of them do."""
    times = [max(speeds) / speed for speed in speeds]
    return [SharedStage(tuple(constant_s * t for t in times), tuple(times), padded_s)]


@pytest.mark.parametrize(
    ("stages", "shares", "seconds"),
    [
        (of_speeds(3, 1), (0.75, 0.25), 0.75),
        (of_speeds(3, 1, padded_s=2.9), (0.75, 0.25), 0.75 * 2.9 + 0.75),
        (of_speeds(3, 1, padded_s=3.1), (0.5, 0.5), 0.5 * 3.1 + 1.5),
        (of_speeds(4, 2, 1, 1, constant_s=0.1), (0.6, 0.25, 0.075, 0.075), 0.7),
    ],
)
def test_closed_forms(stages: list[SharedStage], shares: list[float], seconds: float) -> None:
    found = best_shares(stages)
    assert found == pytest.approx(shares, abs=1e-7)
    assert stages_s(stages, found) == pytest.approx(seconds)


def test_seconds_of_any_size_have_the_same_shares() -> None:
    (stage,) = of_speeds(3, 1)
    tiny = SharedStage(stage.constant_s, tuple(1e-9 * s for s in stage.share_s))
    assert best_shares([tiny]) == pytest.approx((0.75, 0.25))


@pytest.mark.parametrize("seed", range(200))
def test_no_point_of_a_grid_is_better(seed: int) -> None:
    """The grid comes as near as it is fine, so the program is no worse, and not better than it can be."""
    rng = np.random.default_rng(seed)
    devices, count = int(rng.integers(2, 4)), int(rng.integers(1, 5))
    stages = [
        SharedStage(
            tuple(rng.uniform(0, 0.3, devices).tolist()), tuple(rng.uniform(0.2, 4, devices).tolist()),
            float(rng.uniform(0, 2) * (rng.random() < 0.5)), float(rng.uniform(0, 1)),
        )
        for _ in range(count)
    ]  # fmt: skip
    found = best_shares(stages)
    assert sum(found) == pytest.approx(1.0)
    assert min(found) >= 0
    assert stages_s(stages, found) == pytest.approx(grid_s(stages, devices), rel=2e-3)
    assert stages_s(stages, found) <= grid_s(stages, devices) * (1 + 1e-9)


def grid_s(stages: list[SharedStage], devices: int) -> float:
    """Return the least seconds over grids around the best point so far, each finer than the last."""
    centre, width = np.full(devices - 1, 0.5), 0.5
    best = np.inf
    constant, share, padded, fixed = (
        np.array([getattr(stage, name) for stage in stages])
        for name in ("constant_s", "share_s", "padded_s", "fixed_s")
    )
    for _ in range(24):
        axes = [np.clip(np.linspace(c - width, c + width, 9), 0, 1) for c in centre]
        free = np.array(list(itertools.product(*axes)))
        points = np.hstack([free, 1 - free.sum(axis=1, keepdims=True)])
        points = points[points[:, -1] >= 0]
        seconds = (constant + share * points[:, None]).max(axis=2).sum(axis=1) + fixed.sum()
        seconds += padded.sum() * points.max(axis=1)
        least = int(seconds.argmin())
        best, centre = min(best, float(seconds[least])), points[least, :-1]
        width *= 0.6
    return best
