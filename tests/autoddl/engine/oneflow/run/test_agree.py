"""What the ranks agree on: where they run, and a plan whose mesh was searched."""

from __future__ import annotations

import pytest

from tests.support.on_ranks import Launched, seen_by

pytestmark = [pytest.mark.oneflow, pytest.mark.ranks]


def test_ranks_search_the_meshes_that_they_can_run(launched: Launched) -> None:
    seen = seen_by(4, launched("any_mesh", ranks=4))
    assert all(rank == seen[0] for rank in seen)
    assert seen[0]["cluster"] == [1, 4]
    assert seen[0]["meshes"] == ["[gpu 4]", "[gpu 2][gpu 2]"]
    assert seen[0]["mesh"] in ("[gpu 4]", "[gpu 2][gpu 2]")
    assert seen[0]["loss"] == pytest.approx(seen[0]["alone"], abs=1e-5)


def test_nodes_in_another_order_than_planned_are_refused_on_all_ranks(launched: Launched) -> None:
    for rank in seen_by(4, launched("any_mesh", ranks=4)):
        assert rank["told"] == (
            "plan: rank 3 is on a node of kind slow, where the plan has fast; start the nodes in the "
            "order of the plan's cluster (--node-rank), or plan for the order in which they are"
        )
        assert rank["not told"] == rank["as planned"] == "no error"
