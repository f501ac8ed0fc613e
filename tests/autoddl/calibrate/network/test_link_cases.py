"""Which ranks take part in each case, by brute force over the ranks' coordinates."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autoddl.calibrate.network.link_cases import (
    BETWEEN,
    INSIDE,
    SEND_RECEIVE,
    CollectiveCase,
    RankGrid,
    Timing,
    pack,
    schedule,
    timing_from_json,
    timing_of,
)
from autoddl.sbp.boxing import COLLECTIVES

CLUSTERS = [RankGrid(*shape) for shape in ((1, 2), (1, 4), (1, 6), (2, 1), (2, 2), (2, 4), (4, 2))]


def all_cases(cluster: RankGrid, **options: object) -> list[CollectiveCase]:
    return schedule(cluster, modes=("graph",), sizes=(1 << 20,), **options)  # type: ignore[arg-type]


def groups_of(case: CollectiveCase, cluster: RankGrid) -> list[tuple[int, ...]]:
    """Return the groups of a case, read off its mesh (or its pairs)."""
    if case.paired:
        return list(zip(*case.pairs(cluster), strict=True))
    mesh, measured = case.mesh(cluster), case.measured_axes(cluster)
    if measured == (True,):
        return [tuple(mesh)]
    if measured == (True, True):
        return [tuple(rank for row in mesh for rank in row)]
    rows = mesh if measured == (False, True) else zip(*mesh, strict=True)
    return [tuple(row) for row in rows]


@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
def test_groups_are_what_the_case_says(cluster: RankGrid) -> None:
    cases = all_cases(cluster)
    assert len(set(cases)) == len(cases) > 0
    for case in cases:
        groups = groups_of(case, cluster)
        ranks = [rank for group in groups for rank in group]
        assert len(set(ranks)) == len(ranks) and set(ranks) <= set(range(cluster.ranks))
        assert sorted(ranks) == list(case.members(cluster))
        workers = case.pairs(cluster)[0] if case.paired else ranks
        assert set(case.workers(cluster)) == set(workers)
        assert set(case.bystanders(cluster)) == set(range(cluster.ranks)) - set(workers)
        if not case.paired:
            assert case.groups_at_work(cluster) == len(groups)
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


@pytest.mark.parametrize(
    ("cluster", "inside", "between"),
    [
        (RankGrid(1, 1), set(), set()),
        (RankGrid(1, 7), {(7, 1, 1)}, set()),
        (RankGrid(1, 4), {(4, 1, 1), (2, 1, 2), (2, 1, 1)}, set()),
        (RankGrid(1, 6), {(6, 1, 1), (3, 1, 2), (3, 1, 1), (2, 1, 3)}, set()),
        (RankGrid(2, 1), set(), {(2, 1, 1)}),
        (RankGrid(2, 2), {(2, 1, 1)}, {(2, 1, 2), (2, 1, 1), (4, 2, 1)}),
        (
            RankGrid(4, 2),
            {(2, 1, 1)},
            {(4, 1, 2), (4, 1, 1), (8, 2, 1), (2, 1, 2), (2, 1, 1), (4, 2, 1)},
        ),
    ],
    ids=str,
)
def test_kinds_of_groups(
    cluster: RankGrid, inside: set[tuple[int, ...]], between: set[tuple[int, ...]]
) -> None:
    cases = all_cases(cluster, collectives=COLLECTIVES)
    for collective in COLLECTIVES:
        kinds = {
            level: {
                (c.group_size, c.inner, c.groups)
                for c in cases
                if (c.level, c.collective) == (level, collective)
            }
            for level in (INSIDE, BETWEEN)
        }
        assert kinds == {INSIDE: inside, BETWEEN: between}


def test_choices() -> None:
    cluster = RankGrid(2, 4)
    sizes = {c.group_size for c in all_cases(cluster, group_sizes=(2, 8))}
    assert sizes == {2, 8}
    chosen = all_cases(cluster, collectives=(SEND_RECEIVE,))
    assert {(c.level, c.groups) for c in chosen} == {
        (INSIDE, 2), (INSIDE, 1), (BETWEEN, 4), (BETWEEN, 1)
    }  # fmt: skip
    busy = all_cases(cluster, shared_only=True)
    assert {c for c in all_cases(cluster) if len(c.members(cluster)) == 8} <= set(busy)
    assert not [c for c in busy if c.level == INSIDE and len(c.members(cluster)) < 8]


@pytest.mark.parametrize("size", [4, 1 << 14, 1 << 20, 5 << 19, 1 << 24, 1 << 30])
def test_chains_have_an_even_number_of_steps(size: int) -> None:
    for most in (3, 8, 16):
        case = CollectiveCase("graph", "all_to_all", INSIDE, 2, size, most_steps=most)
        assert case.steps >= 2 and case.steps % 2 == 0


def test_launches_keep_within_memory() -> None:
    cases = schedule(
        RankGrid(1, 4), modes=("graph",), sizes=tuple(1 << k for k in range(14, 26, 2))
    )
    limit = 1 << 28
    batches = pack(cases, memory_bytes=limit)
    assert [case for batch in batches for case in batch] == cases
    assert len(batches) > 1
    for batch in batches:
        assert len(batch) == 1 or sum(case.memory_bytes for case in batch) <= limit
    assert pack([], memory_bytes=1) == [[]]


def test_rows_survive_json() -> None:
    row = Timing(all_cases(RankGrid(2, 2))[0], 1e6, 7, 1e-3, 0.5e-3, 1.1e-3, math.pi)
    assert timing_from_json(row.to_json()) == row


def test_a_row_is_not_moved_by_wild_repetitions() -> None:
    case = all_cases(RankGrid(1, 2))[0]
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
