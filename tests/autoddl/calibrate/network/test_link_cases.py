"""Which cases there are, and how many steps each has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autoddl.calibrate.network.link_cases import (
    BETWEEN,
    INSIDE,
    SEND_RECEIVE,
    CollectiveCase,
    LinkSettings,
)
from autoddl.sbp.boxing import COLLECTIVES


def all_cases(nodes: int, ranks: int, **options: Any) -> tuple[CollectiveCase, ...]:
    return LinkSettings(ranks, nnodes=nodes, sizes=(1 << 20,), **options).cases()


@pytest.mark.parametrize(
    ("cluster", "inside", "between"),
    [
        ((1, 1), set(), set()),
        ((1, 7), {(7, 1, 1)}, set()),
        ((1, 4), {(4, 1, 1), (2, 1, 2), (2, 1, 1)}, set()),
        ((1, 6), {(6, 1, 1), (3, 1, 2), (3, 1, 1), (2, 1, 3)}, set()),
        ((2, 1), set(), {(2, 1, 1)}),
        ((2, 2), {(2, 1, 1)}, {(2, 1, 2), (2, 1, 1), (4, 2, 1)}),
        ((4, 2), {(2, 1, 1)}, {(4, 1, 2), (4, 1, 1), (8, 2, 1), (2, 1, 2), (2, 1, 1), (4, 2, 1)}),
    ],
    ids=str,
)
def test_kinds_of_groups(
    cluster: tuple[int, int], inside: set[tuple[int, ...]], between: set[tuple[int, ...]]
) -> None:
    cases = all_cases(*cluster, collectives=COLLECTIVES)
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
    assert {c.group_size for c in all_cases(2, 4, group_sizes=(2, 8))} == {2, 8}
    chosen = all_cases(2, 4, collectives=(SEND_RECEIVE,))
    assert {(c.level, c.groups) for c in chosen} == {
        (INSIDE, 2), (INSIDE, 1), (BETWEEN, 4), (BETWEEN, 1)
    }  # fmt: skip
    assert {c.works_alone(4) for c in chosen if c.groups == 1} == {True}
    busy = all_cases(1, 8, quick=True)
    assert {(c.group_size, c.groups) for c in busy} == {(8, 1), (4, 2), (2, 4)}


def test_ops_run_beside_long_messages_and_short_ones() -> None:
    def kinds(nodes: int, ranks: int, **options: Any) -> list[tuple[str, int, int, int]]:
        found = LinkSettings(ranks, nnodes=nodes, collectives=("all_gather",), **options)
        cases = [(c.boxings, c.short, c.messages) for c in found.overlap_cases()]
        assert all(messages == b.steps * (b.group_size - 1) for b, _, messages in cases)
        return [(b.level, b.group_size, b.groups, short) for b, short, _ in cases]

    one_node = [(INSIDE, 4, 1, False), (INSIDE, 4, 1, True)]
    assert kinds(1, 4) == one_node
    assert kinds(2, 1) == [(BETWEEN, 2, 1, False), (BETWEEN, 2, 1, True)]
    assert kinds(2, 2) == [
        (INSIDE, 2, 1, False), (BETWEEN, 2, 2, False),
        (INSIDE, 2, 1, True), (BETWEEN, 2, 2, True), (BETWEEN, 4, 1, True),
    ]  # fmt: skip
    assert kinds(2, 2, mode="eager") == []


@pytest.mark.parametrize("size", [4, 1 << 14, 1 << 20, 5 << 19, 1 << 24, 1 << 30])
def test_chains_have_an_even_number_of_steps(size: int) -> None:
    for most in (3, 8, 16):
        case = CollectiveCase("graph", "all_to_all", INSIDE, 2, size, most_steps=most)
        assert case.steps >= 2 and case.steps % 2 == 0


@pytest.mark.parametrize(("nodes", "ranks"), [(1, 4), (4, 2)])
def test_gathers_by_shares_are_padded_in_place_of_even_ones_and_grouped(
    nodes: int, ranks: int
) -> None:
    asked = {"mode": "eager", "sizes": (1 << 14, 1 << 20)}
    even = LinkSettings(ranks, nodes, **asked).cases()
    cases = LinkSettings(ranks, nodes, **asked, shares=(3, 1, 1, 1)).cases()
    by_shares = [case for case in cases if case.shares]
    kind = ("gpu", 4, 1, 1) if nodes == 1 else ("node", 4, 1, 2)
    assert {(c.level, c.group_size, c.inner, c.groups) for c in by_shares} == {kind}
    assert [c.collective for c in by_shares] == ["all_gather"] * 2 + ["broadcast"] * 2
    as_even = {replace(c, shares=()) for c in by_shares if c.collective == "all_gather"}
    assert {c for c in cases if not c.shares} | as_even == set(even)
    assert as_even.isdisjoint(cases)
