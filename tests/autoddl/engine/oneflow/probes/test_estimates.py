"""What repeated calls say: wild ones do not move it, ranks wait for the slowest."""

from __future__ import annotations

import numpy as np
import pytest

from autoddl.calibrate.network.link_cases import LinkSettings
from autoddl.engine.oneflow.probes.estimates import in_step, timing_of


def test_a_row_is_not_moved_by_wild_repetitions() -> None:
    case = LinkSettings(2).cases()[0]
    rng = np.random.default_rng(0)
    twin = 1e-3 + 1e-5 * rng.standard_normal(40)
    taken = np.stack([twin + case.steps * 2e-4 * rng.uniform(0.9, 1.1, 40), twin], axis=1)
    taken[:8, 0] += 1.0  # another process took the core
    row = timing_of(case, 100.0, taken)
    assert row.seconds == pytest.approx(2e-4, rel=0.05)
    assert row.min_s < row.median_s < row.max_s
    assert row.max_s > 1.0 / case.steps
    one = timing_of(case, 100.0, taken[-1:])
    assert one.seconds == one.min_s == one.max_s
    assert (row.repetitions, one.repetitions) == (40, 1)


def test_times_are_means_over_ranks_that_wait_for_the_slowest() -> None:
    seconds, calls_s = np.array([[1.0], [4.0]]), np.array([[1.0, 4.0], [3.0, 2.0]])
    # the slowest ranks take 3 + 4 of a mean of 2 + 3 seconds
    assert in_step(seconds, calls_s) == pytest.approx([2.5 * 7 / 5])
