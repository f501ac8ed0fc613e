"""Which ranks take part in each case, by brute force over the ranks' coordinates."""

from __future__ import annotations

import pytest

from autoddl.calibrate.network.link_cases import BETWEEN, CollectiveCase, LinkSettings
from autoddl.engine.oneflow.probes.rank_groups import RankGrid

CLUSTERS = [RankGrid(*shape) for shape in ((1, 2), (1, 4), (1, 6), (2, 1), (2, 2), (2, 4), (4, 2))]


def groups_of(case: CollectiveCase, cluster: RankGrid) -> list[tuple[int, ...]]:
    """Return the groups of a case, read off its mesh (or its pairs)."""
    if case.paired:
        return list(zip(*cluster.pairs(case), strict=True))
    mesh, measured = cluster.mesh(case), cluster.measured_axes(case)
    if measured == (True,):
        return [tuple(mesh)]
    if measured == (True, True):
        return [tuple(rank for row in mesh for rank in row)]
    rows = mesh if measured == (False, True) else zip(*mesh, strict=True)
    return [tuple(row) for row in rows]


@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
def test_groups_are_what_the_case_says(cluster: RankGrid) -> None:
    cases = LinkSettings(cluster.ranks_per_node, nnodes=cluster.nodes, sizes=(1 << 20,)).cases()
    assert len(set(cases)) == len(cases) > 0
    for case in cases:
        groups = groups_of(case, cluster)
        ranks = [rank for group in groups for rank in group]
        assert len(set(ranks)) == len(ranks) and set(ranks) <= set(cluster.ranks.ravel())
        workers = cluster.pairs(case)[0] if case.paired else ranks
        assert set(cluster.workers(case)) == set(workers)
        assert set(cluster.bystanders(case)) == set(cluster.ranks.ravel()) - set(workers)
        crossing: dict[int, int] = {}
        for group in groups:
            assert len(group) == case.group_size
            nodes = [rank // cluster.ranks_per_node for rank in group]
            assert (len(set(nodes)) > 1) == (case.level == BETWEEN)
            if case.level == BETWEEN:
                assert {nodes.count(node) for node in nodes} == {case.inner}
            for node in set(nodes):
                crossing[node] = crossing.get(node, 0) + 1
        assert set(crossing.values()) == {case.groups}, case
