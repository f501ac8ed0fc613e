"""What the ranks agree on: where they run, and a plan whose mesh was searched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.on_ranks import seen_by

pytestmark = [pytest.mark.oneflow, pytest.mark.ranks]


def test_ranks_search_the_meshes_that_they_can_run(launched: Callable[[int], Path]) -> None:
    seen = seen_by(4, launched(4) / "any_mesh")
    assert all(rank == seen[0] for rank in seen)
    assert seen[0]["cluster"] == [1, 4]
    assert seen[0]["meshes"] == ["[gpu 4]", "[gpu 2][gpu 2]"]
    assert seen[0]["mesh"] in ("[gpu 4]", "[gpu 2][gpu 2]")
    assert seen[0]["loss"] == pytest.approx(4.16, abs=0.5)  # ln 64: nothing is learnt yet
