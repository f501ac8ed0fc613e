"""The paper's space: counted by closed forms, and every tiling covers the grid."""

from __future__ import annotations

from collections import Counter
from math import cos, pi, prod

import pytest

from autoddl.search.rivals.amp.strategies import degrees, megatron_stages, strategies, tilings


def dominoes(rows: int, columns: int) -> int:
    """Kasteleyn's number of tilings of a board with dominoes of 1 × 2."""
    return round(
        prod(
            4 * cos(pi * a / (rows + 1)) ** 2 + 4 * cos(pi * b / (columns + 1)) ** 2
            for a in range(1, rows // 2 + 1)
            for b in range(1, columns // 2 + 1)
        )
    )


def test_the_space_of_the_paper() -> None:
    assert len(degrees(4, 4, 32)) == 53
    space = list(strategies(4, 4, 32))
    assert len(space) == len(set(space)) == 449
    assert {s.micro_batches(32) * s.dp * s.mbs for s in space} == {32}
    assert all(s.tmp <= 4 and s.tmp * s.dp * len(s.stages) == 16 for s in space)


@pytest.mark.parametrize(("nodes", "per_node"), [(2, 2), (2, 4), (4, 4), (4, 6), (6, 6)])
def test_dominoes_are_as_many_as_kasteleyn_says(nodes: int, per_node: int) -> None:
    for degrees_ in ((1, 2), (2, 1)):
        found = list(tilings(nodes, per_node, *degrees_))
        assert len(found) == len(set(found)) == dominoes(nodes, per_node)


@pytest.mark.parametrize(("tmp", "dp"), [(1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (4, 1), (2, 4)])
def test_every_device_is_in_one_stage_and_groups_are_straight(tmp: int, dp: int) -> None:
    for stages in tilings(4, 4, tmp, dp):
        assert Counter(d for stage in stages for d in stage) == Counter(range(16))
        firsts = [min(stage) for stage in stages]
        assert firsts == sorted(firsts)
        for stage in stages:
            groups = [stage[a : a + tmp] for a in range(0, len(stage), tmp)]
            for group in groups:  # down one column, or along one row of the grid
                assert len({d // 4 for d in group}) == 1 or len({d % 4 for d in group}) == 1
            nodes = {d // 4 for d in stage}
            assert len(nodes) * len({d % 4 for d in stage}) == tmp * dp  # a rectangle


def test_what_is_no_domino_has_no_tiling() -> None:
    assert not list(tilings(4, 4, 1, 8)) and not list(tilings(4, 4, 1, 16))


def test_megatron_places_ranks_in_their_order() -> None:
    assert megatron_stages(8, 2, 2) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert megatron_stages(8, 4, 1) in list(tilings(2, 4, 4, 1))
