"""What the ranks agree on: where they run, and a plan whose mesh was searched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoddl.engine.launch import launch

pytestmark = [pytest.mark.oneflow, pytest.mark.testbed]

SCRIPT = Path(__file__).parent / "rank_scripts" / "any_mesh.py"
ROOT = Path(__file__).parents[3]


def test_ranks_search_the_meshes_that_they_can_run(tmp_path: Path) -> None:
    env = {"PYTHONPATH": str(ROOT)}
    launch([str(SCRIPT), str(tmp_path)], nproc_per_node=4, timeout_s=120, env=env, check=True)
    seen = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(4)]
    assert all(rank == seen[0] for rank in seen)
    assert seen[0]["cluster"] == [1, 4]
    assert [row["mesh"] for row in seen[0]["meshes"]] == ["[gpu 4]", "[gpu 2][gpu 2]"]
    assert seen[0]["mesh"] in ("[gpu 4]", "[gpu 2][gpu 2]")
    assert seen[0]["loss"] == pytest.approx(4.16, abs=0.5)  # ln 64: nothing is learnt yet
