"""What the ranks agree on: where they run, and a plan whose mesh was searched."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.on_ranks import on_ranks, seen_by

pytestmark = [pytest.mark.oneflow, pytest.mark.ranks]

SCRIPT = Path(__file__).parent / "rank_scripts" / "any_mesh.py"


def test_ranks_search_the_meshes_that_they_can_run(tmp_path: Path) -> None:
    on_ranks(SCRIPT, tmp_path, ranks=4)
    seen = seen_by(4, tmp_path)
    assert all(rank == seen[0] for rank in seen)
    assert seen[0]["cluster"] == [1, 4]
    assert seen[0]["meshes"] == ["[gpu 4]", "[gpu 2][gpu 2]"]
    assert seen[0]["mesh"] in ("[gpu 4]", "[gpu 2][gpu 2]")
    assert seen[0]["loss"] == pytest.approx(4.16, abs=0.5)  # ln 64: nothing is learnt yet
